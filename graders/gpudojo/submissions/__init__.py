"""Reads submissions: folders, archives, notebooks, files named by learning platforms."""
