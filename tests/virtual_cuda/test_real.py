"""The recorder for real devices, on the one device every machine has, and on CUDA where there is
one.
"""

from __future__ import annotations

import gc
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from virtual_cuda import real as real_observer
from virtual_cuda import real_device, virtual_cuda
from virtual_cuda.errors import NoSuchDevice
from virtual_cuda.ledger.ledger import Ledger
from virtual_cuda.ledger.questions import operations, per_line
from virtual_cuda.real import WARNING, CudaWaits

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def train(device: str) -> float:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    batches = [(torch.rand(5, 6), torch.randint(0, 3, (5,))) for _ in range(2)]
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
    total = 0.0
    for x, y in batches:
        x = x.to(device)
        y = y.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total


def read(device: str) -> list[Any]:
    x = torch.arange(6.0, device=device).reshape(2, 3)
    values = [x.sum().item(), bool((x > 3).any()), x.tolist(), len(torch.nonzero(x)), len(x[x > 2])]
    values += [torch.equal(x, x + 0), len(torch.unique(x)), len(torch.masked_select(x, x > 1))]
    return values


def infer(device: str) -> float:
    torch.manual_seed(0)
    model = (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
        .to(device)
        .eval()
    )
    with torch.inference_mode():
        return model(torch.zeros(2, 3, 6, 6, device=device)).sum().item()


