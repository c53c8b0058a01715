"""Plain data: exercises, checks, evidence, results, errors. No torch."""
