"""What students get: stubs, notebooks and a repository, made from the reference solutions, without torch."""
