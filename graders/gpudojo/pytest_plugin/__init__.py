"""What gpudojo adds to pytest: exercise files as tests, and a virtual CUDA device as a fixture.

Every pytest run in an environment with gpudojo imports this module, so it imports nothing heavy: torch comes with the
first test that asks for a device.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from gpudojo.grading.limits import Limits
from gpudojo.grading.references import PUBLIC_SEEDS
from gpudojo.model.catalogue import exercise_for
from gpudojo.model.exercise import Exercise
from gpudojo.pytest_plugin import collection, feedback, timelines, xdist
from gpudojo.pytest_plugin.xdist import RESULTS, RunResults

if TYPE_CHECKING:
    from virtual_cuda.device.state import VirtualGpu


FIXTURE: Final = "virtual_cuda"
OPTIONS: Final = ("devices", "memory", "name")
MARKER: Final = f"{FIXTURE}(devices=1, memory='8 GiB', name=...): run the test with this virtual CUDA device open"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gpudojo", "gpudojo: exercises in GPU programming")
    benches = ("auto", "virtual", "cuda", "mps", "cpu")
    group.addoption(
        "--bench",
        choices=benches,
        default="auto",
        help="where student code runs; auto: on the real GPU where there is one, else on the virtual one",
    )
    group.addoption("--hints", type=int, default=1, metavar="N", help="show the first N hints (default: %(default)s)")
    timelines.add_options(group)
    group.addoption("--seed", type=int, default=PUBLIC_SEEDS[0], help="seed of the scenarios (default: %(default)s)")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    return collection.collect_file(file_path, parent)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    # pytest would import a file that is named on its command line, and a student's syntax error would stop everything.
    return collection.Nothing.from_parent(parent, path=module_path) if exercise_for(module_path) else None


def pytest_report_collectionfinish(config: pytest.Config, items: Sequence[pytest.Item]) -> list[str]:
    # Not in the header: which bench it is takes torch to know, and collecting must not cost the seconds it takes.
    checks = [item for item in items if isinstance(item, collection.CheckItem)]
    # A worker of pytest-xdist cannot end the run with a sentence; the process it works for does.
    if config.getoption("collectonly") or not checks or hasattr(config, "workerinput"):
        return []
    return [ready(config, {item.path: item.checks.exercise for item in checks})]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    config: pytest.Config = node.config
    run = config.stash[RESULTS]
    first = not run.planned
    run.collected(xdist.of_nodes(ids, config.rootpath))
    if first and run.planned:
        line = ready(config, xdist.exercises_of(run.planned.values()))
        reporter = config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(line)


def ready(config: pytest.Config, files: Mapping[Path, Exercise]) -> str:
    """A line on the bench of this run; an end to the run where what was asked for cannot be had."""
    kind, why = chosen_bench(str(config.getoption("bench")))
    refuse_unrecorded(kind, int(config.getoption("seed")), files)
    timelines.refuse_unwritable(config)
    return f"bench: {kind} ({why}), seed {config.getoption('seed')}"


def chosen_bench(asked: str) -> tuple[str, str]:
    """The bench of this run and why it is that one; an end to the run where this machine does not have it."""
    from virtual_cuda.devices import choose
    from virtual_cuda.errors import NoSuchDevice
    from virtual_cuda.real.session import available

    kind, why = choose(asked)
    if kind in ("cuda", "mps") and not available(kind):
        raise pytest.UsageError(f"--bench {asked}: {NoSuchDevice(kind)}")
    return kind, why


def refuse_unrecorded(kind: str, seed: int, files: Mapping[Path, Exercise]) -> None:
    """A released repository knows the reference on some seeds and benches: one sentence, not one for each check."""
    from gpudojo.grading import references
    from gpudojo.model.errors import BadEvidence, NoSuchSeed, NotRecorded

    for path, exercise in files.items():
        try:
            references.refuse_unrecorded(path, exercise, kind, seed)
        except NoSuchSeed as error:
            raise pytest.UsageError(f"--seed {seed}: {error}") from None
        except NotRecorded as error:
            raise pytest.UsageError(f"--bench {kind}: {error}") from None
        except BadEvidence as error:
            raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    # Instead of pytest-timeout's own timers, which end the item, or the process, wherever it is. Ours runs while the
    # student's code does, interrupts nothing else, and becomes a failed check.
    if not isinstance(item, collection.CheckItem):
        return None
    item.stash[collection.LIMITS] = Limits(
        settings.timeout,
        method=settings.method,
        characters=collection.CHARACTERS if item.config.getoption("capture") != "no" else None,
        on_raised=collection.quit_debugger,
    )
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool | None:
    return True if isinstance(item, collection.CheckItem) else None


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    status = dict(report.user_properties).get("gpudojo") if report.when == "call" else None
    if status == "to do":
        return "to do", "t", ("TO DO", {"yellow": True})
    if status == "blocked":
        return "blocked", "b", ("BLOCKED", {"yellow": True})
    if status == "error":
        return "error", "E", ("ERROR", {"red": True})
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    if isinstance(item, collection.CheckItem) and report.when == "call":
        feedback.arrange(report, item.checks)
        result = item.stash.get(collection.RESULT, None)
        if result is not None:
            report.user_properties.append(("gpudojo", str(result.outcome)))
        xdist.attach_result(report, item)
    return report


def pytest_collection_finish(session: pytest.Session) -> None:
    items = [item for item in session.items if isinstance(item, collection.CheckItem)]
    session.config.stash[RESULTS].collected((item.nodeid, xdist.of_item(item)) for item in items)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    items = getattr(terminalreporter._session, "items", [])
    run = config.stash[RESULTS]
    if timelines.wanted(config):
        graders = {item.file.path: item.file.grader for item in items if isinstance(item, collection.CheckItem)}
        timelines.write_section(terminalreporter, config, {path: one.pairs for path, one in graders.items()})
        if run.planned and not graders:
            terminalreporter.write_line("--timeline and --traces show nothing of a run with -n: leave it out")
    feedback.write_summary(terminalreporter, run)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    config.stash[RESULTS] = RunResults()
    config.pluginmanager.register(xdist.Listening(config), "gpudojo-listening")


def pytest_itemcollected(item: pytest.Item) -> None:
    # A marker that did nothing without the argument would let the test pass on the CPU, unnoticed.
    if isinstance(item, pytest.Function) and item.get_closest_marker(FIXTURE) and FIXTURE not in item.fixturenames:
        item.fixturenames.insert(0, FIXTURE)


@pytest.fixture
def virtual_cuda(request: pytest.FixtureRequest) -> Iterator[VirtualGpu]:
    """A virtual CUDA device, open during the test; `virtual_cuda.ledger` says what happened on it."""
    from virtual_cuda.device.context import virtual_cuda
    from virtual_cuda.errors import BenchError

    options = _options(request.node)
    with ExitStack() as stack:
        try:
            gpu = stack.enter_context(virtual_cuda(**options))
        except BenchError as error:
            pytest.fail(f"no virtual CUDA device: {error}", pytrace=False)
        yield gpu


def _options(test: pytest.Item) -> dict[str, Any]:
    """What the marker nearest to the test asks for."""
    marker = test.get_closest_marker(FIXTURE)
    if marker is None:
        return {}
    unknown = [*map(repr, marker.args), *(name for name in marker.kwargs if name not in OPTIONS)]
    if unknown:
        known = ", ".join(f"{name}=..." for name in OPTIONS)
        pytest.fail(f"@pytest.mark.{FIXTURE} takes {known}; it was given {', '.join(unknown)}", pytrace=False)
    return dict(marker.kwargs)
