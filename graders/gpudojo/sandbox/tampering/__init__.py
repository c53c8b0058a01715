"""What a child has against submissions that forge evidence of their work."""
