"""Forward and backward passes, optimizer and scaler calls give the same rows on every device."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from virtual_cuda import open_device, recorder
from virtual_cuda.ledger.rows import OperationRow
from virtual_cuda.recorder import devices_of, site


@pytest.fixture(params=["virtual", "cpu"])
def opened(request: pytest.FixtureRequest) -> Iterator[Any]:
    with open_device(request.param) as opened:
        yield opened


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("broken")


class BrokenSGD(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise KeyError("broken")


def test_one_training_step_in_order(opened: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).to(opened.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.rand(2, 4, device=opened.device)).sum().backward()
    optimizer.step()
    ledger = opened.ledger
    assert ledger.training_order() == ("forward", "backward", "step")
    assert [(f.module, f.depth) for f in ledger.forwards(top_level_only=False)] == [
        ("Sequential", 0),
        ("Linear", 1),
        ("ReLU", 1),
    ]
    assert ledger.optimizer_steps()[0].optimizer == "SGD"
    assert all(r.site.file == __file__ for r in ledger)
    assert [len(ledger.within(pass_)) > 3 for pass_ in ledger.backward_passes()] == [True]


def test_a_forward_names_the_devices_of_parameters_and_inputs(opened: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    model(torch.rand(2, 4))
    model.to(opened.device)
    model(torch.rand(2, 4, device=opened.device))
    first, second = opened.ledger.forwards()
    assert (first.devices, second.devices) == (("cpu",), (str(opened.device),))
    if opened.kind == "virtual":
        with pytest.raises(RuntimeError, match="same device"):
            model(torch.rand(2, 4))
        assert set(opened.ledger.forwards_across_devices()[0].devices) == {"cpu", "cuda:0"}


def test_devices_are_found_in_nested_inputs_and_in_layers() -> None:
    outer = nn.Sequential(nn.Linear(2, 2, device="meta"))
    assert devices_of(outer, (), {}) == (torch.device("meta"),)
    assert devices_of(nn.ReLU(), ({"x": [torch.zeros(1)]},), {}) == (torch.device("cpu"),)
    assert set(devices_of(outer, (), {"x": torch.zeros(1)})) == {
        torch.device("cpu"),
        torch.device("meta"),
    }


def test_a_pass_that_raises_is_closed(opened: Any) -> None:
    with pytest.raises(KeyError):
        Broken()(torch.zeros(1))
    with pytest.raises(RuntimeError):
        torch.zeros((), device=opened.device).backward()
    spans = [*opened.ledger.forwards(), *opened.ledger.backward_passes()]
    assert [span.end is not None for span in spans] == [True, True]


def test_a_step_that_raises_is_closed_and_the_next_one_is_not_inside_it(opened: Any) -> None:
    parameter = nn.Parameter(torch.zeros(2, device=opened.device))
    with pytest.raises(KeyError):
        BrokenSGD([parameter]).step()
    parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD([parameter]).step()
    first, second = opened.ledger.optimizer_steps()
    assert first.end == first.index + 1
    assert len(opened.ledger.within(second)) > 0


def test_nothing_is_left_on_an_optimizer(opened: Any) -> None:
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter])
    before = set(vars(optimizer))
    optimizer.step()
    assert set(vars(optimizer)) == before


def test_scaler_calls_are_written(opened: Any) -> None:
    parameter = nn.Parameter(torch.ones(2, device=opened.device))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scaler = torch.amp.GradScaler(opened.device.type)
    scaler.scale(parameter.sum()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    expected = (
        "scaler.scale",
        "backward",
        "scaler.unscale_",
        "scaler.step",
        "step",
        "scaler.update",
    )
    assert opened.ledger.training_order() == expected


def test_a_recomputed_forward_belongs_to_the_backward_that_asked_for_it(opened: Any) -> None:
    layer = nn.Linear(3, 3).to(opened.device)
    checkpoint(layer, torch.rand(2, 3, device=opened.device), use_reentrant=False).sum().backward()
    first, second = opened.ledger.forwards(top_level_only=False)
    assert (first.depth, second.depth) == (0, 1)
    assert second.site == opened.ledger.backward_passes()[0].site


def test_patched_functions_are_restored() -> None:
    before = (nn.Module.__call__, torch.autograd.backward, torch.amp.GradScaler.step)
    region = torch.autograd.profiler.record_function.__exit__
    for kind in ("virtual", "cpu"):
        with pytest.raises(ZeroDivisionError), open_device(kind):  # type: ignore[arg-type]
            1 / (
                nn.Module.__call__ is before[0]
            )  # False, and so an error, if it is replaced meanwhile
    assert before == (nn.Module.__call__, torch.autograd.backward, torch.amp.GradScaler.step)
    assert torch.autograd.profiler.record_function.__exit__ is region


def asking(filename: str, **names: Any) -> dict[str, Any]:
    """The names of a module with a function that asks for its line."""
    names["site"] = site
    exec(compile("def ask():\n    return site()", filename, "exec"), names)
    return names


def test_the_line_is_found_while_another_thread_asks_and_after_an_interrupt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []

    def interrupted(filename: str) -> bool:
        other = threading.Thread(target=lambda: found.append(asking(__file__)["ask"]()))
        other.start()
        other.join()
        raise KeyboardInterrupt

    ask = asking("/somewhere/interrupted.py")["ask"]
    assert recorder.student_file[__file__]  # known before, so that the thread is not interrupted
    monkeypatch.setattr(recorder, "from_library", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ask()
    monkeypatch.undo()
    assert [code.co_filename for code, _ in found] == [__file__]
    assert ask()[0] is ask.__code__
    assert site()[0] is sys._getframe().f_code


def test_the_search_for_lines_keeps_nothing_of_a_student() -> None:
    class Held:
        pass

    names = asking("/somewhere/student.py", held=Held())
    assert names["ask"]()[0] is names["ask"].__code__
    held = weakref.ref(names["held"])
    del names
    gc.collect()  # the function and its names refer to each other
    assert held() is None


def test_a_backward_pass_that_raises_keeps_no_memory() -> None:
    gc.collect()
    gc.disable()
    try:
        with open_device("virtual"):
            images = torch.rand(2, 1, 4, 4, device="cuda")
            loss = nn.Conv2d(1, 2, 3, device="cuda")(images).sum()
            images.add_(1)
            with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
                loss.backward()
            del images, loss, caught
            assert torch.cuda.memory_allocated() == 0
    finally:
        gc.enable()


def test_lines_of_student_code_inside_of_passes_are_its_own() -> None:
    """An activation and a hook that a student wrote, called by torch inside of a forward and a
    backward pass.
    """

    def activation(x: torch.Tensor) -> torch.Tensor:
        return x.tanh()

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        return gradient.sin()

    with open_device("virtual") as opened:
        layer = nn.TransformerEncoderLayer(8, 2, 8, 0.0, activation).to("cuda")
        out = layer(torch.rand(3, 2, 8, device="cuda"))
        out.register_hook(hook)
        out.sum().backward()
        (out * 2).cos()
        rows = {row.name: row.code for row in opened.ledger.rows if isinstance(row, OperationRow)}
    here = sys._getframe().f_code
    assert rows["aten.tanh.default"] is activation.__code__
    assert rows["aten.sin.default"] is hook.__code__
    assert {
        rows[f"aten.{name}.default"] for name in ("native_layer_norm", "tanh_backward", "cos")
    } == {here}
