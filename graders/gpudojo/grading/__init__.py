"""Grades one file: load, observe, judge, explain."""
