"""The machine looks as if it had GPUs: selection, streams, events, synchronisation, two devices,
threads.
"""

from __future__ import annotations

import copy
import pickle
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from virtual_cuda import VirtualGpu, virtual_cuda
from virtual_cuda.clock.gpu_models import gpus


def test_what_the_device_says_about_itself() -> None:
    with virtual_cuda(devices=2, memory="3 GiB", name="Practice GPU"):
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 2
        assert torch.cuda.current_device() == 0
        assert torch.cuda.get_device_name(1) == "Practice GPU"
        assert torch.cuda.get_device_properties(0).total_memory == 3 << 30
        assert torch.cuda.is_initialized()
        assert torch.cuda.is_bf16_supported()
        assert torch.cuda.get_device_capability() >= (7, 0)
        assert not torch.backends.mps.is_available()
        assert torch.backends.cuda.is_built()


USES: dict[str, Callable[[], object]] = {
    "a tensor": lambda: torch.ones(1, device="cuda"),
    "a module": lambda: torch.nn.Linear(1, 1).cuda(),
    "the current device": lambda: torch.cuda.current_device(),
    "a device chosen": lambda: torch.cuda.set_device(0),
    "properties": lambda: torch.cuda.get_device_name(),
    "pinned memory": lambda: torch.ones(1).pin_memory(),
    "a wait": lambda: torch.cuda.synchronize(),
    "init": lambda: torch.cuda.init(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_cuda_starts_with_its_first_use(use: Callable[[], object]) -> None:
    for _ in range(2):
        with virtual_cuda():
            assert torch.cuda.is_available()
            assert torch.cuda.device_count() == 1
            torch.manual_seed(1)
            torch.cuda.manual_seed_all(1)
            assert not torch.cuda.is_initialized()
            use()
            assert torch.cuda.is_initialized()


@pytest.mark.usefixtures("gpu")
def test_the_ways_to_choose_a_device() -> None:
    chosen = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    assert torch.ones(2, device=chosen).is_cuda
    accelerator = (
        torch.accelerator.current_accelerator()
        if torch.accelerator.is_available()
        else torch.device("cpu")
    )
    assert accelerator == torch.device("cuda")
    assert torch.ones(2).to(accelerator).device == torch.device("cuda:0")
    assert (torch.accelerator.device_count(), torch.accelerator.current_device_index()) == (1, 0)
    torch.accelerator.synchronize()
    x = torch.ones(2, device="cuda")
    assert x.to("cuda") is x
    assert x.cuda() is x
    assert (x.get_device(), x.type(), x.is_cpu) == (0, "torch.cuda.FloatTensor", False)
    assert torch.device("cuda") != torch.device("cuda:0") == x.device


@pytest.mark.usefixtures("gpu")
def test_default_devices() -> None:
    torch.set_default_device("cuda")
    try:
        assert torch.ones(2).is_cuda
        assert torch.tensor([1.0]).is_cuda
        assert nn.Linear(2, 2).weight.is_cuda
    finally:
        torch.set_default_device(None)
    with torch.device("cuda"):
        assert torch.arange(3).is_cuda
    assert not torch.ones(2).is_cuda


FACTORIES: dict[str, Any] = {
    "randn": lambda d: torch.randn(3, 3, device=d),
    "tensor": lambda d: torch.tensor([1.0, 2.0], device=d),
    "as_tensor": lambda d: torch.as_tensor([1, 2], device=d),
    "arange": lambda d: torch.arange(4, device=d),
    "full": lambda d: torch.full((2,), 3.0, device=d),
    "eye": lambda d: torch.eye(3, device=d),
    "linspace": lambda d: torch.linspace(0, 1, 5, device=d),
    "randint": lambda d: torch.randint(0, 5, (3,), device=d),
    "randperm": lambda d: torch.randperm(5, device=d),
    "empty_like": lambda d: torch.empty_like(torch.ones(2), device=d),
    "new_zeros": lambda d: torch.ones(2).new_zeros(3, device=d),
    "normal": lambda d: torch.normal(0.0, 1.0, (3,), device=d),
    "hann_window": lambda d: torch.hann_window(4, device=d),
    "tril_indices": lambda d: torch.tril_indices(3, 3, device=d),
    "generator": lambda d: torch.rand(
        2, generator=torch.Generator(device=d).manual_seed(1), device=d
    ),
    "to with dtype": lambda d: torch.ones(3).to(d, torch.float16),
}


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda"), 0], ids=str)
@pytest.mark.parametrize("name", FACTORIES)
def test_every_factory_takes_every_name_of_the_device(name: str, device: Any) -> None:
    assert FACTORIES[name](device).device == torch.device("cuda:0")


DRAWS: dict[str, Any] = {
    "rand into out": lambda generator, there: torch.rand((2, 2), generator=generator, out=there),
    "randn into out": lambda generator, there: torch.randn(2, 2, generator=generator, out=there),
    "normal around a tensor": lambda generator, there: torch.normal(
        there, 1.0, generator=generator
    ),
    "normal with a tensor of deviations": lambda generator, there: torch.normal(
        0.0, there, generator=generator
    ),
}


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", DRAWS)
def test_a_generator_belongs_where_the_values_go(name: str) -> None:
    """Nobody names the device: it is that of the tensor written into or drawn around, as on
    hardware.
    """
    there = torch.ones(2, 2, device="cuda")
    assert DRAWS[name](torch.Generator(device="cuda").manual_seed(3), there).is_cuda
    with pytest.raises(
        RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"
    ):
        DRAWS[name](torch.Generator().manual_seed(3), there)
    with pytest.raises(
        RuntimeError, match="Expected a 'cpu' device type for generator but found 'cuda'"
    ):
        DRAWS[name](torch.Generator(device="cuda"), torch.ones(2, 2))


@pytest.mark.usefixtures("gpu")
def test_seeds_repeat() -> None:
    def draw() -> list[float]:
        found: list[float] = torch.randn(3, device="cuda").tolist()
        return found

    torch.manual_seed(3)
    first = draw()
    torch.cuda.manual_seed_all(3)
    assert draw() == first
    state = torch.cuda.get_rng_state()
    second = draw()
    torch.cuda.set_rng_state(state)
    assert draw() == second != first


@pytest.mark.usefixtures("gpu")
def test_mistakes_of_every_beginner() -> None:
    model = nn.Linear(3, 2).cuda()
    x = torch.ones(1, 3)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        model(x)
    with pytest.raises(
        RuntimeError,
        match=r"Input type \(torch.FloatTensor\) and weight type \(torch.cuda.FloatTensor\)",
    ):
        nn.Conv2d(1, 1, 3).cuda()(torch.ones(16, 1, 8, 8))
    with pytest.raises(
        TypeError, match=r"can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu"
    ):
        model(x.cuda()).detach().numpy()
    with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same device"):
        x[torch.tensor([0], device="cuda")]
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        x.to("cuda:3")
    x.to("cuda")  # not assigned
    assert not x.is_cuda


@pytest.mark.usefixtures("gpu")
def test_events_and_streams() -> None:
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    side = torch.cuda.Stream()
    start.record()
    x = torch.ones(200, 200, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side
        y = x @ x
        y.record_stream(side)
    torch.cuda.current_stream().wait_stream(side)
    end.record()
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) > 0
    assert side.query()
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert y[0, 0].item() == 200.0


def test_waits_are_written_down_and_can_be_forbidden(gpu: VirtualGpu) -> None:
    x = torch.ones(3, device="cuda")
    torch.cuda.synchronize()
    x.sum().item()
    assert [s.what for s in gpu.ledger.explicit_syncs()] == ["synchronize"]
    assert len(gpu.ledger.syncs()) == 1
    torch.cuda.set_sync_debug_mode("warn")
    assert torch.cuda.get_sync_debug_mode() == 1
    with pytest.warns(UserWarning, match="called a synchronizing CUDA operation"):
        float(x.sum())
    torch.cuda.set_sync_debug_mode("error")
    for read in (
        lambda: x.sum().item(),
        lambda: x.cpu(),
        lambda: x.nonzero(),
        lambda: bool(x.all()),
        x.tolist,
    ):
        with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
            read()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (x * 2).sum()
        torch.ones(3).pin_memory().to("cuda", non_blocking=True)
    torch.cuda.set_sync_debug_mode("default")
    assert x.sum().item() == 3


def test_two_devices_and_what_lies_between(two_gpus: VirtualGpu) -> None:
    one = torch.ones(3, device="cuda:0")
    other = torch.ones(3, device="cuda:1")
    with pytest.raises(RuntimeError, match="two devices, cuda:0 and cuda:1"):
        one + other
    assert (one.to("cuda:1") + other).device.index == 1
    (move,) = two_gpus.ledger.transfers_between_devices()
    assert (move.source, move.target, move.bytes) == ("cuda:0", "cuda:1", 12)
    with torch.cuda.device(1):
        assert torch.ones(2, device="cuda").device.index == 1
        assert torch.ones(2).cuda().device.index == 1
    torch.cuda.set_device(1)
    assert torch.zeros(1, device="cuda").device.index == 1
    torch.cuda.set_device(0)
    x = torch.ones(2, device="cuda:0", requires_grad=True)
    (x.to("cuda:1") * 3).sum().backward()
    assert x.grad.device.index == 0


def test_a_model_split_over_two_devices(two_gpus: VirtualGpu) -> None:
    first = nn.Linear(4, 3).to("cuda:0")
    second = nn.Linear(3, 2).to("cuda:1")
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1, momentum=0.9)
    for _ in range(2):
        second(first(torch.ones(2, 4, device="cuda:0")).to("cuda:1")).sum().backward()
        nn.utils.clip_grad_norm_([*first.parameters(), *second.parameters()], 1.0)
        optimizer.step()
    assert {str(t.device) for t in first.parameters()} == {"cuda:0"}
    assert {f.devices for f in two_gpus.ledger.forwards()} == {("cuda:0",), ("cuda:1",)}


@pytest.mark.usefixtures("two_gpus")
def test_data_parallel() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    alone = copy.deepcopy(model)
    seen = set()
    model[0].register_forward_hook(lambda m, args, out: seen.add((str(out.device), len(out))))
    x = torch.randn(6, 4)
    parallel = nn.DataParallel(model.cuda())
    out = parallel(x.cuda())
    out.square().sum().backward()
    alone(x).square().sum().backward()
    assert seen == {("cuda:0", 3), ("cuda:1", 3)}
    assert str(out.device) == "cuda:0"
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad)
    assert set(parallel.state_dict()) == {"module." + name for name in alone.state_dict()}


