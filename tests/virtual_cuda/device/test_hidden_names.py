"""Every attribute that device tensors and graphs have for themselves is on the list of hidden
names.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from virtual_cuda.device.hidden import attributes_of
from virtual_cuda.device.hidden_names import HIDDEN_IN_GRAPHS, HIDDEN_IN_TENSORS
from virtual_cuda.device.tensor import Tensor

OF_A_CLASS = {"_student_class", "_is_param"}


def _subclasses(cls: type) -> Iterator[type]:
    yield cls
    for each in type.__subclasses__(cls):
        yield from _subclasses(each)


def _underscored(names: Any) -> set[str]:
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def test_attributes_of_tensors(gpu: Any) -> None:
    warnings.simplefilter("ignore")
    strided = torch.ones(2, 3, device="cuda")
    tensors = [strided, nn.Parameter(strided), strided.to_sparse(), strided.to_sparse_csr()]
    tensors.append(torch.nested.nested_tensor([strided, strided]))
    found = set()
    for tensor in tensors:
        found |= _underscored(attributes_of(tensor))
    for cls in _subclasses(Tensor):
        found |= _underscored(vars(cls).get("__annotations__", {})) - OF_A_CLASS
        found |= _underscored(vars(cls).get("__slots__", ()))
    assert found == set(HIDDEN_IN_TENSORS)


def test_attributes_of_graphs(gpu: Any) -> None:
    assert set(HIDDEN_IN_GRAPHS) <= set(vars(torch.cuda.CUDAGraph()))
