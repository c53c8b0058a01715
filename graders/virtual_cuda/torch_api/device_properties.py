"""What `torch.cuda.get_device_properties` tells of the GPU that was chosen."""

from __future__ import annotations

import types
import uuid
from typing import Any, Final

from virtual_cuda.clock.gpu_models import gpu_named
from virtual_cuda.device.state import VirtualGpu

_CAPABILITY_OF_H200: Final = (9, 0)
# Of a GPU whose figures say nothing else.
_USUAL_PROPERTIES: Final[dict[str, Any]] = {
    "major": _CAPABILITY_OF_H200[0],
    "minor": _CAPABILITY_OF_H200[1],
    "gcnArchName": "",
    "uuid": uuid.UUID(int=0),
    "is_integrated": 0,
    "is_multi_gpu_board": 0,
    "multi_processor_count": 132,
    "warp_size": 32,
    "max_threads_per_multi_processor": 2048,
    "max_threads_per_block": 1024,
    "regs_per_multiprocessor": 65536,
    "L2_cache_size": 60 << 20,
    "shared_memory_per_block": 49152,
    "shared_memory_per_block_optin": 232448,
    "shared_memory_per_multiprocessor": 233472,
    "pci_bus_id": 0,
    "pci_device_id": 0,
    "pci_domain_id": 0,
}


class CudaDeviceProperties(types.SimpleNamespace):
    """What `torch.cuda.get_device_properties` returns; it is printed as torch prints it."""

    def __repr__(self) -> str:
        """The properties as torch prints them, sizes in MiB."""
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, "
            f"multi_processor_count={self.multi_processor_count}, uuid={self.uuid}, "
            f"pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size >> 20}MB)"
        )


CudaDeviceProperties.__name__ = CudaDeviceProperties.__qualname__ = "_CudaDeviceProperties"
CudaDeviceProperties.__module__ = "torch._C"


def capability_of(gpu: VirtualGpu) -> tuple[int, int]:
    """The compute capability of the GPU that was chosen; without one, an H200's."""
    if gpu.model is None:
        return _CAPABILITY_OF_H200
    return gpu.model.capability


def properties_of(gpu: VirtualGpu) -> CudaDeviceProperties:
    """The properties of the GPU that was chosen; without one, those of an H200."""
    properties = dict(_USUAL_PROPERTIES)
    if gpu.model is None:
        properties |= gpu_named("H200").properties
    else:
        properties |= gpu.model.properties
        properties["major"], properties["minor"] = gpu.model.capability
        properties["multi_processor_count"] = gpu.model.sms
        properties["L2_cache_size"] = gpu.model.l2
    total_memory = gpu.devices[0].memory.total
    return CudaDeviceProperties(name=gpu.name, total_memory=total_memory, **properties)
