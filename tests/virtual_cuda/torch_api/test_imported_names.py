"""A file sees an open device through names that it imported before the device was opened."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import virtual_cuda
import virtual_cuda.hooks
from virtual_cuda.hooks import patch_imported_names
from virtual_cuda.patching import patches_in_force

FILE = """
from torch import Generator, as_tensor, tensor
from torch.accelerator import synchronize as wait
from torch.cuda import current_device, is_available, max_memory_allocated
from torch.cuda import reset_peak_memory_stats, synchronize
from torch.cuda.memory import empty_cache, memory_stats

nothing = None
"""


@pytest.fixture
def names() -> dict[str, Any]:
    made: dict[str, Any] = {}
    exec(FILE, made)
    return made


def test_names_imported_before_speak_of_the_open_device(names: dict[str, Any]) -> None:
    with virtual_cuda.open_device("virtual"), patch_imported_names(names):
        assert names["is_available"]() is True
        assert names["current_device"]() == 0
        names["reset_peak_memory_stats"]()
        kept = names["tensor"]([1.0], device="cuda")
        assert (
            kept.device == names["as_tensor"]([2.0], device="cuda").device == torch.device("cuda:0")
        )
        assert names["Generator"](device="cuda").device.type == "cuda"
        assert names["max_memory_allocated"]() >= 512
        assert names["memory_stats"]()["allocated_bytes.all.peak"] >= 512
        names["synchronize"]()
        names["empty_cache"]()
        names["wait"]()


def test_afterwards_they_are_what_they_were(names: dict[str, Any]) -> None:
    before = dict(names)
    with virtual_cuda.open_device("virtual"), patch_imported_names(names):
        assert names["nothing"] is None
    assert {name: id(value) for name, value in names.items()} == {
        name: id(value) for name, value in before.items()
    }


def test_a_name_the_file_binds_anew_stays(names: dict[str, Any]) -> None:
    with virtual_cuda.open_device("virtual"), patch_imported_names(names):
        names["is_available"] = "mine"
    assert names["is_available"] == "mine"


def test_without_an_accelerator_there_is_none(names: dict[str, Any]) -> None:
    with virtual_cuda.hooks.no_accelerator(built=True), patch_imported_names(names):
        assert names["is_available"]() is False


def test_functions_in_lists_and_dicts_are_replaced_and_put_back() -> None:
    names: dict[str, Any] = {}
    exec(
        (
            "import torch\n"
            "WAITS = {'cuda': [torch.cuda.synchronize], 'cpu': []}\n"
            "waits = [torch.cuda.is_available]"
        ),
        names,
    )
    before = names["WAITS"]["cuda"][0]
    with virtual_cuda.open_device("virtual"), patch_imported_names(names):
        names["WAITS"]["cuda"][0]()
        assert names["waits"][0]()
        names["waits"].clear()  # whatever a student's code does with its own lists
    assert names["WAITS"]["cuda"][0] is before
    assert names["waits"] == []


def test_a_closed_device_has_no_patches_in_force() -> None:
    for _ in range(2):  # with new patches, and with those of the device before
        with (
            virtual_cuda.open_device("virtual"),
            patch_imported_names({"available": torch.cuda.is_available}),
        ):
            assert patches_in_force()
        assert not patches_in_force()
