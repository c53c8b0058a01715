"""`torch.compile`, `torch.export` and fake tensors on the virtual device.

Nothing is compiled for it: a compiled function runs as it is written, and the ledger records what
it does. Kernels that Inductor or Triton would make for a GPU are refused.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

import torch
import torch.export

from virtual_cuda.device.state import CUDA, LAZY
from virtual_cuda.device.tensor import VIRTUAL
from virtual_cuda.internals import find_internal
from virtual_cuda.libraries import from_library
from virtual_cuda.patching import Opening, Patch, around, if_present, torch_patches
from virtual_cuda.recorder import tensors_in
from virtual_cuda.torch_api.compatibility import NAMES_OF_COMPILER_SEARCH
from virtual_cuda.torch_api.imports import patches_on_import

EAGER: Final = "torch.compile does not compile for the virtual GPU: the function runs eagerly"
_NO_EXPORT: Final = "torch._dynamo.export cannot trace on the virtual GPU; use torch.export.export"
_NO_KERNELS: Final = "the virtual GPU cannot run kernels of {}; use operators of PyTorch there"


class _EagerCompiler:
    """Lets compiled functions run as they are written, and says so once for each device."""

    def __init__(self) -> None:
        self._has_warned = False

    def forget_warning(self) -> None:
        """Warn again, for the next device."""
        self._has_warned = False

    def patches(self, dynamo: ModuleType) -> Iterator[Patch]:
        """The patches of `torch._dynamo`.

        Where this torch lacks what they need, functions are compiled as far as Inductor, which
        refuses tensors of the device.
        """
        yield around(dynamo, "export", functools.partial(_refuse_call, _NO_EXPORT))
        frames = find_internal("torch._dynamo.eval_frame")
        make_stance = find_internal("torch._dynamo.eval_frame.DynamoStance", otherwise=None)
        if make_stance is None:
            return
        eager = make_stance("force_eager")

        def choose_no_compiler(compiler: Any) -> None:
            """Called before each call of a compiled function, to choose a compiler.

            It chooses none, and warns once for each device. torch asks with False or None where it
            would compile nothing itself.
            """
            frames._stance = eager  # also where the program has set another one
            if compiler not in (False, None) and not self._has_warned:
                self._has_warned = True
                warnings.warn(EAGER, UserWarning, stacklevel=_calls_up_to_program())

        yield if_present(frames, "_stance", eager)
        yield if_present(frames, "_callback_from_stance", choose_no_compiler)
        # torch 2.12 would count compiled frames with `fullgraph=True`, and warn of none. An answer
        # that is not below 0 says that somebody counts already.
        yield if_present(frames, "set_fullgraph_compiled_frame_count", lambda count: 0)
        # The module inside passes through the ledger, as it would without torch.compile.
        optimized_module = find_internal("torch._dynamo.eval_frame.OptimizedModule")
        call_module = find_internal("torch.nn.Module._wrapped_call_impl", "torch.compile")
        yield optimized_module, "__call__", call_module


def _calls_up_to_program() -> int:
    """The number of calls from the caller up to the program's own line."""
    distance = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and from_library(frame.f_code.co_filename):
        distance += 1
        frame = frame.f_back
    return distance


def _refuse_call(message: str, original: Any, *args: Any, **kwargs: Any) -> Any:
    """Raise NotImplementedError, with this message, in the place of a function."""
    raise NotImplementedError(message)


def _find_cuda_compiler(find: Callable[[], Any]) -> Any:
    """CUDA's compiler, which finds mistakes in a kernel.

    Raises NotImplementedError where it is not installed: no kernel can run anyway.
    """
    try:
        return find()
    except OSError:
        raise NotImplementedError(_NO_KERNELS.format("CUDA C++")) from None


