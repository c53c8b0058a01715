"""What the dispatcher does before and after each operator, made from the operator's registry entry."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch

from virtual_cuda.device.messages import SPELLED, worded
from virtual_cuda.ops import elementwise, indexing, layers, linalg, losses, sorting
from virtual_cuda.ops.registry import Operator, Waits, call_of, facts_of
from virtual_cuda.ops.syncs import waits_of

# The families whose entries need no dispatcher. `fused`, `sparse` and the device's own modules declare the others.
FAMILIES: Final = (elementwise, indexing, layers, linalg, losses, sorting)

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
