"""`torch.compile`, `torch.export`, saved scripts and fake tensors on the virtual device.

Nothing is compiled for it: a compiled function runs as it is written, and the ledger records what
it does. Kernels that Inductor or Triton would make for a GPU are refused.
"""

from __future__ import annotations

import copy
import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from itertools import chain
from types import ModuleType
from typing import Any, Final

import torch
import torch.export

from virtual_cuda.device.state import CUDA, LAZY, open_device_named
from virtual_cuda.device.tensor import VIRTUAL
from virtual_cuda.internals import find_internal
from virtual_cuda.patching import Opening, Patch, around, torch_patches, unpatched
from virtual_cuda.recorder import from_library, tensors_in
from virtual_cuda.torch_api.imports import when_imported

EAGER: Final = "torch.compile does not compile for the virtual GPU: the function runs eagerly"
_NO_EXPORT: Final = "torch._dynamo.export cannot trace on the virtual GPU; use torch.export.export"
_NO_FROZEN: Final = (
    "a frozen script on the virtual GPU cannot be saved; save it before torch.jit.freeze"
)
_NO_KERNELS: Final = "the virtual GPU cannot run kernels of {}; use operators of PyTorch there"


_HOME: Final = "virtual_cuda"  # a file in a saved script: the virtual device that it was on