def cast(device: str) -> torch.dtype:
    model = nn.Linear(4, 4).to(device)
    x = torch.ones(2, 4, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        y = model(x)
    y.sum().backward()
    return y.dtype


# Copies are made where there are two places; the virtual device detaches where C++ does so unseen.
ONLY_THERE = ("aten._to_copy.default", "aten.copy_.default", "aten.detach.default")


def answers(ledger: Ledger, device: str) -> dict[str, Any]:
    """What must be alike on every device: all but what depends on there being two places."""
    waits = ledger.syncs(besides=["copy"])
    spans = [*ledger.forwards(), *ledger.backward_passes(), *ledger.optimizer_steps()]
    return {
        "order": ledger.training_order(),
        "waits": Counter(wait.what for wait in waits),
        "lines": per_line([*waits, *spans]),
        "graphs": len(ledger.forwards_building_graph()),
        "inside": [
            Counter(o.name for o in operations(ledger.within(span)) if o.name not in ONLY_THERE)
            for span in spans
        ],
        "autocast": (len(ledger.forwards_under_autocast()), len(ledger.backwards_under_autocast())),
        "devices": {o.device for o in ledger.operations()} == {device},
    }


@pytest.mark.parametrize("program", [train, read, infer, cast])
def test_the_cpu_answers_as_the_virtual_device_does(program: Callable[[str], Any]) -> None:
    with real_device("cpu") as real:
        on_cpu = program("cpu")
    with virtual_cuda() as virtual:
        assert program("cuda") == on_cpu
    assert answers(real.ledger, "cpu") == answers(virtual.ledger, "cuda:0")


@needs_gpu
@pytest.mark.parametrize("program", [train, read, infer])
def test_transfers_and_waits_on_cuda(program: Callable[[str], Any]) -> None:
    with real_device("cuda") as real:
        program("cuda")
    # Not compared with the virtual device here: a process that uses the real one cannot open it.
    assert real.ledger.transfers_to_device() or program is not train
    assert real.ledger.syncs()
    assert all(record.site is not None and record.site.file == __file__ for record in real.ledger)


@needs_gpu
def test_a_convolution_does_not_depend_on_the_size_of_the_batch() -> None:
    before = torch.backends.cudnn.allow_tf32
    model = nn.Conv2d(3, 2, 1)
    pictures = torch.rand(10, 3, 16, 16)
    with torch.no_grad():
        right = model(pictures)
        with real_device("cuda"):
            there = model.to("cuda")
            whole = there(pictures.to("cuda")).cpu()
            parts = torch.cat([there(part.to("cuda")).cpu() for part in pictures.split(4)])
    torch.testing.assert_close(whole, right, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(parts, right, rtol=1e-5, atol=1e-6)
    assert torch.backends.cudnn.allow_tf32 == before


def test_an_operation_says_how_it_ran() -> None:
    with real_device("cpu") as real:
        x = torch.ones(256, requires_grad=True)
        _ = x * 2
        with torch.no_grad():
            _ = x + 1
        with torch.inference_mode():
            _ = x - 1
    (mul,), (add,), (sub,) = (real.ledger.operations(name) for name in ("mul", "add", "sub"))
    assert [(o.grad, o.inference) for o in (mul, add, sub)] == [
        (True, False),
        (False, False),
        (False, True),
    ]
    assert (mul.bytes, mul.device, mul.autocast) == (1024, "cpu", None)
    assert mul.site.line + 2 == add.site.line


def test_a_factory_is_written_as_what_it_is_made_of() -> None:
    with real_device("cpu") as real:
        torch.zeros(3)
        torch.full((2,), 7.0)
    names = [o.name for o in real.ledger.operations()]
    assert names == [
        "aten.empty.memory_format",
        "aten.zero_.default",
        "aten.empty.memory_format",
        "aten.fill_.Scalar",
    ]


def test_live_bytes_follow_the_storages() -> None:
    with real_device("cpu") as real:
        x = torch.empty(1000)
        y = x.view(10, 100)  # the same storage
        del x
        gc.collect()
        z = y + 1
        del y, z
        w = torch.empty(10)
    assert [o.live for o in real.ledger.operations()] == [4000, 4000, 8000, 40]
    assert (real.ledger.peak_bytes("cpu"), real.ledger.allocated_bytes("cpu")) == (8000, 8040)
    assert w.shape == (10,)


def test_the_loaders_own_work_is_not_the_students() -> None:
    loader = DataLoader(TensorDataset(torch.rand(6, 2)), batch_size=2, shuffle=True)
    with real_device("cpu") as real:
        for (x,) in loader:
            x.sum()
    assert dict(real.ledger.operation_counts()) == {"aten.sum.default": 3}
    assert not real.ledger.syncs()


def test_threads_are_watched_and_forgotten_when_the_device_closes() -> None:
    go_on = threading.Event()

    def work() -> None:
        torch.ones(2).add(1)
        go_on.wait(10)
        torch.ones(2).mul(2)

    with real_device("cpu") as real:
        thread = threading.Thread(target=work)
        thread.start()
        while not real.ledger.operations("add"):
            pass
    go_on.set()
    thread.join()
    assert real.ledger.operations("add")
    assert not real.ledger.operations("mul")


def test_an_error_passes_and_everything_is_put_back() -> None:
    before = (
        torch.Tensor.tolist,
        threading.Thread.run,
        DataLoader.__iter__,
        torch.accelerator.synchronize,
    )
    filters = list(warnings.filters)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), real_device("cpu"):
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert before == (
        torch.Tensor.tolist,
        threading.Thread.run,
        DataLoader.__iter__,
        torch.accelerator.synchronize,
    )
    assert warnings.filters == filters
    assert not torch._C._len_torch_dispatch_stack()


def test_a_device_that_cannot_open_leaves_nothing() -> None:
    for kind in ("tpu", "cuda", "mps"):
        if (kind == "cuda" and torch.cuda.is_available()) or (
            kind == "mps" and torch.backends.mps.is_available()
        ):
            continue
        with pytest.raises(NoSuchDevice), real_device(kind):
            pass
    with real_device("cpu"):
        pass


# CUDA says that it was waited for by a warning; its counting is tried here without a GPU.


class Pretending(CudaWaits):
    """CUDA's sync debug mode, pretended: an operator warns as often as it is told to."""

    def __init__(self) -> None:
        self.tally = real_observer._Tally()
        self.students = 0
        self.modes: list[int] = []
        self.set_mode = self.modes.append
        self.binding = torch.zeros(1, dtype=torch.float64)

    def waiting(self, times: int) -> Any:
        def operator() -> str:
            for _ in range(times):
                warnings.warn(WARNING, UserWarning, stacklevel=1)
            warnings.warn("the operator's own", UserWarning, stacklevel=1)
            return "result"

        return operator


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Pretending:
    pretending = Pretending()
    for owner, name, value in pretending.patches():
        if owner is warnings:
            monkeypatch.setattr(owner, name, value)
    return pretending


def test_waits_are_counted_and_the_students_warnings_pass(waits: Pretending) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert waits.run_and_count(waits.waiting(3), (), {}) == ("result", 3)
        assert waits.run_and_count(waits.waiting(0), (), {}) == ("result", 0)
        warnings.warn("the student's own", UserWarning, stacklevel=1)
    assert [str(w.message) for w in seen] == [
        "the operator's own",
        "the operator's own",
        "the student's own",
    ]
    assert waits.modes == [1, 0, 1, 0]


@pytest.mark.parametrize("action", ["ignore", "once", "default"])
def test_the_students_filters_do_not_change_the_count(waits: Pretending, action: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter(action)
        if action != "ignore":
            warnings.filterwarnings("ignore", message="the operator's own")
        kept = list(warnings.filters)
        assert [waits.run_and_count(waits.waiting(2), (), {})[1] for _ in range(3)] == [2, 2, 2]
        assert warnings.filters == kept


def test_an_operator_that_raises_leaves_the_mode_off(waits: Pretending) -> None:
    def broken() -> None:
        raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        waits.run_and_count(broken, (), {})
    assert waits.modes == [1, 0]
    assert waits.tally.count is None


def test_what_the_student_sets_the_debug_mode_to_is_honoured(waits: Pretending) -> None:
    waits.report_wait()
    waits.set_students_mode("warn")
    with pytest.warns(UserWarning, match=WARNING):
        waits.report_wait()
    waits.set_students_mode(2)
    with pytest.raises(RuntimeError, match=WARNING):
        waits.report_wait()
    with pytest.raises(RuntimeError, match="invalid value of debug_mode"):
        waits.set_students_mode("loud")
