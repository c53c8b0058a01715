"""Where student code runs: the virtual CUDA device, a real device, or the plain CPU."""

from graders.bench.virtual import VirtualGpu, virtual_cuda

__all__ = ["VirtualGpu", "virtual_cuda"]
