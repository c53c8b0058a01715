"""The modelled clock against what a real GPU took."""
