"""Rules of an operator, read from the registry once, and what CUDA does where the CPU kernel raises."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch

from virtual_cuda.device.memory import OutOfMemory
from virtual_cuda.device.messages import KERNEL, SPELLED, not_implemented, out_of_memory, worded
from virtual_cuda.device.state import Place, now
from virtual_cuda.ops import elementwise, indexing, layers, linalg, sorting
from virtual_cuda.ops.placement import waits_of
from virtual_cuda.ops.registry import NOT_EMULATED, Operator, Waits, call_of, facts_of, measured

# The families whose entries need no dispatcher. `fused`, `sparse` and the device's own modules declare the others.
FAMILIES: Final = (elementwise, indexing, layers, linalg, layers, sorting)

Refuse = Callable[[Any, Any], None]


class Rules(NamedTuple):
    """How the dispatcher runs one operator."""

    call: Any  # on inner tensors
    refuse: Refuse | None  # function(args, kwargs): raises what CUDA raises before it computes
    output: Any  # function(inner, kwargs, out) -> out: the form of the results
    count_waits: Callable[[Any, Any], None] | None  # function(args, kwargs): records the waits afterwards


@functools.cache
def rules_of(func: Any) -> Rules:
    """The rules for an overload; made once, since an operator is called often."""
    facts = facts_of(func)
    return Rules(call_of(func), _refusal(func, facts), facts.output, waits_of(func))


def _refusal(func: Any, facts: Operator) -> Refuse | None:
    alert = facts.nondeterministic and _alert(facts.nondeterministic, facts.exact_integers)
    refuse = facts.refuse
    if facts.absent:
        refuse = _absent(func)
    elif refuse is None and facts.forbidden is not None:
        refuse = _by_dtype(func, facts.forbidden)
    if not alert or refuse is None:
        return alert or refuse

    def both(args: Any, kwargs: Any) -> None:
        alert(args, kwargs)
        refuse(args, kwargs)

    return both


# ---- determinism -----------------------------------------------------------------------------------------------------

_REFUSED: Final = (
    "{} does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True)'. You can "
    "turn off determinism just for this operation, or you can use the 'warn_only=True' option, if that's acceptable "
    "for your application. You can also file an issue at https://github.com/pytorch/pytorch/issues to help us "
    "prioritize adding deterministic support for this operation."
)
_WARNED: Final = (
    "{} does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True, "
    "warn_only=True)'. You can file an issue at https://github.com/pytorch/pytorch/issues to help us prioritize adding "
    "deterministic support for this operation."
)


def _alert(caller: str, exact_integers: bool) -> Refuse:
    """Alerts as CUDA does."""

    def alert(args: Any, kwargs: Any) -> None:
        if not torch.are_deterministic_algorithms_enabled():
            return
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        if exact_integers and not any(t.is_floating_point() or t.is_complex() for t in given):
            return
        if not torch.is_deterministic_algorithms_warn_only_enabled():
            raise RuntimeError(_REFUSED.format(caller))
        warnings.warn(_WARNED.format(caller), UserWarning, stacklevel=4)

    return alert


# ---- dtypes ----------------------------------------------------------------------------------------------------------

_ABSENT: Final = (
    "Could not run '{0}' with arguments from the 'CUDA' backend. This could be because the operator doesn't exist "
    "for this backend, or was omitted during the selective/custom build process (if using custom build). If you are "
    "a Facebook employee using PyTorch on mobile, please visit https://fburl.com/ptmfixes for possible resolutions. "
    "'{0}' is only available for these backends: [CPU, Meta]."
)


def _absent(func: Any) -> Refuse:
    def refuse(args: Any, kwargs: Any) -> None:
        raise NotImplementedError(_ABSENT.format(func.name()))

    return refuse


def _by_dtype(func: Any, messages: dict[str, str]) -> Refuse:
    said = {dtype: messages[spelled] for dtype, spelled in SPELLED.items() if spelled in messages}
    if "integer" in messages:
        said |= dict.fromkeys(elementwise.WHOLE, messages["integer"])
    if "ComplexFloat" in messages:
        said[torch.complex128] = messages["ComplexFloat"]

    def refuse(args: Any, kwargs: Any) -> None:
        dtype = args[0].dtype
        if dtype in said and _would_run(func, args, kwargs):
            raise worded(said[dtype], SPELLED[dtype])

    return refuse


def _would_run(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a kernel would be launched: shapes are checked before dtypes, and empty tensors need none."""
    copied = [_copied(value) for value in args]
    if any(isinstance(value, torch.Tensor) and not value.numel() for value in copied):
        return False
    try:
        func(*copied, **{key: _copied(value) for key, value in kwargs.items()})
    except Exception as error:  # a refusal of the arguments; it is raised, and translated, when the operator runs
        return any(text in str(error) for text in ("not implemented for", "can't be cast"))
    return True


