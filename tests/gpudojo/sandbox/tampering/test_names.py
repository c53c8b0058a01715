"""Names that were replaced are found, with file and line, and put back."""

from __future__ import annotations

import builtins
import copy
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gpudojo.days.day8 import pixel_race
from gpudojo.days.day8.moving_batches import batches
from gpudojo.sandbox.tampering.findings import FindingKind, WatchFinding
from gpudojo.sandbox.tampering.names import (
    GuardedNames,
    Owner,
    Snapshot,
    owners_in_packages,
    owners_in_torch_and_python,
)
from virtual_cuda import virtual_cuda
from virtual_cuda.ledger.ledger import Ledger

Patch = pytest.MonkeyPatch


def wrap_function(function: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: function(*args, **kwargs)


LINE = wrap_function.__code__.co_firstlineno + 1


class Base:
    """A class whose method another one inherits."""

    def method(self) -> int:
        return 1


class Derived(Base):
    """A class that inherits a method, and has one of its own."""

    limit = 3

    def own_method(self) -> int:
        return 2


def module_with_names() -> types.ModuleType:
    module = types.ModuleType("example")
    vars(module).update(function=len, constant=1, table={})
    return module


def guard(*owners: Any) -> GuardedNames:
    return GuardedNames(Owner(each.__name__, each, vars(each)) for each in owners)


def find_replacements(names: GuardedNames, *snapshots: Snapshot) -> list[WatchFinding]:
    return [each.make_finding(FindingKind.REPORTED) for each in names.find_replacements(*snapshots)]


def put_back(names: GuardedNames, before: Snapshot) -> None:
    for each in names.find_replacements(before):
        each.put_back()


def replaced(name: str, file: str, line: int | None) -> WatchFinding:
    return WatchFinding(FindingKind.REPORTED, f"replaced {name}", Path(file).name, line)


def names_of(found: list[WatchFinding]) -> list[str]:
    return [each.what.removeprefix("replaced ") for each in found]


def test_a_name_of_a_module_is_found_and_put_back() -> None:
    module = module_with_names()
    names = guard(module)
    before = names.take_snapshot()
    assert find_replacements(names, before) == []
    module.function = wrap_function(len)  # type: ignore[attr-defined]
    (found,) = find_replacements(names, before)
    assert found == replaced("example.function", __file__, LINE)
    put_back(names, before)
    assert module.function is len
    assert find_replacements(names, before) == []


def test_a_deleted_name_is_found_and_put_back() -> None:
    module = module_with_names()
    names = guard(module)
    before = names.take_snapshot()
    del module.function
    assert find_replacements(names, before) == [replaced("example.function", "", None)]
    put_back(names, before)
    assert module.function is len


def test_a_method_is_found_and_put_back() -> None:
    names = guard(Derived)
    before = names.take_snapshot()
    original = Derived.own_method
    Derived.own_method = wrap_function(original)  # type: ignore[method-assign]
    assert find_replacements(names, before) == [replaced("Derived.own_method", __file__, LINE)]
    put_back(names, before)
    assert Derived.own_method is original


def test_a_method_that_hides_an_inherited_one_is_found_and_removed() -> None:
    names = guard(Derived)
    before = names.take_snapshot()
    Derived.method = wrap_function(Base.method)  # type: ignore[method-assign]
    assert find_replacements(names, before) == [replaced("Derived.method", __file__, LINE)]
    put_back(names, before)
    assert "method" not in vars(Derived)
    assert Derived().method() == 1


def test_a_name_that_hides_a_builtin_is_found_and_removed() -> None:
    module = module_with_names()
    names = guard(module)
    before = names.take_snapshot()
    module.isinstance = wrap_function(isinstance)  # type: ignore[attr-defined]
    assert names_of(find_replacements(names, before)) == ["example.isinstance"]
    put_back(names, before)
    assert "isinstance" not in vars(module)


def test_data_may_change_and_names_may_be_added() -> None:
    module = module_with_names()
    names = guard(module, Derived)
    before = names.take_snapshot()
    module.constant = 2  # type: ignore[attr-defined]
    module.added = wrap_function(len)  # type: ignore[attr-defined]
    Derived.limit = 4
    try:
        assert find_replacements(names, before) == []
        module.function = wrap_function(len)  # type: ignore[attr-defined]
        put_back(names, before)
        assert (module.constant, Derived.limit) == (2, 4)
        assert "added" in vars(module)
    finally:
        Derived.limit = 3


def test_a_value_of_any_of_the_snapshots_is_no_replacement() -> None:
    module = module_with_names()
    names = guard(module)
    first = names.take_snapshot()
    module.function = other = wrap_function(len)  # type: ignore[attr-defined]
    second = names.take_snapshot()
    assert names_of(find_replacements(names, first)) == ["example.function"]
    assert find_replacements(names, first, second) == []
    module.function = wrap_function(other)  # type: ignore[attr-defined]
    assert names_of(find_replacements(names, first, second)) == ["example.function"]


def test_what_is_only_shown_may_be_replaced(monkeypatch: Patch) -> None:
    names = GuardedNames(owners_in_torch_and_python())
    before = names.take_snapshot()
    monkeypatch.setattr(builtins, "print", wrap_function(print))
    monkeypatch.setattr(torch.Tensor, "__repr__", lambda self: "a tensor")
    monkeypatch.setattr(torch.nn.Module, "__repr__", lambda self: "a module")
    assert find_replacements(names, before) == []


# A name of torch, Python or ours, and how it is replaced.
REPLACED: dict[str, Callable[[Patch], None]] = {
    "time.monotonic": lambda p: p.setattr("time.monotonic", wrap_function(len)),
    "contextlib.ExitStack.callback": lambda p: p.setattr(
        "contextlib.ExitStack.callback", wrap_function(len), raising=False
    ),
    "torch.is_tensor": lambda p: p.setattr(torch, "is_tensor", wrap_function(torch.is_tensor)),
    "torch.cuda.memory_stats": lambda p: p.setattr("torch.cuda.memory_stats", wrap_function(len)),
    "torch.Tensor.backward": lambda p: p.setattr(torch.Tensor, "backward", wrap_function(len)),
    "torch.Tensor.device": lambda p: p.setattr(torch.Tensor, "device", "cuda", raising=False),
    "torch.optim.SGD.step": lambda p: p.setattr("torch.optim.SGD.step", wrap_function(len)),
    "torch.amp.GradScaler.step": lambda p: p.setattr(
        "torch.amp.GradScaler.step", wrap_function(len)
    ),
    "virtual_cuda.ledger.ledger.Ledger.mark": lambda p: p.setattr(
        Ledger, "mark", wrap_function(Ledger.mark)
    ),
    "gpudojo.days.day8.pixel_race.read_result": lambda p: p.delattr(pixel_race, "read_result"),
    "gpudojo.grading.call.len": lambda p: p.setattr(
        "gpudojo.grading.call.len", wrap_function(len), raising=False
    ),
}


@pytest.mark.parametrize("name", REPLACED)
def test_names_of_torch_python_and_ours_are_guarded(name: str) -> None:
    owners = [*owners_in_torch_and_python(), *owners_in_packages(("gpudojo", "virtual_cuda"))]
    names = GuardedNames(owners)
    before = names.take_snapshot()
    with pytest.MonkeyPatch.context() as patch:
        REPLACED[name](patch)
        assert names_of(find_replacements(names, before)) == [name]
    assert find_replacements(names, before) == []


def test_patches_of_an_open_device_are_no_replacement() -> None:
    names = GuardedNames(owners_in_torch_and_python())
    without_device = names.take_snapshot()
    with virtual_cuda():
        with_device = names.take_snapshot()
        assert find_replacements(names, without_device, with_device) == []
        assert find_replacements(names, without_device) != []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.Tensor, "to", wrap_function(torch.Tensor.to))
            found = find_replacements(names, without_device, with_device)
            assert names_of(found) == ["torch.Tensor.to"]
    assert find_replacements(names, without_device, with_device) == []


