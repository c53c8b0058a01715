"""Runs untrusted code in forked, isolated children of a warm process."""