def _copied(value: Any) -> Any:
    """A copy of the inner tensor, since the trial run may write into its arguments."""
    return getattr(value, "_inner", value).clone() if isinstance(value, torch.Tensor) else value


def waits_known(func: Any) -> Waits | None:
    """(kind of wait, number or function of the arguments by name) as measured on an H200, or None."""
    return facts_of(func).waits


_OUT_OF_RANGE: Final = re.compile(
    r"out of bounds|out of range|between 0 and 1|`inf`, `nan` or element < 0|invalid multinomial|nonzero value"
)


def rescue(func: Any, inner: Any, kwargs: Any, place: Place, error: Exception) -> Any:
    """What the operator gives on CUDA where the CPU raised `error`: a result, or an exception in CUDA's words."""
    text = str(error)
    if "DefaultCPUAllocator" in text or "can't allocate memory" in text:
        digits = (word for word in text.replace(",", " ").split() if word.isdigit())
        raise out_of_memory(OutOfMemory(int(next(digits, 0)), place.memory), place.index) from None
    facts = facts_of(func)
    if facts.asserts and now.gpu is not None and _OUT_OF_RANGE.search(text):
        now.gpu.asserted = True
        return _launched(func, inner, kwargs)
    if facts.emulate is not None:
        emulated = facts.emulate(func, inner, kwargs, error)
        if emulated is not NOT_EMULATED:
            return emulated
    translated = translate(func, inner, error)
    if translated is not None:
        raise translated from None
    raise error


def _launched(func: Any, inner: Any, kwargs: Any) -> Any:
    """The result that a launch gives although its kernel will assert."""
    if func._schema.is_mutable:
        return inner[0]
    if not func._schema.returns:
        return None
    return _blank(func(*_meta(inner), **{k: _meta(v) for k, v in kwargs.items() if k != "generator"}))


def _meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to("meta")
    return type(value)(_meta(item) for item in value) if isinstance(value, (list, tuple)) else value


def _blank(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.zeros(value.shape, dtype=value.dtype)
    return tuple(_blank(item) for item in value) if isinstance(value, (list, tuple)) else value


def translate(func: Any, inner: Any, error: Exception) -> Exception | None:
    """CUDA's exception for a CPU kernel's, or None where both say the same."""
    text, facts = str(error), facts_of(func)
    if facts.words is not None and (ruled := facts.words(inner, text)) is not None:
        return ruled
    kernel = KERNEL.match(text)
    spelled = kernel[2] if kernel else _first_dtype(inner)
    if facts.spoken is not None:
        said = f"{type(error).__name__}: {text}"
        words = facts.spoken.get(said) or facts.spoken.get(re.sub(rf"\b{spelled}\b", "{T}", said))
        if words is not None:
            return worded(words, spelled)
    if kernel:
        cuda = measured("refusals")["kernels"].get(kernel[1]) or usual_name(kernel[1])
        return None if cuda == kernel[1] else not_implemented(cuda, spelled)
    reworded = _reworded(text)
    return None if reworded == text else type(error)(reworded)


def _first_dtype(inner: Any) -> str:
    for value in inner:
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, torch.Tensor):
                return SPELLED.get(item.dtype, "Undefined")
    return "Undefined"


def usual_name(cpu: str) -> str:
    """The name of CUDA's kernel for the CPU's, if nothing else is known; `make_facts.py` leaves these names out."""
    cuda = cpu.replace("_vml_cpu", "_cuda").replace("_cpu", "_cuda")
    return cuda.replace("_channels_last", "_out_frame") if cuda.startswith("upsample_") else cuda


def _reworded(text: str) -> str:
    """The same sentence with the names that tensors have on the device, and without the CPU's count of arguments."""
    text = re.sub(r"^Argument #\d+: (?=Padding size)", "", text)
    text = re.sub(r"\btorch\.(?=[A-Z]\w*Tensor\b)", "torch.cuda.", text)
    text = re.sub(r"\bCPU(?=[A-Z]\w*Type\b)", "CUDA", text)
    text = text.removesuffix(" or input should be a MKLDNN tensor and weight is a dense tensor")
    return text.replace("expected m1 and m2 to have", "expected mat1 and mat2 to have")