def test_a_function_that_torchs_compiler_replaces_itself_is_none(monkeypatch: Patch) -> None:
    """A function of torch's own, under its own name, and nobody else's."""
    names = GuardedNames(owners_in_torch_and_python())
    before = names.take_snapshot()
    code = torch.typename.__code__
    torchs_own = types.FunctionType(code, {"__name__": "torch"}, "typename")
    monkeypatch.setattr(torch, "typename", torchs_own)
    assert find_replacements(names, before) == []
    monkeypatch.setattr(torch, "is_tensor", torchs_own)
    assert names_of(find_replacements(names, before)) == ["torch.is_tensor"]
    monkeypatch.undo()
    students = types.FunctionType(wrap_function.__code__, {"__name__": "torch._dynamo"}, "typename")
    monkeypatch.setattr(torch, "typename", students)
    assert names_of(find_replacements(names, before)) == ["torch.typename"]


def test_what_honest_code_does_is_no_replacement() -> None:
    """Copies, annotations, warnings, methods of its own in torch, optimizers."""
    owners = [*owners_in_torch_and_python(), *owners_in_packages(("gpudojo", "virtual_cuda"))]
    names = GuardedNames(owners)
    before = names.take_snapshot()
    assert copy.deepcopy(batches.Masked([1], [2])) == ([1], [2])
    assert batches.Masked.__annotations__ == {}
    scope = vars(sys.modules["gpudojo.grading.call"])
    with pytest.warns(UserWarning, match="about the caller"):
        eval("warn('about the caller', stacklevel=1)", scope, {"warn": warnings.warn})
    torch.Tensor.to_sprites = lambda self: self  # type: ignore[attr-defined]
    try:
        with virtual_cuda(devices=2):
            model = torch.nn.Linear(4, 2).to("cuda")
            torch.optim.SGD(model.parameters(), lr=0.1).step()
            torch.set_default_dtype(torch.float64)
        assert find_replacements(names, before) == []
    finally:
        torch.set_default_dtype(torch.float32)
        del torch.Tensor.to_sprites  # type: ignore[attr-defined]
