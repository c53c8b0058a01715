"""The kinds of device are in one list: options, titles and messages have all of them."""

from __future__ import annotations

from gpudojo.cli.grade import grade
from gpudojo.cli.watch import watch
from gpudojo.pytest_plugin import OPTIONS
from virtual_cuda.device_kinds import (
    DEVICE_CHOICES,
    DEVICE_KINDS,
    DEVICE_TYPES,
    KIND_TITLES,
    REAL_GPUS,
)
from virtual_cuda.errors import NoSuchDevice


def test_every_kind_has_a_title() -> None:
    assert tuple(KIND_TITLES) == DEVICE_KINDS
    assert set(REAL_GPUS) < set(DEVICE_TYPES) < set(DEVICE_KINDS) < set(DEVICE_CHOICES)


def test_every_option_offers_them() -> None:
    (grades_on,) = [each for each in grade.params if each.name == "bench"]
    (watches_on,) = [each for each in watch.params if each.name == "bench"]
    assert tuple(grades_on.to_info_dict()["type"]["choices"]) == DEVICE_KINDS
    assert tuple(watches_on.to_info_dict()["type"]["choices"]) == DEVICE_CHOICES
    assert OPTIONS["bench"]["choices"] == DEVICE_CHOICES


def test_an_unknown_kind_is_told_all_of_them() -> None:
    text = str(NoSuchDevice("gpu"))
    assert text == 'there is no device \'gpu\'; choose "auto", "virtual", "cuda", "mps" or "cpu"'
