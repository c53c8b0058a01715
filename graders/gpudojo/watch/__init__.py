"""`dojo watch`: grades what is saved, at once, in a process that is kept ready for it."""