def _refuse_device_tensors(whose: str, original: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function that makes kernels, the `original`, and give its result.

    Raises NotImplementedError for device tensors among the arguments; `whose` kernels these are is
    said there.
    """
    tensors = tensors_in([args, kwargs])
    if any(tensor.device.type == "cuda" for tensor in tensors):
        raise NotImplementedError(_NO_KERNELS.format(whose))
    return original(*args, **kwargs)


def _inductor_patches(module: ModuleType) -> Iterator[Patch]:
    """The patches of Inductor, which compiles for the host as usual."""
    for name in ("compile_fx", "compile_fx_inner", "compile_fx_aot"):
        yield around(module, name, functools.partial(_refuse_device_tensors, "Inductor"))


def _triton_patches(module: Any) -> Iterator[Patch]:
    """The patch of Triton's kernels."""
    yield around(module.JITFunction, "run", functools.partial(_refuse_device_tensors, "Triton"))


def _fake_tensor_patches(module: Any) -> Iterator[Patch]:
    """The patches of fake tensors, which torch uses to trace a program.

    A fake tensor tells C++ the name "lazy" of the device, for which C++ has a guard, and Python
    "cuda".
    """
    handlers = getattr(module, "_DISPATCH_META_HANDLERS", {})  # none where this torch lacks it
    make_fake = module.FakeTensor.__new__
    device_question = torch.ops.prim.device.default

    def device_for_cpp(args: Any) -> torch.device:
        """The device of a fake tensor, by the name that C++ has for it."""
        device: torch.device = handlers[device_question](args)
        if device.type == "cuda":
            return LAZY[device.index or 0]
        return device

    def new_fake(cls: Any, mode: Any, inner: Any, device: Any, *args: Any, **kwargs: Any) -> Any:
        """Make a fake tensor, for which the device "lazy" is called "cuda".

        Raises what torch's own constructor raises.
        """
        if device.type == "lazy":
            device = CUDA[device.index or 0]
        return make_fake(cls, mode, inner, device, *args, **kwargs)

    if device_question in handlers:
        yield module, "_DISPATCH_META_HANDLERS", {**handlers, device_question: device_for_cpp}
    yield module.FakeTensor, "__new__", staticmethod(new_fake)
    # In older releases, torch 2.11 the last, it makes a tensor of the device where dispatch is off.
    yield if_present(module, "init_gpu_context", lambda device: None)
    yield around(module.FakeTensorMode, "may_turn_const", _may_turn_constant)


def _may_turn_constant(original: Any, self: Any, tensor: Any) -> bool:
    """True if fake tensors may keep this value: torch, the `original`, allows it.

    A tensor of the device cannot be computed with while dispatch is off, so it may not.
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
# To C++ a device tensor has the first of these keys; a program knows it by the second.
_NAMES_OF_AUTOGRAD: Final = (
    find_internal("torch._C.DispatchKey.AutogradLazy", otherwise=None),
    find_internal("torch._C.DispatchKey.AutogradCUDA", otherwise=None),
)


def _run_higher_order(original: Any, operator: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator that takes functions, such as `torch.cond` or flex_attention.

    On device tensors its body runs, in plain operators. Inside modes and transforms, and where it
    has no such body, torch does what it always does, by `original`, with the operator's kernel for
    CUDA's autograd if it has one. Gives and raises what these do.
    """
    of_lazy, of_cuda = _NAMES_OF_AUTOGRAD
    if key == of_lazy and of_cuda in operator.py_kernels:
        return original(operator, of_cuda, *args, **kwargs)
    tensors = tensors_in([args, kwargs])
    on_device = any(type(tensor) in VIRTUAL for tensor in tensors)
    is_transformed = key in _TRANSFORMS or _current_mode() is not None
    if not on_device or is_transformed or _BODY not in operator.py_kernels:
        return original(operator, key, *args, **kwargs)
    return operator.py_kernels[_BODY](*args, **kwargs)


_flatten: Final = find_internal("torch.utils._pytree.tree_flatten", "scans on the device")
_unflatten: Final = find_internal("torch.utils._pytree.tree_unflatten", "scans on the device")


def _run_scan(original: Any, run: Any, combine: Any, *operands: Any) -> Any:
    """Run what `scan` and `associative_scan` would compile; on device tensors eagerly.

    `run(combine, *operands)` is theirs; the last of the operands is the list that is scanned. Its
    results are a flat list, to which torch's compiler gives the structure that `combine` returns:
    so does this. `original` runs for the host. Gives and raises what `combine` leads to.
    """
    if not any(type(tensor) in VIRTUAL for tensor in tensors_in(operands)):
        return original(run, combine, *operands)
    structures = []

    def combine_flat(*args: Any) -> Any:
        """The leaves of what `combine` returns, whose structure is noted."""
        leaves, structure = _flatten(combine(*args))
        structures.append(structure)
        return leaves

    results = run(combine_flat, *operands)
    if not structures:  # one element alone is combined with nothing
        combine_flat(*operands[-1], *operands[-1])
    return _unflatten(results, structures[0])


def _scan_patches(module: ModuleType) -> Iterator[Patch]:
    """The patch of what `scan` or `associative_scan` compiles, in the module of either."""
    yield around(module, "_maybe_compile_and_run_fn", _run_scan)


def _export_unstrictly(original: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.export.export` without `torch._dynamo`, which cannot trace on the device.

    Calls that function, the `original`, with `strict=False`; gives and raises what it does.
    """
    kwargs["strict"] = False
    return original(*args, **kwargs)


@torch_patches()
def _compile_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of `torch.compile`, `torch.export` and of what makes kernels.

    Modules that are imported later are patched then. `opening` is told to forget the warning when a
    device closes, so that the next one warns again.
    """
    # Modules that compile; most programs never import them.
    eager = _EagerCompiler()
    opening.on_close.append(eager.forget_warning)
    makers = {
        "torch._dynamo": eager.patches,
        "torch._subclasses.fake_tensor": _fake_tensor_patches,
        "torch._inductor.compile_fx": _inductor_patches,
        "triton.runtime.jit": _triton_patches,
        "torch._higher_order_ops.associative_scan": _scan_patches,
        "torch._higher_order_ops.scan": _scan_patches,
    }
    for name, maker in makers.items():
        yield from patches_on_import(opening, name, maker)
    yield around(torch.export, "export", _export_unstrictly)
    # Kernels that a program brings along.
    refuse_triton = functools.partial(_refuse_call, _NO_KERNELS.format("Triton"))
    yield around(torch.library, "wrap_triton", refuse_triton)
    refuse_launch = functools.partial(_refuse_call, _NO_KERNELS.format("the jiterator"))
    yield torch._C, "_cuda_jiterator_compile_and_launch_kernel", refuse_launch
    refuse_load = functools.partial(_refuse_call, _NO_KERNELS.format("CUDA C++"))
    yield around(find_internal("torch.cuda._utils"), "_cuda_load_module", refuse_load)
    for name in NAMES_OF_COMPILER_SEARCH:
        yield around(find_internal("torch.cuda._utils"), name, _find_cuda_compiler)
    # Operators that take functions.
    yield around(find_internal("torch._ops.HigherOrderOperator"), "dispatch", _run_higher_order)