def _save(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Save a script; one on the device is saved as a copy on the host.

    C++ can write only tensors of the host. A file in the archive says which device it was on.
    Raises RuntimeError for a frozen script on the device.
    """
    home = next(
        (t.device for t in chain(self.parameters(), self.buffers()) if type(t) in VIRTUAL), None
    )
    if home is not None:
        kwargs["_extra_files"] = {**(kwargs.get("_extra_files") or {}), _HOME: str(home)}
        with torch.no_grad():
            self = copy.deepcopy(self).cpu()
    try:
        return original(self, *args, **kwargs)
    except RuntimeError as error:
        raise RuntimeError(_NO_FROZEN) if "lazy" in str(error) else error from None


def _load(
    original: Any, f: Any, map_location: Any = None, _extra_files: Any = None, **kwargs: Any
) -> Any:
    """Load a script; puts it on the device that it was saved on or that `map_location` names."""
    files = {**(_extra_files or {}), _HOME: ""}
    mapped = None if map_location is None else open_device_named(map_location)
    module = original(f, "cpu" if mapped else map_location, files, **kwargs)
    home = files.pop(_HOME)
    if _extra_files is not None:
        _extra_files.update(files)
    if mapped or (home and map_location is None):
        module.to(mapped.cuda if mapped else home.decode() if isinstance(home, bytes) else home)
    return module


def _shown(original: Any, self: Any) -> str:
    """A graph as text, with the device that Python knows."""
    return str(original(self)).replace("device=lazy:", "device=cuda:")


def _annotation(original: Any, ann: Any, *args: Any, **kwargs: Any) -> Any:
    """The type of an argument of a script.

    A script that was written before the device was opened names torch's own `torch.device`.
    """
    device = torch.device
    return original(device if isinstance(ann, type) and ann == device else ann, *args, **kwargs)


@torch_patches()
def _patches(opening: Opening) -> Iterator[Patch]:
    """The patches of `torch.compile`, `torch.export`, TorchScript and of what makes kernels.

    Modules that are imported later are patched then.
    """
    said: list[str] = []
    opening.on_close.append(said.clear)

    def dynamo(_: ModuleType) -> Iterator[Patch]:
        """The patches that let compiled functions run as they are written."""
        frames: Any = sys.modules["torch._dynamo.eval_frame"]
        eager = frames.DynamoStance("force_eager")

        def callback(compiler: Any) -> None:
            """Called before each call of a compiled function, to choose a compiler.

            It chooses none, and warns once for each device. torch asks with False or None where it
            would compile nothing itself.
            """
            frames._stance = eager  # also where the program has set another one
            if compiler not in (False, None) and not said:
                said.append(EAGER)
                warnings.warn(EAGER, UserWarning, stacklevel=_distance())

        yield frames, "_stance", eager
        yield frames, "_callback_from_stance", callback
        yield around(torch._dynamo, "export", functools.partial(_refuse, _NO_EXPORT))
        # The module inside passes through the ledger, as it would without torch.compile.
        yield (
            frames.OptimizedModule,
            "__call__",
            lambda self, *args, **kwargs: self._wrapped_call_impl(*args, **kwargs),
        )

    # TorchScript.
    yield around(torch.jit.annotations, "try_ann_to_type", _annotation)
    for path in ("torch._C.Graph", "torch._C.Node", "torch._C.Value"):
        kind = find_internal(path, otherwise=object)
        yield from (
            around(kind, name, _shown)
            for name in ("__str__", "__repr__")
            if name in vars(kind) and kind is not object
        )
    recursive = find_internal("torch.jit._script.RecursiveScriptModule")
    for scripts in (torch.jit.ScriptModule, recursive):
        yield from (around(scripts, name, _save) for name in ("save", "save_to_buffer"))
    yield around(torch.jit, "load", _load)
    # Modules that compile; most programs never import them.
    for name, maker in {
        "torch._dynamo": dynamo,
        "torch._subclasses.fake_tensor": _fake_tensors,
        "torch._inductor.compile_fx": _inductor,
        "triton.runtime.jit": _triton,
    }.items():
        yield from when_imported(opening, name, maker)
    yield around(
        torch.library, "wrap_triton", functools.partial(_refuse, _NO_KERNELS.format("Triton"))
    )
    # Kernels that a program brings along.
    launch = functools.partial(_refuse, _NO_KERNELS.format("the jiterator"))
    yield torch._C, "_cuda_jiterator_compile_and_launch_kernel", launch
    load = functools.partial(_refuse, _NO_KERNELS.format("CUDA C++"))
    yield around(find_internal("torch.cuda._utils"), "_cuda_load_module", load)
    yield around(find_internal("torch.cuda._utils"), "_get_gpu_rtc_library", _compiler)
    yield around(
        torch.export,
        "export",
        lambda export, *args, **kwargs: export(*args, **kwargs | {"strict": False}),
    )
    yield around(find_internal("torch._ops.HigherOrderOperator"), "dispatch", _dispatch)


def _distance() -> int:
    """The number of calls from the caller up to the program's own line."""
    distance = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and from_library(frame.f_code.co_filename):
        distance = distance + 1
        frame = frame.f_back
    return distance


def _refuse(said: str, original: Any, *args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError(said)


def _compiler(find: Callable[[], Any]) -> Any:
    """CUDA's compiler, which finds mistakes in a kernel.

    Raises NotImplementedError where it is not installed: no kernel can run anyway.
    """
    try:
        return find()
    except OSError:
        return _refuse(_NO_KERNELS.format("CUDA C++"), find)


def _refuse_device(whose: str, original: Any, *args: Any, **kwargs: Any) -> Any:
    if any(tensor.device.type == "cuda" for tensor in tensors_in([args, kwargs])):
        raise NotImplementedError(_NO_KERNELS.format(whose))
    return original(*args, **kwargs)


def _inductor(module: ModuleType) -> Iterator[Patch]:
    for name in ("compile_fx", "compile_fx_inner", "compile_fx_aot"):
        yield around(module, name, functools.partial(_refuse_device, "Inductor"))


def _triton(module: Any) -> Iterator[Patch]:
    yield around(module.JITFunction, "run", functools.partial(_refuse_device, "Triton"))


def _fake_tensors(module: Any) -> Iterator[Patch]:
    """The patches of fake tensors, which torch uses to trace a program.

    A fake tensor tells C++ the name "lazy" of the device, for which C++ has a guard, and Python
    "cuda".
    """
    handlers = module._DISPATCH_META_HANDLERS
    make = module.FakeTensor.__new__
    asked = torch.ops.prim.device.default

    def device(args: Any) -> torch.device:
        found: torch.device = handlers[asked](args)
        return LAZY[found.index or 0] if found.type == "cuda" else found

    def new(cls: Any, mode: Any, inner: Any, device: Any, *args: Any, **kwargs: Any) -> Any:
        """Make a fake tensor, for which the device "lazy" is called "cuda"."""
        return make(
            cls,
            mode,
            inner,
            CUDA[device.index or 0] if device.type == "lazy" else device,
            *args,
            **kwargs,
        )

    yield module, "_DISPATCH_META_HANDLERS", {**handlers, asked: device}
    yield module.FakeTensor, "__new__", staticmethod(new)
    yield around(module.FakeTensorMode, "may_turn_const", _may_turn_constant)


def _may_turn_constant(original: Any, self: Any, tensor: Any) -> bool:
    """True if fake tensors may keep this value.

    A tensor of the device cannot be computed with while dispatch is off.
    """
    return type(tensor) not in VIRTUAL and original(self, tensor)


_current_mode: Final = find_internal(
    "torch.utils._python_dispatch._get_current_dispatch_mode", otherwise=lambda: None
)
_BODY: Final = find_internal("torch._C.DispatchKey.CompositeExplicitAutograd", otherwise=None)
_TRANSFORMS: Final = (
    find_internal("torch._C.DispatchKey.FuncTorchDynamicLayerFrontMode", otherwise=None),
    find_internal("torch._C.DispatchKey.PreDispatch", otherwise=None),
)


def _dispatch(original: Any, self: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator that takes functions, such as `torch.cond` or flex_attention.

    On device tensors its body runs, in plain operators.
    """
    if (
        key in _TRANSFORMS
        or _BODY not in self.py_kernels
        or _current_mode() is not None
        or not any(type(tensor) in VIRTUAL for tensor in tensors_in([args, kwargs]))
    ):
        return original(self, key, *args, **kwargs)
    return self.py_kernels[_BODY](*args, **kwargs)


# ---- TorchScript: it compiles torch's functions by identity, so ours must be taken for them ----


_builtin_functions: Final = find_internal("torch._C._VariableFunctions", otherwise=None)


def _find_builtin(original: Any, function: Any) -> Any:
    name = getattr(function, "__name__", "")
    ours = vars(torch).get(name) is function and hasattr(_builtin_functions, name)
    return (
        original(function) or original(unpatched(function)) or (f"aten::{name}" if ours else None)
    )


def _compile_original(original: Any, function: Any, *rest: Any) -> Any:
    return original(unpatched(function), *rest)


@torch_patches()
def _script_patches(opening: Opening) -> Iterator[Patch]:
    # Made once per process: it must hold the functions as they were.
    find_internal("torch.jit._builtins._get_builtin_table", otherwise=dict)()
    yield around(find_internal("torch.jit._builtins"), "_find_builtin", _find_builtin)
    recursive = find_internal("torch.jit._recursive")
    yield around(recursive, "try_compile_fn", _compile_original)
    yield around(recursive, "make_stub", _compile_original)
