"""What do students get? Stubs, made from the reference solutions; no torch."""