@pytest.mark.usefixtures("two_gpus")
def test_threads_work_and_have_their_own_current_device() -> None:
    found: dict[str, Any] = {}
    weight = torch.ones(2, device="cuda", requires_grad=True)

    def work(index: int) -> None:
        torch.cuda.set_device(index)
        x = torch.ones(3).to("cuda") * 2
        found[f"sum {index}"] = (x.device.index, x.sum().item())
        if index == 0:
            (weight * weight).sum().backward()

    threads = [threading.Thread(target=work, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"sum 0": (0, 6.0), "sum 1": (1, 6.0)}
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0, 2.0]
    assert torch.cuda.current_device() == 0


@pytest.mark.usefixtures("gpu")
def test_many_threads_at_once_lose_no_memory() -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            layer = nn.Linear(8, 8).cuda()
            for _ in range(10):
                layer(torch.randn(4, 8, device="cuda")).sum().backward()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    torch._C._cuda_clearCublasWorkspaces()
    assert torch.cuda.memory_allocated() == 0


@pytest.mark.usefixtures("gpu")
def test_the_profiler_sees_the_device() -> None:
    from torch.profiler import ProfilerActivity, profile, record_function

    x = torch.ones(64, 64, device="cuda")
    with (
        profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found,
        record_function("a product"),
    ):
        (x @ x).sum().item()
    names = {event.key for event in found.key_averages()}
    assert {"aten::mm", "aten::sum", "a product"} <= names
    assert "CUDA" in found.key_averages().table()


