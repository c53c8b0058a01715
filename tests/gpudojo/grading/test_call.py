"""Results of student code are read as torch has them, whatever their classes and instances say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpudojo.grading import call


class Tagged(torch.Tensor):
    """A tensor subclass, as a student may have one."""


@pytest.mark.parametrize(
    "wrap", [lambda t: t, lambda t: [t], lambda t: {"a": (1, t)}], ids=["itself", "list", "nested"]
)
def test_a_tensor_of_a_class_of_its_own_is_refused(wrap: Callable[[Any], Any]) -> None:
    assert call.require_plain_tensors(wrap(torch.zeros(2))) is not None
    with pytest.raises(TypeError, match="it returned a Tagged, a tensor subclass"):
        call.require_plain_tensors(wrap(torch.zeros(2).as_subclass(Tagged)))


def test_values_are_read_past_what_an_instance_says() -> None:
    tensor = torch.ones(2)
    tensor.detach = lambda: torch.zeros(2)  # type: ignore[method-assign]
    assert call.array_of(tensor).data == torch.ones(2).numpy().tobytes()
