"""Every setting that a call leaves changed is reported by name, and restored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import virtual_cuda as bench
from gpudojo.grading.call import Call, StudentRaised, call_and_restore_settings
from gpudojo.grading.load import Submission
from gpudojo.grading.settings import SettingsByFile

CHANGES: dict[str, Callable[[], Any]] = {
    "the default device": lambda: torch.set_default_device("cuda"),
    "the default dtype": lambda: torch.set_default_dtype(torch.float64),
    "the gradient mode": lambda: torch.set_grad_enabled(False),
    "the current GPU": lambda: torch.cuda.set_device(1),
    "the precision of matrix products": lambda: torch.set_float32_matmul_precision("high"),
    "the detection of anomalies": lambda: torch.autograd.set_detect_anomaly(True),
    "the use of deterministic algorithms": lambda: torch.use_deterministic_algorithms(True),
    "the search for the fastest convolution": lambda: setattr(
        torch.backends.cudnn, "benchmark", True
    ),
    "the choice of deterministic convolutions": lambda: setattr(
        torch.backends.cudnn, "deterministic", True
    ),
    "the seed of the random numbers": lambda: torch.manual_seed(20263),
}


def by(student: Callable[[], Any], opened: Any) -> tuple[Any, list[str]]:
    return call_and_restore_settings(Call(student, Submission(Path("answer.py")), opened, 8))


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_told_once_and_put_back(name: str) -> None:
    with bench.open_device("virtual", devices=2) as opened:
        drawn = torch.default_generator.get_state()
        assert by(CHANGES[name], opened)[1] == [name]
        assert torch.equal(torch.default_generator.get_state(), drawn)
        assert by(lambda: 7, opened) == (7, [])
        assert by(CHANGES[name], opened)[1] == [name], "it was not put back"


def test_drawing_random_numbers_is_no_change() -> None:
    with bench.open_device("virtual") as opened:
        before = torch.default_generator.get_state()
        assert by(lambda: torch.rand(3).shape[0], opened) == (3, [])
        assert not torch.equal(torch.default_generator.get_state(), before), (
            "the dice have to go on"
        )


def test_an_error_does_not_keep_settings_from_being_put_back() -> None:
    def student() -> None:
        torch.set_default_dtype(torch.float64)
        raise ValueError

    with bench.open_device("virtual") as opened, pytest.raises(StudentRaised):
        by(student, opened)
    assert torch.get_default_dtype() is torch.float32


def test_what_a_file_sets_holds_for_its_own_functions() -> None:
    settings = SettingsByFile()
    try:
        settings.begin_loading()
        torch.set_grad_enabled(False)
        settings.end_loading("first.py")
        settings.begin_loading()
        assert torch.is_grad_enabled()
        torch.set_default_dtype(torch.float64)
        settings.end_loading("second.py")
        assert (settings.are_of("first.py"), settings.are_of("second.py")) == (False, True)
        settings.put_in_place("first.py")
        assert (torch.is_grad_enabled(), torch.get_default_dtype()) == (False, torch.float32)
        settings.put_in_place("second.py")
        assert (torch.is_grad_enabled(), torch.get_default_dtype()) == (True, torch.float64)
    finally:
        settings.begin_loading()
    assert (torch.is_grad_enabled(), torch.get_default_dtype()) == (True, torch.float32)