@pytest.mark.usefixtures("gpu")
def test_cuda_refuses_other_devices() -> None:
    for device in ("cpu", torch.device("cpu")):
        with pytest.raises(RuntimeError, match="Invalid device, must be cuda device"):
            torch.zeros(2, device="cuda").cuda(device)
        with pytest.raises(RuntimeError, match="Invalid device, must be cuda device"):
            torch.nn.Linear(2, 2).cuda(device)
    assert str(torch.zeros(2).cuda(0).device) == "cuda:0"


def test_every_gpu_that_can_be_chosen_has_clocks() -> None:
    told = {}
    for name in gpus():
        with virtual_cuda(gpu=name):
            told[name] = torch.cuda.get_device_properties(0)
            # Two transfers in each cycle; what kernels reach is less.
            assert (
                told[name].memory_clock_rate * told[name].memory_bus_width * 2e3 / 8
                > gpus()[name].bandwidth
            )
    assert told["T4"].clock_rate == 1_590_000


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: torch.Event("cuda"), "torch.Event"),
        (lambda: torch.cuda.Event(), "Event"),
        (lambda: torch.cuda.Stream(), "Stream"),
    ],
)
def test_streams_and_events_are_not_copied(make: Callable[[], Any], name: str) -> None:
    with virtual_cuda():
        one = make()
        for use in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=f"^cannot pickle '{name}' object$"):
                use(one)


