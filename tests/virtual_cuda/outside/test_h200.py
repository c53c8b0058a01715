"""Operators that answer otherwise on CUDA than on the CPU: the virtual device answers as an H200
did.

`h200_answers.json` has, for each operator and dtype that a comparison with the CPU calls different,
what the GPU made of the samples of PyTorch's `op_db`. With a GPU, `python -m
tests.virtual_cuda.outside.test_h200` asks it again.
"""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map
from virtual_cuda import virtual_cuda

from tests.virtual_cuda.outside.test_sweep import function_of, left_out, operators, tensors

FILE = Path(__file__).parent / "h200_answers.json"
SAMPLES = 25
VALUES = 16
DTYPES = ("float32", "int64", "complex64")
EACH = " ".join(DTYPES)
ASKED = {
    "arange": "float32 int64", "argwhere": EACH, "as_strided.partial_views": EACH,
    "kthvalue": "int64", "linalg.eig": "float32 complex64", "linalg.ldl_solve": "complex64",
    "linalg.lstsq": "float32 complex64", "linalg.lstsq.grad_oriented": "float32 complex64",
    "linalg.svd": "float32 complex64", "median": "int64", "nanmedian": "int64",
    "_native_batch_norm_legit": "float32", "native_batch_norm": "float32",
    "nn.functional.max_unpool2d": "float32", "nn.functional.max_unpool2d.grad": "float32",
    "nn.functional.scaled_dot_product_attention": "float32", "nonzero": EACH,
    "nonzero_static": EACH, "pca_lowrank": "complex64", "sparse.mm.reduce": "float32",
    "svd": "float32 complex64", "svd_lowrank": "float32 complex64", "tensor_split": EACH,
    "to": EACH,
}  # fmt: skip
# Of these the values tell something: which of equal ones is taken, and what lies beyond a view that
# was copied.
EXACT = ("as_strided.partial_views", "kthvalue", "median", "nanmedian")
# Where the device still differs from the GPU.
KNOWN = {
    # The same operator stands for cuDNN's in `F.batch_norm`, which keeps no statistics in eval
    # mode.
    ("native_batch_norm", "float32", 1), ("native_batch_norm", "float32", 4),
}  # fmt: skip


def form(tensor: torch.Tensor) -> list[Any]:
    strided = tensor.layout is torch.strided
    return [
        str(tensor.dtype)[6:],
        list(tensor.shape),
        list(tensor.stride()) if strided else None,
        tensor.device.type,
    ]


def numbers(tensor: torch.Tensor) -> list[float]:
    plain = tensor.detach().cpu()
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    return [float(f"{value:.5g}") for value in plain.flatten()[:VALUES].tolist()]


def answers(name: str, dtype: str) -> list[Any]:
    """For each sample the exception's first line, or the forms of the results, and for some
    operators their values.
    """
    op = operators()[name]
    kind = getattr(torch, dtype)
    found = []
    trained = (kind.is_floating_point or kind.is_complex) and op.supports_autograd
    trained = trained and kind in op.supported_backward_dtypes("cuda")
    torch.manual_seed(0)
    for sample in list(
        itertools.islice(op.sample_inputs("cpu", kind, requires_grad=trained), SAMPLES)
    ):
        args, kwargs = tree_map(
            lambda v: (
                v.detach().to("cuda").requires_grad_(v.requires_grad)
                if isinstance(v, torch.Tensor)
                else v
            ),
            ((sample.input, *sample.args), sample.kwargs),
        )
        if kwargs.get("device") is not None:
            kwargs["device"] = "cuda"
        try:
            made = tensors(function_of(op)(*args, **kwargs))
        except Exception as error:
            found.append(f"{type(error).__name__}: {str(error).splitlines()[0][:250]}")
        else:
            found.append(
                [
                    [form(each) for each in made],
                    *([numbers(each) for each in made] if name in EXACT else []),
                ]
            )
    return found


def test_every_listed_difference_was_put_to_the_gpu() -> None:
    """Those of random numbers apart, and one that depends on the CPU."""
    recorded = json.loads(FILE.read_text())["answers"]
    assert set(recorded) == {
        f"{name} {dtype}" for name, dtypes in ASKED.items() for dtype in dtypes.split()
    }
    kinds = {"raises", "devices", "forms", "strides"}  # a random number changes none of them
    listed = {
        f"{n} {d}"
        for (n, d), what in left_out().items()
        if d in DTYPES and what & kinds and not n.startswith("torch.")
    }
    assert listed <= set(recorded)


@pytest.mark.slow
@pytest.mark.skipif(torch.__version__ >= "2.14", reason="samples of a later torch may be others")
def test_the_device_answers_as_the_gpu_did() -> None:
    recorded = json.loads(FILE.read_text())["answers"]
    differ = set()
    _ = operators()
    with virtual_cuda(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, dtypes in ASKED.items():
            for dtype in dtypes.split():
                pairs = zip(recorded[f"{name} {dtype}"], answers(name, dtype), strict=True)
                differ |= {
                    (name, dtype, number)
                    for number, (theirs, mine) in enumerate(pairs)
                    if theirs != mine
                }
    assert differ == KNOWN


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("This asks a GPU, and there is none.")
    warnings.simplefilter("ignore")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    told = {
        f"{name} {dtype}": answers(name, dtype)
        for name, dtypes in ASKED.items()
        for dtype in dtypes.split()
    }
    head = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    FILE.write_text("{" + json.dumps(head)[1:-1] + ', "answers": {\n')
    with FILE.open("a") as file:
        file.write(
            ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in told.items())
            + "\n}}\n"
        )
