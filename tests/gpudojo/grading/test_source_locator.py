"""Patterns in a function's source are found on the right line, in helpers too, in a fixed order."""

from __future__ import annotations

import ast

import pytest
from gpudojo.grading.source_locator import MOST, pattern_lines

SOURCE = """
def move(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, (list, tuple)):
        items = []
        for item in batch:
            items.append(move(item, device))
        return items
    if device.type == "cuda":
        batch["device"] = "cuda:1"
    return batch


def told(model):
    return {name: p.device for name, p in walked(model)}


def walked(model):
    def inner():
        return 1
    try:
        return model.named_parameters()
    except AttributeError:
        return (
            model
            .named_buffers()
        )


def step(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.zero_grad()


@cached
def loaded(data, device, size=2):
    device = device.type
    pin = device == "gpu"
    size //= 2
    for p in data:
        p.grad = p.grad / size
    if size < 1:
        raise ValueError(size)
    return Loader(lambda: data, pin_memory=pin, size=size, at=Watch(size))


class Watch:
    def wait(self, size):
        synchronize(size % 2)


def everything(x):
    return CALLS
""".replace("CALLS", " + ".join(f"f{number}(x)" for number in range(2 * MOST)))


@pytest.fixture(scope="module")
def found() -> dict[str, int]:
    return pattern_lines(ast.parse(SOURCE.lstrip("\n")).body)


@pytest.mark.parametrize(
    ("sign", "line"),
    [
        ("move if Tensor", 3),
        ("move if tuple", 8),
        ("move if type", 10),
        ("move to(", 3),
        ("move for", 6),
        ("move return", 3),
        ("move return 3", 11),
        ("move [] =", 10),
        ('move "cuda"', 10),
        ('move == "cuda"', 9),
        ("move == .type", 9),
        ("move .type", None),
        ("told return", 15),
        ("told named_parameters(", 22),
        ("told named_buffers(", 26),
        ("told except", 23),
        ("walked return 2", 24),
        ("step return", 33),
        ("step zero_grad(", 31),
        ("step zero_grad( 2", 33),
        ("step backward( 2", None),
        ("loaded @", 36),
        ("loaded device =", 38),
        ('loaded == "gpu"', 39),
        ("loaded //", 40),
        ("loaded size =", 40),
        ("loaded data =", None),
        ("loaded .grad", 42),
        ("loaded .grad =", 42),
        ("loaded .grad 2", None),
        ("loaded /", 42),
        ("loaded raise", 44),
        ("loaded lambda", 45),
        ("loaded pin_memory=", 39),
        ("loaded at=", 45),
        ("loaded synchronize(", 50),
        ("loaded %", 50),
    ],
)
def test_a_sign_and_its_line(found: dict[str, int], sign: str, line: int | None) -> None:
    assert found.get(sign) == line


def test_a_function_has_only_so_many(found: dict[str, int]) -> None:
    own = [key for key in found if key.startswith("everything ")]
    assert len(own) == MOST
    assert "everything return" in own


def test_what_is_no_function_shows_nothing() -> None:
    assert pattern_lines(ast.parse("DEVICE = 'cuda'\nclass A:\n    def f(self): return 1").body) == {}


def test_keys_of_a_dict_that_has_a_name() -> None:
    source = "ANSWERS: dict = {\n    'portable': 'a',\n    3: 'b', **X,\n    'no_grad':\n        'c',\n}\n{'a': 1}"
    assert pattern_lines(ast.parse(source).body) == {'ANSWERS ["portable"]': 2, 'ANSWERS ["no_grad"]': 4}
