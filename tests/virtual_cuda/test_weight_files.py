"""Files of weights in a run without values: shapes are read, numbers are not."""

from __future__ import annotations

import json
import struct
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from virtual_cuda import VirtualGpu, virtual_cuda

GIB = 1 << 30
LAYERS = 20


@pytest.fixture
def gpu() -> Iterator[VirtualGpu]:
    """An H200 without values."""
    with virtual_cuda(gpu="H200", values=False) as opened:
        yield opened


def most_memory() -> int:
    """The most bytes of memory that this process ever had."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.fixture
def _reads_little() -> Iterator[None]:
    """Fails a test in which this process takes a GiB of memory."""
    if sys.platform != "linux":
        yield
        return
    before = most_memory()
    yield
    assert most_memory() < before + GIB


def write_safetensors(path: Path) -> None:
    """Write a file of 20 layers of 1 GiB, of which the numbers are a hole, and a few indices."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for layer in range(LAYERS):
        place = [layer * GIB, (layer + 1) * GIB]
        header[f"{layer}.weight"] = {
            "dtype": "BF16",
            "shape": [32768, 16384],
            "data_offsets": place,
        }
    indices = struct.pack("<3q", 2, 0, 1)
    last = LAYERS * GIB
    header["indices"] = {"dtype": "I64", "shape": [3], "data_offsets": [last, last + len(indices)]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.seek(last, 1)
        file.write(indices)


@pytest.fixture
def safe_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The library's function as a program finds it that imports the library after the device.

    The library itself opens nothing here: it must not be asked.
    """
    folder = tmp_path / "libraries" / "safetensors"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("class safe_open:\n    pass\n", encoding="utf-8")
    monkeypatch.syspath_prepend(folder.parent)
    with monkeypatch.context() as patches:
        patches.delitem(sys.modules, "safetensors", raising=False)
        import safetensors  # type: ignore[import-not-found, unused-ignore]

        yield lambda *args, **named: safetensors.safe_open(*args, **named)
        del sys.modules["safetensors"]


@pytest.mark.usefixtures("_reads_little")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_numbers_of_safetensors_are_not_read(
    gpu: VirtualGpu, safe_open: Any, tmp_path: Path, device: str
) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path)
    with safe_open(path, framework="pt", device=device) as file:
        assert len(file.keys()) == LAYERS + 1
        assert file.metadata() == {"format": "pt"}
        weights = [file.get_tensor(f"{layer}.weight") for layer in range(LAYERS)]
        part = file.get_slice("3.weight")[:128]
        assert file.get_tensor("indices").cpu().shape == (3,)
        with pytest.raises(KeyError, match="other"):
            file.get_tensor("other")
    assert {weight.device.type for weight in weights} == {device}
    assert weights[0].shape == (32768, 16384)
    assert part.shape == (128, 16384)
    assert weights[0].float().dtype is torch.float32
    del part
    moved = [weight.to("cuda") for weight in weights]
    assert torch.cuda.memory_allocated() >= len(moved) * GIB
    said = [assumption.what for assumption in gpu.assumptions]
    assert said == ["did not read the numbers in model.safetensors"]


def test_indices_of_safetensors_have_values(
    gpu: VirtualGpu, safe_open: Any, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path)
    with safe_open(path, "pt") as file:
        assert file.get_tensor("indices").tolist() == [2, 0, 1]
    assert gpu.assumptions == []


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, struct.pack("<Q", 2) + b"{]"])
def test_a_broken_file_is_left_to_the_library(
    gpu: VirtualGpu, safe_open: Any, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(TypeError):  # of the class above, which takes no arguments
        safe_open(path, "pt")


def write_checkpoint(path: Path) -> None:
    """Write a checkpoint of 6 GiB, of which the numbers are a hole."""
    state = {f"{layer}.weight": torch.empty(16384, 16384) for layer in range(6)}
    state["tied.weight"] = state["0.weight"]
    with torch.serialization.skip_data():
        torch.save(state, path)


@pytest.mark.usefixtures("_reads_little")
@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_numbers_of_a_checkpoint_are_not_read(tmp_path: Path, place: str) -> None:
    path = tmp_path / "model.pt"
    write_checkpoint(path)
    with virtual_cuda(gpu="H200", values=False) as gpu:
        state = torch.load(path, map_location=place)
        assert state["0.weight"].device.type == place
        assert state["0.weight"].double().shape == (16384, 16384)
        moved = {name: weight.cuda() for name, weight in state.items() if name != "tied.weight"}
        assert 6 * GIB <= torch.cuda.memory_allocated() < 7 * GIB
        assert moved["1.weight"].sum().item() == 0
        assert gpu.assumptions[0].what == "did not read the numbers in model.pt"


def test_small_tensors_and_whole_numbers_of_a_checkpoint_have_values(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    state = {"step": torch.tensor(7.0), "tokens": torch.arange(1 << 20), "epoch": 3}
    torch.save(state, path)
    with virtual_cuda(values=False) as gpu:
        loaded = torch.load(path)
        assert loaded["step"].item() == 7
        assert loaded["tokens"].sum().item() == state["tokens"].sum().item()
        assert loaded["epoch"] == 3
        assert gpu.assumptions == []


def test_an_older_checkpoint_is_read(tmp_path: Path) -> None:
    path = tmp_path / "old.pt"
    torch.save([torch.ones(3), torch.ones(2)], path, _use_new_zipfile_serialization=False)
    with virtual_cuda(values=False):
        assert torch.load(path)[1].tolist() == [1, 1]
        assert [each.shape for each in torch.load(path, map_location="cuda")] == [(3,), (2,)]
    with virtual_cuda():
        assert torch.load(path, map_location="cuda")[1].tolist() == [1, 1]


@pytest.mark.usefixtures("_reads_little")
def test_threads_have_no_values_either(gpu: VirtualGpu) -> None:
    weight = torch.rand(16384, 16384)
    with ThreadPoolExecutor(2) as threads:
        found = [threads.submit(weight.to, torch.float64) for _ in range(4)]
        assert [each.result().shape for each in found] == [weight.shape] * 4
    doubled = []
    thread = threading.Thread(target=lambda: doubled.append(weight * 2))
    thread.start()
    thread.join()
    assert doubled[0].shape == weight.shape
