"""Mutants change one thing that matters; rewrites of a function compute what it computes."""

from __future__ import annotations

import ast

import pytest
from gpudojo.authoring.lint_solutions import idle_answers
from gpudojo.authoring.mutants import make_mutants
from gpudojo.authoring.rewrites import KINDS, make_rewrites
from gpudojo.authoring.variants import Variant, choose_variants

LOOP = '''
"""A file."""

import torch
from torch import nn

WEIGHTS = (1, 2)


def shown(x):
    """Given to students."""
    return x + 1


def scaled(loss, count):
    if count < 1:
        raise ValueError("no samples: 0")
    return loss * count


def train(model, loader, loss_fn, optimizer, device, flag=True):
    """Train; the number 17 stands in a text."""
    model.to(device)
    model.train()
    total = 0.0
    with torch.autocast(device_type="cuda"):
        for x, y in loader:
            x = x.to(device, non_blocking=True)
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            total += scaled(loss.detach(), len(y))
    return total


def size(batch):
    return [len(part) for part in batch if part is not None and isinstance(part, (list, tuple))]


if __name__ == "__main__":
    train(1, 2, 3, 4, 5)
'''
STUB = "def shown(x):\n    '''Given to students.'''\n    return x + 1\n"


@pytest.fixture(scope="module")
def made() -> list[Variant]:
    return make_mutants(LOOP, "loop", ["train", "size"], STUB)


@pytest.mark.parametrize(
    ("kind", "diff"),
    [
        ("statement dropped", "-model.train()"),
        ("statement dropped", "-optimizer.zero_grad()"),
        ("statement dropped", "-optimizer.step()"),
        ("statements exchanged", "+optimizer.step()\n-optimizer.step()"),
        ("call dropped", "-total += scaled(loss.detach(), len(y))\n+total += scaled(loss, len(y))"),
        ("call dropped", "-x = x.to(device, non_blocking=True)\n+x = x"),
        ("arguments exchanged", "-loss = loss_fn(model(x), y)\n+loss = loss_fn(y, model(x))"),
        ("argument dropped", "-loss = loss_fn(model(x), y)\n+loss = loss_fn(model(x))"),
        ("keyword dropped", "-x = x.to(device, non_blocking=True)\n+x = x.to(device)"),
        ("constant", "-x = x.to(device, non_blocking=True)\n+x = x.to(device, non_blocking=False)"),
        (
            "constant",
            "-with torch.autocast(device_type='cuda'):\n+with torch.autocast(device_type='cpu'):",
        ),
        ("constant", "-total = 0.0\n+total = 0.5"),
        ("device constant", "-model.to(device)\n+model.to('cuda')"),
        ("other name", "-model.train()\n+model.eval()"),
        ("with unwrapped", "-with torch.autocast(device_type='cuda'):"),
        (
            "sum forgotten",
            "-total += scaled(loss.detach(), len(y))\n+total = scaled(loss.detach(), len(y))",
        ),
        ("return forgotten", "-return total\n+total"),
        ("comparison", "-if count < 1:\n+if count <= 1:"),
        ("off by one", "-if count < 1:\n+if count < 2:"),
        ("operator", "-return loss * count\n+return loss / count"),
        (
            "type dropped",
            (
                "(list, tuple))]\n"
                "+return [len(part) for part in batch if part is not None and isinstance(part, "
                "(list,))]"
            ),
        ),
        (
            "condition dropped",
            "(list, tuple))]\n+return [len(part) for part in batch if part is not None]",
        ),
    ],
)
def test_each_kind_of_mistake_is_made(made: list[Variant], kind: str, diff: str) -> None:
    found = [one.diff for one in made if one.kind == kind]
    assert any(diff in each for each in found), found


def test_texts_given_code_and_the_demo_stay_as_they_are(made: list[Variant]) -> None:
    for one in made:
        ast.parse(one.source)
        assert "Given to students" not in one.diff
        assert (
            "no samples: 0" in one.source or "ValueError" in one.diff or "scaled" not in one.source
        )
        assert "__main__" not in one.source
    assert len({one.source for one in made}) == len(made)


