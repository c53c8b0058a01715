"""Sentences about returned values are English."""

from __future__ import annotations

import pytest
from gpudojo.model.exercise import with_article

WORDS = {
    "list": "a list",
    "int": "an int",
    "OrderedDict": "an OrderedDict",
    "ndarray": "an ndarray",
    "Tensor": "a Tensor",
    "NoneType": "None",
    "min": "the values and the indices of `torch.min`",
}


@pytest.mark.parametrize("kind", WORDS)
def test_a_class_has_its_article(kind: str) -> None:
    assert with_article(kind) == WORDS[kind]
