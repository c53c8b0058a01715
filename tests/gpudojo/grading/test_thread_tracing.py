"""Lines count as the student's where they are: not of libraries, nor of what Python generates for
them.
"""

from __future__ import annotations

import collections
import json
import typing
from typing import Any

import torch
from gpudojo.grading.thread_tracing import is_students_code


class Place(typing.NamedTuple):
    file: str
    line: int = 0


def code_of(text: str, names: dict[str, Any] | None = None) -> Any:
    names = {} if names is None else names
    exec(text, names)
    return names["made"].__code__


def test_lines_of_libraries_do_not_count() -> None:
    assert not is_students_code(json.loads.__code__)
    assert not is_students_code(torch.nn.Module.to.__code__)


def test_lines_of_any_other_file_and_of_executed_text_count() -> None:
    assert is_students_code(code_of.__code__)
    assert is_students_code(code_of("def made(): return 1"))


def test_constructors_of_named_tuples_do_not_count() -> None:
    for kind in (Place, collections.namedtuple("Pair", "a b"), collections.namedtuple("None_", "")):
        constructor: Any = kind.__new__
        assert not is_students_code(constructor.__code__)


def test_work_that_poses_as_such_a_constructor_counts() -> None:
    names = {"__name__": "namedtuple_Pair", "_tuple_new": tuple.__new__}
    posing = "made = lambda _cls, a, b: _tuple_new(_cls, [x for x in (a, b)])"
    assert is_students_code(code_of(posing, names))
