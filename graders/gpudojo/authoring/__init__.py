"""Tools for authors: new exercises, lint, sample classes."""
