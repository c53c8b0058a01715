"""Budgets of tests, in a marker and in a file: what is over them fails, with the lines."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from virtual_cuda.budgets import Counts, over_options

from tests.virtual_cuda.test_pytest_plugin import Run, outcomes
from tests.virtual_cuda.test_pytest_plugin import run as run


def options(monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
    """Add options to those of all further runs."""
    monkeypatch.setenv("PYTEST_ADDOPTS", " ".join([os.environ["PYTEST_ADDOPTS"], *more]))


STEP = """
    import pytest
    import torch

    def step(rounds):
        model = torch.nn.Linear(100, 100).cuda()
        x = torch.ones(100, 100).cuda()
        for _ in range(rounds):
            model(x).sum().item()
"""


def test_each_budget_names_its_lines_the_worst_first(run: Run) -> None:
    found, said = outcomes(
        run,
        STEP
        + """
    @pytest.mark.virtual_cuda(max_syncs=1)
    def test_syncs(): step(5)

    @pytest.mark.virtual_cuda(max_transfers="40 KiB")
    def test_transfers(virtual_cuda): step(1)

    @pytest.mark.virtual_cuda(max_memory="100 KiB")
    def test_memory(): step(1)

    @pytest.mark.virtual_cuda(gpu="T4", max_time="1 us")
    def test_time(): step(5)

    @pytest.mark.virtual_cuda(
        gpu="T4", max_syncs=8, max_transfers="1 MiB", max_memory="1 MiB", max_time="5 ms"
    )
    def test_within(): step(5)

    @pytest.mark.virtual_cuda(max_syncs=0, max_transfers=0, max_memory=0, max_time=0)
    def test_nothing(): torch.ones(3).sum().item()

    @pytest.mark.xfail(strict=True)
    @pytest.mark.virtual_cuda(max_syncs=0)
    def test_expected(): step(1)

    @pytest.mark.virtual_cuda(max_syncs=0)
    def test_raises():
        step(1)
        1 / 0
    """,
    )
    assert found == {"failed": 5, "passed": 2, "xfailed": 1}, said
    sentence = "The host waited for the GPU 8 times; allowed: 1 time (max_syncs=1)."
    waits = said[said.index(sentence) :]
    assert waits.index("5 x item") < waits.index("2 x copy") < waits.index("1 x copy")
    assert re.search(r"py:\d+  5 x item  model\(x\)\.sum\(\)\.item\(\)", waits)
    assert (
        "78.5 KiB were copied between host and GPU; allowed: 40 KiB (max_transfers='40 KiB')."
        in said
    )
    assert "39.5 KiB in 2 copies to the device" in said
    assert "120 KiB of the GPU's memory were in use at a time; allowed: 100 KiB" in said
    assert "raised the peak by 40 KiB" in said
    assert "on T4 (estimated), modelled; allowed: 1 µs (max_time='1 us')." in said
    # A test that has raised says so, and no more.
    assert "E       ZeroDivisionError" in said
    assert "(max_syncs=0)." not in said


def test_the_device_options_of_a_class_stay_beside_a_budget(run: Run) -> None:
    found, said = outcomes(
        run,
        STEP
        + """
    @pytest.mark.virtual_cuda(devices=2)
    class TestTwo:
        @pytest.mark.virtual_cuda(max_syncs=4)
        def test_both(self):
            assert torch.cuda.device_count() == 2
            step(1)
    """,
    )
    assert found == {"passed": 1}, said


def test_a_budget_of_what_ran_on_the_cpu_warns(run: Run) -> None:
    found, said = outcomes(
        run,
        """
        import pytest
        import torch

        DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

        @pytest.mark.virtual_cuda(max_syncs=1)
        def test_it():
            model = torch.nn.Linear(3, 3, device=DEVICE)
            model(torch.ones(3, device=DEVICE)).sum().backward()
            torch.optim.SGD(model.parameters()).step()

        @pytest.mark.virtual_cuda(max_syncs=0, max_transfers=0)
        def test_that_nothing_runs_there(): pass
        """,
    )
    assert found == {"passed": 2, "warnings": 1}, said
    assert "nothing ran on the virtual CUDA device" in said


def test_memory_of_fixtures_counts_and_their_waits_do_not(run: Run) -> None:
    found, said = outcomes(
        run,
        STEP
        + """
    @pytest.fixture
    def model(virtual_cuda): return torch.nn.Linear(1000, 1000).cuda()

    @pytest.mark.virtual_cuda(max_syncs=0, max_transfers=0, max_memory="1 MiB")
    def test_it(model):
        model(torch.ones(1, 1000, device="cuda"))
    """,
    )
    assert found == {"failed": 1}, said
    assert "were in use before the test, by its fixtures" in said
    assert "The host waited" not in said


@pytest.mark.parametrize(
    ("marker", "sentence"),
    [
        ("max_syncs='1'", "'1' is no budget; write a whole number, 0 or more"),
        ("max_syncs=-1", "-1 is no budget; write a whole number, 0 or more"),
        ("max_memory='8 sheep'", "'8 sheep' is no budget; write a size such as \"200 MiB\""),
        ("max_time='5'", "'5' is no budget; write a time such as \"5 ms\""),
        ("max_time=5", '5 is no budget; write a time such as "5 ms"'),
        ("max_time=True", 'True is no budget; write a time such as "5 ms"'),
        ("max_synks=1", "it was given max_synks (did you mean max_syncs?)"),
    ],
)
def test_a_budget_that_is_none_says_so(run: Run, marker: str, sentence: str) -> None:
    found, said = outcomes(
        run,
        f"""
        import pytest

        @pytest.mark.virtual_cuda({marker})
        def test_it(): ...
        """,
    )
    assert found == {"errors": 1}
    assert sentence in said


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("max_time", "5 ms", 5_000_000),
        ("max_time", "0.5us", 500),
        ("max_time", "5 \N{MICRO SIGN}s", 5000),
        ("max_time", "5 \N{GREEK SMALL LETTER MU}s", 5000),
        ("max_time", "2 s", 2 * 10**9),
        ("max_time", 0, 0),
        ("max_memory", "0 B", 0),
        ("max_transfers", "0.0 MiB", 0),
        ("max_transfers", "1 kB", 1000),
        ("max_memory", 512, 512),
        ("max_syncs", 0, 0),
    ],
)
def test_budgets_have_units(option: str, value: object, allowed: int) -> None:
    over = over_options(Counts(*[10**12] * 4), {option: value})
    assert [excess.allowed for excess in over] == [allowed]
    assert over_options(Counts(*[allowed] * 4), {option: value}) == []


FILED = (
    STEP
    + """
    def test_more(virtual_cuda): step({more})
    def test_less(virtual_cuda): step({less})
    def test_host(): torch.ones(3).sum().item()
    """
)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_of_budgets_is_made_compared_and_renewed(
    run: Run, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    pytester, _ = run
    path = Path(pytester.path, "budget.json")
    options(monkeypatch, "--virtual-cuda-budget budget.json")
    if workers:
        options(monkeypatch, f"-p xdist -n {workers}")
    # Made.
    update = " --virtual-cuda-budget-update"
    with monkeypatch.context() as patched:
        options(patched, update)
        found, said = outcomes(run, FILED.format(more=2, less=2))
    assert found == {"passed": 3}, said
    assert "recorded what 2 tests of this run needed" in said
    made = json.loads(path.read_text())["tests"]
    more, less = sorted(made, reverse=True)
    assert made[more]["syncs"] == made[less]["syncs"] == 5
    # Compared.
    found, said = outcomes(run, FILED.format(more=2, less=2))
    assert found == {"passed": 3}, said
    assert "2 tests within what is recorded" in said
    found, said = outcomes(run, FILED.format(more=3, less=1))
    assert found == {"failed": 1, "passed": 2}, said
    assert "The host waited for the GPU 6 times; allowed: 5 times (as in budget.json)." in said
    assert "3 x item" in said
    assert "1 test needing less than is recorded" in said
    assert json.loads(path.read_text())["tests"] == made
    # Renewed, one test alone.
    with monkeypatch.context() as patched:
        options(patched, update, "-k test_more")
        found, said = outcomes(run, FILED.format(more=3, less=1))
    assert found["passed"] == 1, said
    renewed = json.loads(path.read_text())["tests"]
    assert renewed[more]["syncs"] == 6
    assert renewed[less] == made[less]


FILE_WITH = (
    '{"format": 1, "made_with": {}, "tests": {"a": '
    '{"syncs": %s, "transfer_bytes": 0, "memory_bytes": 0, "time_ns": 0}}}'
)


def test_a_test_that_is_not_in_the_file_passes_and_is_named(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester, _ = run
    Path(pytester.path, "budget.json").write_text(
        json.dumps({"format": 1, "made_with": {"torch": "1.0"}, "tests": {}})
    )
    options(monkeypatch, "--virtual-cuda --virtual-cuda-budget budget.json")
    found, said = outcomes(run, FILED.format(more=1, less=1))
    assert found == {"passed": 3}
    assert "3 tests not in the file" in said


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "there is none; make it with --virtual-cuda-budget-update"),
        ("{", "is no file of budgets"),
        ("[]", "it is of another form"),
        ('{"format": 2, "tests": {}}', "it is of another form"),
        ('{"format": 1, "made_with": {}, "tests": {"a": {"waits": 1}}}', "it is of another form"),
        (FILE_WITH % '"x"', "it is of another form"),
        (FILE_WITH % "2.7", "it is of another form"),
        (FILE_WITH % "-2", "it is of another form"),
    ],
)
def test_a_file_that_is_none_says_so(
    run: Run, monkeypatch: pytest.MonkeyPatch, content: str | None, sentence: str
) -> None:
    pytester, python = run
    if content is not None:
        Path(pytester.path, "budget.json").write_text(content)
    options(monkeypatch, "--virtual-cuda-budget budget.json")
    done = python.run("pytest", cwd=pytester.path, env=os.environ)
    assert done.returncode == 4
    assert sentence in done.stdout + done.stderr


def test_a_file_that_cannot_be_written_fails_the_run(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester, python = run
    Path(pytester.path, "budgets").write_text("a file, and no folder")
    pytester.makepyfile("def test_it(): ...")
    options(monkeypatch, "--virtual-cuda-budget budgets/all.json --virtual-cuda-budget-update")
    done = python.run("pytest", cwd=pytester.path, env=os.environ)
    assert done.returncode == 4
    assert "all.json was not written: " in done.stdout
    assert "INTERNALERROR" not in done.stdout + done.stderr


def test_an_empty_name_is_no_file(run: Run) -> None:
    pytester, python = run
    done = python.run("pytest", "--virtual-cuda-budget=", cwd=pytester.path, env=os.environ)
    assert done.returncode == 4
    assert "the name of the file is empty" in done.stdout + done.stderr


def test_the_update_needs_a_file(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester, python = run
    options(monkeypatch, "--virtual-cuda-budget-update")
    done = python.run("pytest", cwd=pytester.path, env=os.environ)
    assert done.returncode == 4
    assert "name it with --virtual-cuda-budget FILE" in done.stdout + done.stderr
