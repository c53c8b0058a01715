"""Records the same ledger on a real device: CUDA, MPS or the CPU."""
