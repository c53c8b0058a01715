"""Student code on a real device (CUDA, MPS or the plain CPU), with the ledger the virtual device keeps."""

from graders.bench.real.opening import RealDevice, real_device

__all__ = ["RealDevice", "real_device"]
