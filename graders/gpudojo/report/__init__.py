"""Reports: one page for the class and one for each student, made from stored results. No torch."""
