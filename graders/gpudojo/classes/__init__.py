"""Grades many submissions: run, record, judge, store, resume."""
