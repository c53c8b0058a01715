"""TorchScript on the virtual device: saving, loading and printing scripts, and compiling them.

TorchScript compiles torch's functions by identity, so ours must be taken for them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

import torch

from virtual_cuda.device.state import find_open_device
from virtual_cuda.device.tensor import VIRTUAL
from virtual_cuda.internals import find_internal
from virtual_cuda.patching import Opening, Patch, around, original_function, torch_patches

_NO_FROZEN: Final = (
    "a frozen script on the virtual GPU cannot be saved; save it before torch.jit.freeze"
)
# A file in a saved script: the virtual device that it was on.
_DEVICE_FILE: Final = "virtual_cuda"
_builtin_functions: Final = find_internal("torch._C._VariableFunctions", otherwise=None)


# ---- saving, loading, printing -------------------------------------------------------------------


def _device_of_script(script: Any) -> torch.device | None:
    """The virtual device that a script's parameters or buffers are on; None for the host."""
    for tensor in chain(script.parameters(), script.buffers()):
        if type(tensor) in VIRTUAL:
            device: torch.device = tensor.device
            return device
    return None


def _save_script(original: Any, script: Any, *args: Any, **kwargs: Any) -> Any:
    """Save a script by `original`; one on the device is saved as a copy on the host.

    C++ can write only tensors of the host. The copies are recorded. A file in the archive says
    which device it was on. Raises RuntimeError for a frozen script on the device and at a wait that
    is refused or tells of a failed kernel, torch's OutOfMemoryError, and what `original` raises.
    """
    device = _device_of_script(script)
    if device is not None:
        extra_files = dict(kwargs.get("_extra_files") or {})
        extra_files[_DEVICE_FILE] = str(device)
        kwargs["_extra_files"] = extra_files
        with torch.no_grad():
            script = copy.deepcopy(script).cpu()
    try:
        return original(script, *args, **kwargs)
    except RuntimeError as error:
        if "lazy" in str(error):
            raise RuntimeError(_NO_FROZEN) from None
        raise


def _load_script(
    original: Any, f: Any, map_location: Any = None, _extra_files: Any = None, **kwargs: Any
) -> Any:
    """Load a script; puts it on the device that it was saved on or that `map_location` names.

    `f` is a file or its path, `_extra_files` is filled with files in the archive. Moving the script
    to the device is recorded. Raises what `original`, `torch.jit.load`, raises, CUDA's error for a
    device that is not there, torch's OutOfMemoryError, and RuntimeError at a wait that is refused
    or tells of a failed kernel.
    """
    if map_location is None:
        wanted = None
    else:
        wanted = find_open_device(map_location)
    files = {**(_extra_files or {}), _DEVICE_FILE: ""}
    script = original(f, map_location if wanted is None else "cpu", files, **kwargs)
    saved_on = files.pop(_DEVICE_FILE)
    if isinstance(saved_on, bytes):
        saved_on = saved_on.decode()
    if _extra_files is not None:
        _extra_files.update(files)
    if wanted is not None:
        script.to(wanted.cuda)
    elif saved_on and map_location is None:
        script.to(saved_on)
    return script


def _show_graph(original: Any, graph: Any) -> str:
    """A graph as text, which `original` makes, with the device that Python knows."""
    return str(original(graph)).replace("device=lazy:", "device=cuda:")


@torch_patches()
def _script_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of saving, loading and printing scripts."""
    for path in ("torch._C.Graph", "torch._C.Node", "torch._C.Value"):
        cls = find_internal(path, otherwise=None)
        for name in ("__str__", "__repr__"):
            if cls is not None and name in vars(cls):
                yield around(cls, name, _show_graph)
    recursive = find_internal("torch.jit._script.RecursiveScriptModule")
    for cls in (torch.jit.ScriptModule, recursive):
        for name in ("save", "save_to_buffer"):
            yield around(cls, name, _save_script)
    yield around(torch.jit, "load", _load_script)


# ---- compiling -----------------------------------------------------------------------------------


def _read_annotation(original: Any, ann: Any, *args: Any, **kwargs: Any) -> Any:
    """The type of an argument of a script, as `original` reads it from the annotation.

    A script that was written before the device was opened names torch's own `torch.device`.
    """
    if isinstance(ann, type) and ann == torch.device:
        ann = torch.device
    return original(ann, *args, **kwargs)


def _find_builtin(original: Any, function: Any) -> Any:
    """The operator that a function of torch, or ours in its place, is compiled to; or None.

    `original` is torch's search, by the function itself.
    """
    operator = original(function) or original(original_function(function))
    if operator:
        return operator
    name = getattr(function, "__name__", "")
    if vars(torch).get(name) is function and hasattr(_builtin_functions, name):
        return f"aten::{name}"
    return None


def _compile_original(original: Any, function: Any, *rest: Any) -> Any:
    """Compile, by `original`, the function of torch that a function of ours replaces.

    Gives and raises what `original` does.
    """
    return original(original_function(function), *rest)


@torch_patches()
def _compiling_patches(opening: Opening) -> Iterator[Patch]:
    """The patches that let scripts call functions that are patched.

    torch's table of functions is made before, once per process.
    """
    # Made once per process: it must hold the functions as they were.
    find_internal("torch.jit._builtins._get_builtin_table", otherwise=dict)()
    yield around(torch.jit.annotations, "try_ann_to_type", _read_annotation)
    yield around(find_internal("torch.jit._builtins"), "_find_builtin", _find_builtin)
    recursive = find_internal("torch.jit._recursive")
    yield around(recursive, "try_compile_fn", _compile_original)
    yield around(recursive, "make_stub", _compile_original)