def test_a_mutant_concerns_the_functions_that_use_the_changed_part(made: list[Variant]) -> None:
    in_helper = next(one for one in made if "+return loss / count" in one.diff)
    assert in_helper.functions == ("train",)
    assert "def size" not in in_helper.source
    in_size = next(one for one in made if "def train" not in one.source)
    assert in_size.functions == ("size",)
    assert "def scaled" not in in_size.source


def test_what_compiles_to_the_same_code_is_no_mutant() -> None:
    source = "def f(x):\n    if 1:\n        return x\n    while False:\n        x = 5\n"
    diffs = [one.diff for one in make_mutants(source, "s", ["f"])]
    assert "-return x\n+x" in diffs
    assert not {"-x = 5", "-x = 5\n+x = 6", "-if 1:\n+if 2:"} & set(diffs)


WORDS = '''
import contextlib


def helper(a, b=2, *rest, key=0, **more):
    return a + b + sum(rest) + key + sum(more.values())


def plus(a, b, c=0):
    return a + b + c


def work(values, limit=3, *, sign=1):
    """What it does."""
    first = lambda v: v * 2
    total, count = 0.0, 0
    doubled = [first(v) for v in values if v is not None]
    with contextlib.nullcontext(), contextlib.nullcontext(5) as five:
        with contextlib.nullcontext(6) as six:
            pass
    for v in doubled:
        count += 1
        total += float(v)
        if count > limit:
            break
    else:
        total += 100
    if total > 10:
        name = f"big {total} of {count:d}"
    else:
        name = f"small {total} <{five}> {{}}"
    if sign > 0:
        return [name, plus(1, 2, c=3), helper(total, count, 4, key=five, other=six)]
    elif sign == 0:
        return [pair for pair in zip(doubled, doubled)]
    else:
        return [name] if count < 2 else [total]
'''


@pytest.mark.parametrize("kind", KINDS)
def test_a_rewrite_computes_what_the_original_computes(kind: str) -> None:
    (changed,) = [one for one in make_rewrites(WORDS, "words", ["work"]) if one.kind == kind]
    assert changed.functions == ("work",)

    def answers(source: str) -> list[object]:
        names: dict[str, object] = {}
        exec(compile(source, "words", "exec"), names)
        work = names["work"]
        assert callable(work)
        inputs = ([1, None, 2], [], [5, 6, 7, 8, 9])
        return [work(values, sign=sign) for values in inputs for sign in (1, 0, -1)]

    assert answers(changed.source) == answers(WORDS)


def test_a_limit_takes_evenly_from_all_solutions() -> None:
    two = [
        make_mutants(text, name, ["size", "train"])
        for name, text in (("a", LOOP), ("b", LOOP.replace("0.0", "0.25")))
    ]
    some = choose_variants(two, 10)
    assert [one.solution for one in some].count("a") >= 4
    assert [one.solution for one in some].count("b") >= 4
    every = choose_variants(two, None)
    assert some == every[:10]
    assert len({one.source for one in every}) == len(every) < len(two[0]) + len(two[1])


@pytest.mark.parametrize(
    ("reference", "wanted"),
    [
        (
            "import torch\n\n\ndef f(model, batch, flag=False):\n    return 1\n",
            "return (model, batch, flag,)",
        ),
        ("def f(*things, **more):\n    return 1\n", "return things"),
        ("def f():\n    return 1\n", "return (0.0, 0.0)"),
        ("f = {'a': 1}\n", "f = {}"),
    ],
)
def test_answers_that_do_nothing_are_made_from_the_signature(reference: str, wanted: str) -> None:
    answers = dict(idle_answers(reference, "f"))
    assert wanted in answers
    assert len(set(answers.values())) >= 15
    for source in answers.values():
        compile(source, "idle", "exec")
