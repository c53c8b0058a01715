"""What students get: stubs, notebooks and a repository, made from references, without torch."""
