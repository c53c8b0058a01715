"""Files of weights in a run without values: their shapes are read, their numbers are not.

Numbers are floating-point tensors that are large. Smaller tensors have values, and so have whole
numbers, which may be indices: their part of the file is mapped, and read when it is used.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
import zipfile
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from virtual_cuda.device.no_values import (
    LARGE,
    forget_values,
    note_assumption,
    on_host_without_values,
)
from virtual_cuda.device.state import META, now
from virtual_cuda.internals import find_internal
from virtual_cuda.patching import Opening, Patch, around, torch_patches
from virtual_cuda.torch_api.imports import patches_on_import

aten: Final = torch.ops.aten
if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode as _Mode
else:
    _Mode = find_internal("torch.utils._python_dispatch.TorchDispatchMode", otherwise=object)


def has_numbers(dtype: torch.dtype, nbytes: int) -> bool:
    """True for a tensor of a file whose values are left out."""
    return nbytes >= LARGE and (dtype.is_floating_point or dtype.is_complex)


def _note_file(file: Any) -> None:
    """Note for the report that the numbers in a file were not read."""
    note_assumption(f"did not read the numbers in {os.path.basename(os.fspath(file))}")


# ---- torch.load ----------------------------------------------------------------------------------


class _LoadingWithoutValues(_Mode):
    """Lets large tensors of the host have no values that get their memory from a storage."""

    knows_names = True  # the device's names in C++: see `torch_api/wrapper_classes.py`
    count = 0  # tensors without values

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: torch need not be told to compile nothing here, which imports the compiler."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and return its results; raises what it raises.

        A large tensor of numbers that gets its memory from a storage has no values from then on,
        and is counted.
        """
        result = func(*args, **(kwargs or {}))
        gets_storage = func is aten.set_.source_Storage_storage_offset
        if gets_storage and has_numbers(result.dtype, result.nbytes):
            self.count += 1
            if result.is_cpu:
                forget_values(result)
        return result


def _load(original: Any, f: Any, *args: Any, **named: Any) -> Any:
    """Call `torch.load`, the `original`; a run without values maps a file instead of reading it.

    Large tensors of numbers have no values then, which is noted for the report. A file of torch
    before 1.6 and one that is given open are read. Raises what `torch.load` raises.
    """
    if now.gpu is None or now.gpu.values:
        return original(f, *args, **named)
    is_path = isinstance(f, (str, os.PathLike))
    if is_path and os.path.isfile(f) and zipfile.is_zipfile(f):
        named["mmap"] = True
    loading: Any = _LoadingWithoutValues()  # type: ignore[no-untyped-call]
    with loading:
        result = original(f, *args, **named)
    if loading.count:
        _note_file(f if is_path else getattr(f, "name", "a file"))
    return result


# ---- safetensors ---------------------------------------------------------------------------------
# A file begins with the length of its header. The header is JSON: for each tensor its dtype, shape,
# and where its bytes begin and end, counted from the end of the header.

_LENGTH: Final = struct.Struct("<Q")
_METADATA: Final = "__metadata__"  # of the whole file
_TORCH_NAMES: Final = ("pt", "torch", "pytorch")  # of the framework that tensors are made for
_DTYPES: Final = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "U16": torch.uint16,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "F32": torch.float32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F64": torch.float64,
    "C64": torch.complex64,
}


class StoredTensor(NamedTuple):
    """A tensor as a header tells it."""

    dtype: str
    shape: list[int]
    begin: int  # bytes from the start of the file
    end: int


class SafetensorsHeader(NamedTuple):
    """All tensors of a file by their names, in the order of their bytes."""

    tensors: dict[str, StoredTensor]
    metadata: dict[str, str] | None


