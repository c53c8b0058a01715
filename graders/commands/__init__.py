"""The commands of `dojo` that have a room of their own."""