def test_what_is_no_stream_is_not_recorded() -> None:
    with virtual_cuda():
        x = torch.ones(2, device="cuda")
        for wrong in (3, torch.cuda.Event(), None):
            with pytest.raises(RuntimeError, match=r"^unknown parameter type$"):
                x.record_stream(wrong)  # type: ignore[arg-type]


def test_devices_that_do_not_exist() -> None:
    with virtual_cuda():
        for use in (torch.cuda.Stream, torch.cuda.mem_get_info):
            with pytest.raises(
                torch.AcceleratorError, match=r"^CUDA error: invalid device ordinal"
            ):
                use(7)
        with pytest.raises(AssertionError, match=r"^Invalid peer device id$"):
            torch.cuda.can_device_access_peer(0, 1)
        with pytest.raises(
            RuntimeError, match=r"^invalid value of debug_mode, expected one of 0,1,2$"
        ):
            torch.cuda.set_sync_debug_mode(7)
        for wrong in (True, 1.0):
            with pytest.raises(
                TypeError, match=r"^cuda\(\): argument 'device' \(position 1\) must be torch.device"
            ):
                torch.ones(2).cuda(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("memory_cached", "has been renamed to `torch.cuda.memory_reserved`"),
        ("reset_max_memory_allocated", "now calls torch.cuda.reset_peak_memory_stats"),
        ("reset_max_memory_cached", "now calls torch.cuda.reset_peak_memory_stats"),
    ],
)
def test_old_names_warn(name: str, said: str) -> None:
    with virtual_cuda():
        x = torch.ones(1 << 20, device="cuda")
        del x
        with pytest.warns(FutureWarning, match=said):
            given = getattr(torch.cuda, name)()
        assert given == (torch.cuda.memory_reserved() if name == "memory_cached" else None)
        assert (torch.cuda.max_memory_allocated() == 0) is (name != "memory_cached")


def test_a_factory_takes_its_device_beside_out() -> None:
    with virtual_cuda():
        out = torch.empty(3, device="cuda")
        assert torch.arange(3, out=out, device="cuda").tolist() == [0.0, 1.0, 2.0]
        assert torch.zeros(3, out=out, device="cuda:0") is out
        with pytest.raises(RuntimeError, match=r"cpu does not match .* out parameter \(cuda\)"):
            torch.zeros(3, out=out, device="cpu")


@pytest.mark.parametrize("library", ["cusolver", "magma"])
def test_a_library_can_be_preferred_for_linear_algebra(library: str) -> None:
    prefer = torch.backends.cuda.preferred_linalg_library
    with virtual_cuda():
        before = prefer()
        assert str(prefer(library)) == f"_LinalgBackend.{library.capitalize()}"
        assert str(prefer()) == f"_LinalgBackend.{library.capitalize()}"
        assert torch.linalg.inv(torch.eye(2, device="cuda")).tolist() == [[1, 0], [0, 1]]
        assert prefer("default") == before
        prefer(library)
    with virtual_cuda():
        assert prefer() == before
    assert prefer() == before


def test_a_library_can_be_preferred_for_products() -> None:
    prefer = torch.backends.cuda.preferred_blas_library
    with virtual_cuda():
        assert prefer("cublaslt").name == "Cublaslt"
        assert prefer("cublas").name == "Cublas"
        assert prefer().name == "Cublas"


def test_random_numbers_inside_vmap_come_from_the_generator() -> None:
    with virtual_cuda():
        widths = torch.ones(3, 4, device="cuda")
        generator = torch.Generator("cuda")

        def draw() -> list[float]:
            generator.manual_seed(1)
            over = torch.vmap(
                lambda row: torch.normal(0.0, row, generator=generator), randomness="different"
            )
            drawn: list[float] = over(widths).flatten().tolist()
            return drawn

        first = draw()
        assert len(set(first)) == 12
        assert draw() == first