def read_header(path: Any) -> SafetensorsHeader | None:
    """The header of a file of safetensors; None for one that the library has to judge.

    That is one which is missing or broken, or has a dtype that is not known here.
    """
    try:
        with open(path, "rb") as file:
            (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
            size = os.fstat(file.fileno()).st_size
            if length > size:
                return None
            entries = json.loads(file.read(length))
        metadata = entries.pop(_METADATA, None)
        first = _LENGTH.size + length
        tensors = {}
        for name, entry in entries.items():
            begin, end = entry["data_offsets"]
            tensors[name] = StoredTensor(entry["dtype"], entry["shape"], first + begin, first + end)
        stored = sorted(tensors.items(), key=lambda item: item[1].begin)
    except (OSError, struct.error, ValueError, KeyError, TypeError, AttributeError):
        return None
    for tensor in tensors.values():
        dtype = _DTYPES.get(tensor.dtype)
        if dtype is None or tensor.end > size:
            return None
        if math.prod(tensor.shape) * dtype.itemsize != tensor.end - tensor.begin:
            return None
    return SafetensorsHeader(dict(stored), metadata)


class SafetensorsFile:
    """A file of safetensors whose numbers are not read: stands for what `safe_open` returns."""

    def __init__(self, path: Any, header: SafetensorsHeader, device: Any) -> None:
        """Describe a file whose header was read, for tensors on `device`.

        The file is opened when a tensor is asked for that has values.
        """
        self._path = path
        self._header = header
        self._device = device
        self._was_noted = False

    def __enter__(self) -> SafetensorsFile:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def keys(self) -> list[str]:
        """The names of all tensors, sorted."""
        return sorted(self._header.tensors)

    def offset_keys(self) -> list[str]:
        """The names of all tensors, in the order of their bytes."""
        return list(self._header.tensors)

    def metadata(self) -> dict[str, str] | None:
        """What is said of the whole file."""
        return self._header.metadata

    def get_tensor(self, name: str) -> torch.Tensor:
        """A tensor on the file's device. Raises KeyError for an unknown name."""
        return self._make_tensor(self._find_stored(name)).to(self._device)

    def get_tensors(self) -> dict[str, torch.Tensor]:
        """All tensors by their names."""
        return {name: self.get_tensor(name) for name in self.offset_keys()}

    def get_slice(self, name: str) -> SafetensorsSlice:
        """A tensor of which a part can be taken. Raises KeyError for an unknown name."""
        return SafetensorsSlice(self, name, self._find_stored(name))

    def _find_stored(self, name: str) -> StoredTensor:
        """What the header says of a tensor. Raises KeyError for an unknown name."""
        if name not in self._header.tensors:
            raise KeyError(f"{os.fspath(self._path)} does not contain tensor {name}")
        return self._header.tensors[name]

    def _make_tensor(self, stored: StoredTensor) -> torch.Tensor:
        """A tensor on the host: without values if it has numbers, else a mapping of the file.

        The first one without values is noted for the report. Raises OSError for a file that cannot
        be read.
        """
        dtype = _DTYPES[stored.dtype]
        nbytes = stored.end - stored.begin
        if has_numbers(dtype, nbytes):
            if not self._was_noted:
                self._was_noted = True
                _note_file(self._path)
            return on_host_without_values(torch.empty(stored.shape, dtype=dtype, device=META))
        if not nbytes:
            return torch.empty(stored.shape, dtype=dtype)
        before = stored.begin % mmap.ALLOCATIONGRANULARITY
        with open(self._path, "rb") as file:
            part = mmap.mmap(
                file.fileno(),
                before + nbytes,
                access=mmap.ACCESS_COPY,
                offset=stored.begin - before,
            )
        items = torch.frombuffer(part, dtype=torch.uint8, count=nbytes, offset=before)
        if stored.begin % dtype.itemsize:  # older files do not align
            items = items.clone()
        return items.view(dtype).view(stored.shape)


class SafetensorsSlice:
    """A tensor in a file, of which a part can be taken: what `get_slice` returns."""

    def __init__(self, file: SafetensorsFile, name: str, stored: StoredTensor) -> None:
        """Remember which tensor it is."""
        self._file = file
        self._name = name
        self._stored = stored

    def get_shape(self) -> list[int]:
        """The shape of the whole tensor."""
        return list(self._stored.shape)

    def get_dtype(self) -> str:
        """The dtype as the file names it, such as "BF16"."""
        return self._stored.dtype

    def __getitem__(self, index: Any) -> torch.Tensor:
        """A part of the tensor, on the file's device. Raises IndexError."""
        tensor = self._file._make_tensor(self._stored)
        return tensor[index].to(self._file._device)


def _open_safetensors(
    original: Any, filename: Any, framework: str = "pt", device: Any = "cpu", **named: Any
) -> Any:
    """Call `safetensors.safe_open`, the `original`; a run without values reads the header alone.

    Raises what `safe_open` raises.
    """
    header = None
    if now.gpu is not None and not now.gpu.values and framework in _TORCH_NAMES:
        header = read_header(filename)
    if header is None:
        return original(filename, framework, device, **named)
    return SafetensorsFile(filename, header, device)


def _patches_of_safetensors(safetensors: ModuleType) -> Iterator[Patch]:
    """The patch of the library, before others import its function by name."""
    yield around(safetensors, "safe_open", _open_safetensors)


# ---- patches -------------------------------------------------------------------------------------


@torch_patches()
def _patches_of_readers(opening: Opening) -> Iterable[Patch]:
    """The patches of what reads weights from files."""
    yield around(torch, "load", _load)
    yield from patches_on_import(opening, "safetensors", _patches_of_safetensors)
