"""Where student code runs: the virtual CUDA device, a real device, or the plain CPU."""

from graders.bench.opening import Bench, open
from graders.bench.real import RealDevice, real_device
from graders.bench.virtual import VirtualGpu, virtual_cuda
from graders.bench.virtual.mps import no_accelerator, virtual_mps

__all__ = [
    "Bench",
    "RealDevice",
    "VirtualGpu",
    "no_accelerator",
    "open",
    "real_device",
    "virtual_cuda",
    "virtual_mps",
]
