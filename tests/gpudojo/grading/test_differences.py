"""Differences that cannot be seen are named; those that can be seen are left alone."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from gpudojo.grading.differences import hidden_difference, tell_apart, told_value
from gpudojo.model.evidence import Array

ONE = Array("float32", (), struct.pack("f", 1.0))


@pytest.mark.parametrize(
    ("found", "right", "said"),
    [
        ("cuda ", "cuda", "it has spaces at its end"),
        ("\tcuda", "cuda", "it has spaces at its beginning"),
        (" cuda ", "cuda", "it has spaces around it"),
        ("Tesla  T4", "Tesla T4", "it has other spaces inside"),
        ("Tesla\u00a0T4", "Tesla T4", "it has other spaces inside"),
        ("CUDA", "cuda", "it has other upper and lower case"),
        ("cu\u200bda", "cuda", "it has a character that is not seen"),
        (
            "\u0441uda",
            "cuda",
            "it has another character in place 1: "
            "cyrillic small letter es, not latin small letter c",
        ),
        (
            "cuda:O",
            "cuda:0",
            "it has another character in place 6: latin capital letter o, not digit zero",
        ),
        (1.0, 1, "it is a float, not an int"),
        ("1", 1, "it is a str, not an int"),
        ("1.0", 1, "it is a str, not an int"),
        (True, "true", "it is a bool, not a str"),
        (ONE, 1, "it is a Tensor, not an int"),
        (1, ONE, "it is an int, not a Tensor"),
        ("None", None, "it is a str, not None"),
        ((1, 2), [1, 2], "it is a tuple, not a list"),
        ([1, "2"], [1, 2], "item 2 of it is a str, not an int"),
        ({"a": "x "}, {"a": "x"}, "`a` has spaces at its end"),
        ({"A": 1}, {"a": 1}, "the key 'A' has other upper and lower case"),
        ({"used_mb": 1}, {"used_mib": 1}, "the key 'used_mb' is there instead of 'used_mib'"),
        (
            {"used_mb": 1, "total_mb": 2},
            {"used_mib": 1, "total_mib": 2},
            "the key 'used_mb' is there instead of 'used_mib'",
        ),
        ("'cuda'", "cuda", "it has quotes around it"),
        ({1: 2}, {"1": 2}, "the key 1 is an int, not a str"),
    ],
)
def test_what_cannot_be_seen_is_named(found: Any, right: Any, said: str) -> None:
    assert hidden_difference(found, right) == said
    assert tell_apart("it gave this", found, right) == f"it gave this: {said}"


@pytest.mark.parametrize(
    ("found", "right"),
    [
        ("cpu", "cuda"),
        ("cuda:1", "cuda:0"),
        (1, 2),
        (1.5, 1),
        ("one", 1),
        (None, 0),
        ([1], [1, 2]),
        ({}, {"a": 1, "b": 2}),
        ("same", "same"),
        (ONE, 2),
        ("", None),
    ],
)
def test_what_can_be_seen_is_left_alone(found: Any, right: Any) -> None:
    assert hidden_difference(found, right) == ""
    assert tell_apart("it gave this", found, right) == "it gave this"


def test_values_of_any_type_are_told() -> None:
    class Three:
        def __repr__(self) -> str:
            return "3"

    assert str(told_value(None)) == "None"
    assert str(told_value("3")) == "'3' (str)"
    assert hidden_difference(told_value(Three()), told_value(3), "`index`") == (
        "`index` is a Three, not an int"
    )
    assert hidden_difference(told_value("None"), told_value(None), "`used`") == (
        "`used` is a str, not None"
    )
