"""How do results look? One page for the class and one for each student, made from what is stored; no torch."""
