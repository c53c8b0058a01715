"""A CUDA device without a GPU, with real values."""

from graders.bench.virtual.footing import watched

with watched():
    from graders.bench.virtual.opening import virtual_cuda
    from graders.bench.virtual.places import VirtualGpu

__all__ = ["VirtualGpu", "virtual_cuda"]
