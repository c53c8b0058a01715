"""What does `dojo classroom` do? It grades one checkout and tells GitHub Classroom or Classroom 50 what came of it."""
