"""How much memory a script would need on a GPU, and how long it would take: runs without values."""
