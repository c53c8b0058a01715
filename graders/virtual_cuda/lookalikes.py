"""Makes functions look like the functions of torch that they replace.

A replacement has the name, the documentation, the module and the signature of torch's function. It
has no `__wrapped__`, and leads to no object of the device: who follows that would go around it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType, ModuleType
from typing import Any, Final

from virtual_cuda.identity import identity

_PLAIN: Final = frozenset({int, float, str, type(None)})


class Lookalikes:
    """Makes replacements for functions of torch.

    What is one function in two modules of torch is one here, too.
    """

    def __init__(self) -> None:
        # By the identities of the original and of what the new value is made of: the new value,
        # which is kept so that nothing else gets its identity, and its lookalike.
        self._known: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def make(self, owner: Any, original: Any, value: Any) -> Any:
        """The value to put in the place of `original`, an attribute of `owner`.

        A value that replaces no function is returned as it is, but a plain function that calls it
        stands for a method or a partial function: it leads to no object of the device. Others are
        remembered: the same value for the same original gives the same lookalike.
        """
        built_in = type(original) is BuiltinFunctionType and isinstance(owner, ModuleType)
        if not built_in and type(original) not in (FunctionType, MethodDescriptorType):
            return _without_object(value)
        key = (identity(original), *_identities_of_parts(value))
        if key not in self._known:
            module = None
            if built_in:
                module = owner.__name__
            self._known[key] = (value, _make_lookalike(original, value, module))
        return self._known[key][1]


def _make_lookalike(original: Any, value: Any, module: str | None) -> Any:
    """A value that does what `value` does; if it is a function, it looks like `original`.

    `module` is where pickle finds a function that is built in; None for all others.
    """
    # Not at the top: it imports torch, and patches are declared also where nothing needs that.
    from virtual_cuda.function_modes import telling_modes, tells_modes

    lookalike = _without_object(value)
    if type(lookalike) is not FunctionType:
        return lookalike
    # The same function may stand for others of torch's, too, and has only one name.
    if not _refers_to_itself(lookalike):
        if tells_modes(original):
            lookalike = telling_modes(lookalike)
        elif lookalike is value:
            lookalike = _copy_function(lookalike)
    _copy_description(lookalike, original, module)
    return lookalike


def _without_object(value: Any) -> Any:
    """A function that leads to no object of the device's.

    A method or a partial function leads to such objects, so a plain function is returned that calls
    it. Any other value is returned as it is.
    """
    if isinstance(value, MethodType):
        inner: Any = value
        if isinstance(value.__self__, (type, ModuleType)):
            return value
    elif isinstance(value, functools.partial):
        inner = value.func
        if _has_plain_arguments(value):
            return value  # it leads to nothing, and can be pickled
    else:
        return value

    def call(*args: Any, **kwargs: Any) -> Any:
        return value(*args, **kwargs)

    call.__name__ = getattr(inner, "__name__", "call")
    call.__qualname__ = call.__name__
    call.__doc__ = inner.__doc__
    return call


def _has_plain_arguments(value: functools.partial[Any]) -> bool:
    """True for a partial of a plain function, with numbers and texts by position only."""
    if type(value.func) is not FunctionType or value.keywords:
        return False
    return all(type(argument) in _PLAIN for argument in value.args)


def _identities_of_parts(value: Any) -> Iterator[int]:
    """The identities of what a function is made of: its code, its defaults and its variables.

    Two functions with the same ones do the same.
    """
    if isinstance(value, MethodType):
        yield identity(value.__func__)
        yield identity(value.__self__)
    elif type(value) is FunctionType:
        yield identity(value.__code__)
        for default in value.__defaults__ or ():
            yield identity(default)
        for default in (value.__kwdefaults__ or {}).values():
            yield identity(default)
        for cell in value.__closure__ or ():
            variable = cell.cell_contents
            if isinstance(variable, MethodType):
                yield from _identities_of_parts(variable)
            else:
                yield identity(variable)
    else:
        yield identity(value)


def _refers_to_itself(function: FunctionType) -> bool:
    """True if a function is one of its own variables.

    It needs that to hand itself to a `__torch_function__`: it was made for one function of torch.
    """
    return any(cell.cell_contents is function for cell in function.__closure__ or ())


def _copy_function(function: FunctionType) -> Any:
    """A function that does what this one does and can be given another name."""
    # A copy would have to be given these defaults, and a sandbox takes that for tampering.
    if function.__kwdefaults__:

        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return call
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__dict__.update(vars(function))
    return copy


def _copy_description(function: FunctionType, original: Any, module: str | None) -> None:
    """Give a function the name, documentation and signature of one of torch's, the `original`.

    `module` is where pickle finds a function that is built in; None for all others.
    """
    function.__name__ = original.__name__
    function.__doc__ = original.__doc__
    if module is None:
        function.__qualname__ = original.__qualname__
        function.__module__ = getattr(original, "__module__", None) or function.__module__
    else:
        function.__qualname__ = original.__name__
        function.__module__ = module
    if type(original) is FunctionType:
        function.__annotations__ = original.__annotations__
        signature = _signature_of(original)
        if signature is not None:
            function.__signature__ = signature  # type: ignore[attr-defined]


@functools.cache
def _signature_of(function: FunctionType) -> inspect.Signature | None:
    """The signature of a function; None where it claims to have one that Python does not know."""
    with contextlib.suppress(ValueError, TypeError):
        return inspect.signature(function)
    return None
