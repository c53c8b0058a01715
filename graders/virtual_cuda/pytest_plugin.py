"""The pytest fixtures `virtual_cuda…`, their marker, and the options `--virtual-cuda…`.

Every pytest run in an environment with this package imports this module, so it imports nothing but
pytest: torch comes with the first test that uses a fixture, or with an option.
"""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from virtual_cuda import VirtualGpu
    from virtual_cuda.budget_file import BudgetFile
    from virtual_cuda.budgets import Counts, MeasuredTest

FIXTURE: Final = "virtual_cuda"
WIDER_FIXTURES: Final = ("virtual_cuda_class", "virtual_cuda_module", "virtual_cuda_session")
DEVICE_OPTIONS: Final = ("devices", "memory", "name", "gpu", "clock", "values")
BUDGETS: Final = ("max_syncs", "max_transfers", "max_memory", "max_time")
MARKER: Final = (
    f"{FIXTURE}(devices=1, memory='8 GiB', name=..., gpu='T4', clock='modelled', "
    "values=False, max_syncs=1, max_transfers='1 MiB', max_memory='200 MiB', max_time='5 ms'): "
    "run the test with this virtual CUDA device open, and fail it if it needs more"
)
ALL_TESTS: Final = "virtual-cuda-of-all-tests"
BUDGET_FILE: Final = "virtual-cuda-budget-file"

NOTHING_RAN: Final = (
    "nothing ran on the virtual CUDA device, so that the budget of this test says nothing: code "
    "that asks for a GPU when it is imported takes the CPU, unless pytest runs with --virtual-cuda"
)

ABOUT_A_GPU: Final = re.compile(r"cuda|gpu|nccl|accelerator", re.IGNORECASE)
PACKAGE: Final = str(Path(__file__).parent)
UNSUPPORTED: Final = (
    "NotImplementedError",
    "AttributeError",
    "DeviceError",
)  # of this package's own frames


# ---- options and markers -------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that open a device for all tests, and those of budgets."""
    group = parser.getgroup("virtual-cuda", "a CUDA device without a GPU")
    group.addoption(
        "--virtual-cuda",
        action="store_true",
        help="run all tests with a virtual CUDA device, also those that are skipped without a GPU",
    )
    group.addoption(
        "--virtual-cuda-devices",
        type=int,
        metavar="N",
        help="how many devices there are where a test does not say it (default: 1)",
    )
    group.addoption(
        "--virtual-cuda-memory",
        metavar="SIZE",
        help="of each device, such as 8GiB (the default)",
    )
    group.addoption(
        "--virtual-cuda-gpu", metavar="NAME", help="the GPU it has the properties of, such as T4"
    )
    group.addoption(
        "--virtual-cuda-budget",
        metavar="FILE",
        help="fail tests that wait, copy, hold or take more than is recorded in FILE",
    )
    group.addoption(
        "--virtual-cuda-budget-update",
        action="store_true",
        help="make or renew that FILE: record what the tests of this run need",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Open the device for all tests, if that is asked for; the end of the run closes it.

    Raises pytest's UsageError where it cannot be opened.
    """
    # Before any conftest.py: many ask at import whether there is a GPU.
    if early_config.known_args_namespace.virtual_cuda:
        early_config.pluginmanager.register(AllTests(early_config), ALL_TESTS)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, read the file of budgets, and let a warning of the device be no error.

    Raises pytest's UsageError for options that cannot be.
    """
    config.addinivalue_line("markers", MARKER)
    # No failure where warnings are errors: on a GPU it would not be there.
    config.addinivalue_line("filterwarnings", "default:torch.compile does not compile:UserWarning")
    path = config.option.virtual_cuda_budget
    if path == "":  # as from a variable of a script that is not set
        raise pytest.UsageError("--virtual-cuda-budget FILE: the name of the file is empty")
    if path is not None:
        config.pluginmanager.register(FileOfBudgets(config), BUDGET_FILE)
    elif config.option.virtual_cuda_budget_update:
        raise pytest.UsageError(
            "--virtual-cuda-budget-update renews a file: name it with --virtual-cuda-budget FILE"
        )


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give a test with the marker the fixture, also where it has no such argument."""
    # A marker that did nothing without the argument would let the test pass on the CPU, unnoticed.
    if not isinstance(item, pytest.Function) or not item.get_closest_marker(FIXTURE):
        return
    if not {FIXTURE, *WIDER_FIXTURES} & set(item.fixturenames):
        item.fixturenames.insert(0, FIXTURE)


def _marker_options(node: Any) -> dict[str, Any]:
    """The arguments of all markers of a test, class or module; of equal ones, the nearest.

    Fails the test for an argument that the marker does not have.
    """
    options: dict[str, Any] = {}
    known = (*DEVICE_OPTIONS, *BUDGETS)
    for marker in node.iter_markers(FIXTURE):  # the nearest first
        unknown = [repr(argument) for argument in marker.args]
        unknown += [name for name in marker.kwargs if name not in known]
        if unknown:
            pytest.fail(_text_of_unknown(unknown), pytrace=False)
        options = dict(marker.kwargs) | options
    return options


def _text_of_unknown(unknown: list[str]) -> str:
    """What is wrong with a marker that has unknown arguments; a near miss is named."""
    of_devices = ", ".join(f"{name}=..." for name in DEVICE_OPTIONS)
    given = ", ".join(unknown)
    text = f"@pytest.mark.{FIXTURE} takes {of_devices}; it was given {given}"
    near = get_close_matches(unknown[0], (*DEVICE_OPTIONS, *BUDGETS), n=1)
    if near:
        text += f" (did you mean {near[0]}?)"
    return f"{text}; budgets are {', '.join(BUDGETS)}"


def _device_options(node: Any) -> dict[str, Any]:
    """The options of the marker that are for the device."""
    options = _marker_options(node)
    return {name: value for name, value in options.items() if name in DEVICE_OPTIONS}


def _command_line_options(config: pytest.Config) -> dict[str, Any]:
    """The device that the command line asks for: what tests have that do not say more."""
    chosen = config.known_args_namespace
    options = {
        "devices": chosen.virtual_cuda_devices,
        "memory": chosen.virtual_cuda_memory,
        "gpu": chosen.virtual_cuda_gpu,
    }
    return {name: value for name, value in options.items() if value is not None}


# ---- fixtures ------------------------------------------------------------------------------------


@dataclass
class Watched:
    """The device of a test, and where its part of the ledger begins."""

    gpu: VirtualGpu
    first: int

    def was_used(self) -> bool:
        """True if anything happened on the device since the test began."""
        return self.gpu.ledger.since(self.first).was_used()


WATCHED: Final = pytest.StashKey[Watched]()
COUNTS: Final = pytest.StashKey["Counts"]()


@pytest.fixture
def virtual_cuda(request: pytest.FixtureRequest) -> Iterator[VirtualGpu]:
    """A virtual CUDA device of its own for the test.

    `virtual_cuda.ledger` has the records of what happened on it.
    """
    with _open_device(request) as gpu:
        request.node.stash[WATCHED] = Watched(gpu, 0)
        yield gpu


@pytest.fixture(scope="class")
def virtual_cuda_class(request: pytest.FixtureRequest) -> Iterator[VirtualGpu]:
    """A virtual CUDA device for all tests of a class: its tensors and its ledger stay."""
    with _open_device(request) as gpu:
        yield gpu


@pytest.fixture(scope="module")
def virtual_cuda_module(request: pytest.FixtureRequest) -> Iterator[VirtualGpu]:
    """A virtual CUDA device for all tests of a module: its tensors and its ledger stay."""
    with _open_device(request) as gpu:
        yield gpu


@pytest.fixture(scope="session")
def virtual_cuda_session(request: pytest.FixtureRequest) -> Iterator[VirtualGpu]:
    """A virtual CUDA device for the whole run: its tensors and its ledger stay."""
    with _open_device(request) as gpu:
        yield gpu


@contextmanager
def _open_device(request: pytest.FixtureRequest) -> Iterator[VirtualGpu]:
    """Open a device for the length of a `with` block; fails the test where it cannot be opened.

    Where a wider one is open, its tensors stay usable, unless the marker asks for another kind of
    device: then the wider one is paused.
    """
    from virtual_cuda.device.state import now
    from virtual_cuda.devices import take_over_devices, virtual_cuda
    from virtual_cuda.errors import DeviceError

    options = _device_options(request.node)
    outer = now.gpu
    refused = ""
    with ExitStack() as stack:
        try:
            if outer is not None and not options:
                gpu = stack.enter_context(take_over_devices(outer))
            else:
                if outer is not None:
                    stack.enter_context(outer.paused())
                asked = _command_line_options(request.config) | options
                gpu = stack.enter_context(virtual_cuda(**asked))
        except DeviceError as error:
            refused = str(error)
        if refused:  # not inside of `except`: pytest would show both errors
            pytest.fail(f"no virtual CUDA device: {refused}", pytrace=False)
        yield gpu


# ---- budgets -------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test whose marker has a budget that cannot be understood, or an unknown argument."""
    budgets = _budgets_of(item)
    if not budgets:
        return
    from virtual_cuda.budgets import require_budgets
    from virtual_cuda.errors import BadBudget

    wrong = ""
    try:
        require_budgets(budgets)
    except BadBudget as error:
        wrong = str(error)
    if wrong:
        pytest.fail(f"@pytest.mark.{FIXTURE}: {wrong}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that has passed, but needed more than its budget.

    What it needed is noted for the file of budgets. Warns where nothing ran on the device of a test
    with a budget.
    """
    watched = _watched_by(item)
    if watched is None:
        return (yield)
    budgets = _budgets_of(item)
    files: FileOfBudgets | None = item.config.pluginmanager.get_plugin(BUDGET_FILE)
    if not budgets and files is None:
        return (yield)
    gc.collect()  # what fixtures have left is not this test's
    first = watched.gpu.ledger.mark()
    before = watched.gpu.memory_in_use()
    result = yield
    measured = _measure(watched.gpu, first, before)
    excesses = _over_budget(item, measured, budgets, files)
    if excesses:
        pytest.fail(excesses, pytrace=False)
    if any(budgets.values()) and not watched.was_used():
        item.warn(pytest.PytestWarning(NOTHING_RAN))
    return result


def _watched_by(item: pytest.Item) -> Watched | None:
    """The device of a test: its own, or that of the wider fixture it uses; None without one.

    That of a wider fixture is noted in the test's stash, with where its part of the ledger begins.
    """
    watched = item.stash.get(WATCHED, None)
    if watched is not None or not isinstance(item, pytest.Function):
        return watched
    for name in WIDER_FIXTURES:
        gpu: Any = item.funcargs.get(name)
        if gpu is not None:
            watched = Watched(gpu, gpu.ledger.mark())
            item.stash[WATCHED] = watched
            return watched
    return None


def _budgets_of(item: pytest.Item) -> dict[str, Any]:
    """The budgets of a test's markers; fails the test for what the marker does not have."""
    options = _marker_options(item)
    return {name: value for name, value in options.items() if name in BUDGETS}


def _measure(gpu: VirtualGpu, first: int, before: dict[str, int]) -> MeasuredTest:
    """What was recorded since `first`, where so much memory was in use `before`."""
    from virtual_cuda.budgets import MeasuredTest

    until = gpu.ledger.mark()
    return MeasuredTest(gpu.ledger.since(first, until), gpu.times(first, until), before)


def _over_budget(
    item: pytest.Item, measured: MeasuredTest, budgets: dict[str, Any], files: FileOfBudgets | None
) -> str:
    """What is over the budgets of a test, as its failure tells it; "" where nothing is.

    Notes the counts of the test, for the file of budgets.
    """
    from virtual_cuda.budgets import describe, over_options

    counts = measured.counts()
    item.stash[COUNTS] = counts
    excesses = over_options(counts, budgets)
    parts = []
    if files is not None:
        grown = files.excesses_of(item.nodeid, counts)
        excesses += grown
        if grown:
            parts.append(files.file.advice())
    folder = str(item.config.rootpath)
    return "\n".join([*(describe(excess, measured, folder) for excess in excesses), *parts])


class FileOfBudgets:
    """The file of `--virtual-cuda-budget`, and what the tests of this run need.

    With xdist each worker compares, and the controller writes.
    """

    def __init__(self, config: pytest.Config) -> None:
        """Read the file; raises pytest's UsageError where that is not possible."""
        from virtual_cuda.errors import BadBudgetFile

        self._updates: bool = config.option.virtual_cuda_budget_update
        self._is_worker = hasattr(config, "workerinput")
        self.file = _budget_file(config)
        self._needed: dict[str, Counts] = {}
        self._written = False
        self._refused = ""  # why the file could not be written
        if self._updates and not self.file.path.exists():
            return
        try:
            self.file.read()
        except BadBudgetFile as error:
            raise pytest.UsageError(f"--virtual-cuda-budget: {error}") from None

    def excesses_of(self, test: str, counts: Counts) -> list[Any]:
        """What a test needs more of than recorded; nothing while the file is renewed."""
        if self._updates:
            return []
        return self.file.excesses_of(test, counts)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what a test that has passed needs."""
        from virtual_cuda.budgets import Counts

        counts = getattr(report, "virtual_cuda_counts", None)
        if counts is not None and report.when == "call" and report.passed:
            self._needed[report.nodeid] = Counts(*counts)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the file, if it is to be renewed; where that fails, so does the run."""
        if not self._updates or self._is_worker:
            return
        try:
            self.file.write(self._needed)
            self._written = True
        except OSError as error:
            self._refused = str(error)
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was written, or which tests the file should have otherwise."""
        from virtual_cuda.ledger.texts import count_phrase

        terminalreporter.section("virtual CUDA budget")
        path = self.file.path
        if self._refused:
            terminalreporter.write_line(f"{path} was not written: {self._refused}")
            return
        if self._written:
            tests = count_phrase(len(self._needed), "test")
            terminalreporter.write_line(f"{path}: recorded what {tests} of this run needed.")
            return
        new = [test for test in self._needed if test not in self.file.tests]
        less = [test for test, counts in self._needed.items() if self.file.shrunk(test, counts)]
        known = count_phrase(len(self._needed) - len(new), "test")
        terminalreporter.write_line(f"{path}: {known} within what is recorded.")
        for which, what in ((new, "not in the file"), (less, "needing less than is recorded")):
            if which:
                count = count_phrase(len(which), "test")
                terminalreporter.write_line(
                    f"{count} {what}: {_some_of(which)}. "
                    "Record that with --virtual-cuda-budget-update."
                )


def _some_of(tests: list[str]) -> str:
    """The names of the first tests, for a line of text."""
    if len(tests) <= 3:
        return ", ".join(tests)
    return ", ".join([*tests[:3], "…"])


def _budget_file(config: pytest.Config) -> BudgetFile:
    """The file that the command line names, not yet read."""
    import importlib.metadata

    from virtual_cuda.budget_file import BudgetFile

    versions = {}
    for name in ("gpudojo", "torch"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    path = config.invocation_params.dir / config.option.virtual_cuda_budget
    return BudgetFile(path, versions)


# ---- one device for all tests --------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note in the report whether the device was used, what for, and whether it was its limit."""
    report = yield
    # Plain attributes reach xdist's controller, too.
    watched = item.stash.get(WATCHED, None)
    if watched is not None and watched.was_used():
        report.virtual_cuda_used = True  # type: ignore[attr-defined]
    counts = item.stash.get(COUNTS, None)
    if counts is not None and report.when == "call":
        report.virtual_cuda_counts = list(counts)  # type: ignore[attr-defined]
    error = call.excinfo
    if report.failed and error is not None and _is_limit_of_device(error):
        message = f"{error.type.__name__}: {error.value}"
        first_line = message.partition("\n")[0]
        report.virtual_cuda_limit = first_line  # type: ignore[attr-defined]
    return report


class AllTests:
    """The device that is open for the whole run, and what the tests did.

    Tests and fixtures of a wider scope use it; each test has a device of its own that takes over
    from it. With xdist each worker has its own.
    """

    def __init__(self, config: pytest.Config) -> None:
        """Open the device that the command line asks for.

        Raises pytest's UsageError where it cannot be opened.
        """
        from virtual_cuda import virtual_cuda
        from virtual_cuda.errors import DeviceError

        self._device = virtual_cuda(**_command_line_options(config))
        try:
            self.gpu = self._device.start()
        except DeviceError as error:
            raise pytest.UsageError(f"--virtual-cuda: {error}") from None
        assert self.gpu.session is not None
        self.gpu.session.gives_way = True  # to a test that opens a device by itself
        self._outcomes: dict[str, str] = {}  # of the tests that used the device
        self._limits: dict[str, str] = {}
        self._skips: Counter[str] = Counter()

    def pytest_unconfigure(self) -> None:
        self._device.stop()

    def pytest_report_header(self) -> str:
        devices = len(self.gpu.devices)
        return f"virtual CUDA: {devices} x {self.gpu.name}, no GPU is used"

    @pytest.fixture(autouse=True)
    def _virtual_cuda_of_each_test(self, request: pytest.FixtureRequest) -> None:
        """Give each test a device of its own, unless it asks for one of a wider scope."""
        if not set(WIDER_FIXTURES) & set(request.fixturenames):
            request.getfixturevalue(FIXTURE)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the outcomes of tests that used the device, limits, and skips."""
        if report.skipped and isinstance(report.longrepr, tuple):
            reason = report.longrepr[2].removeprefix("Skipped: ")
            if ABOUT_A_GPU.search(reason):
                self._skips[reason] += 1
        is_outcome = report.when == "call" or not report.passed
        if is_outcome and getattr(report, "virtual_cuda_used", False):
            self._outcomes[report.nodeid] = _outcome_of(report)
        limit = getattr(report, "virtual_cuda_limit", "")
        if limit:
            self._limits[report.nodeid] = limit

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show what was counted."""
        from virtual_cuda.ledger.texts import count_phrase

        write = terminalreporter.write_line
        terminalreporter.section("virtual CUDA")
        used = f"{count_phrase(len(self._outcomes), 'test')} used the device"
        counted = Counter(self._outcomes.values())
        if counted:
            used += ": " + ", ".join(
                f"{counted[outcome]} {outcome}" for outcome in _OUTCOMES if counted[outcome]
            )
        write(f"{used}.")
        if self._limits:
            why = "the virtual device cannot do something, which a GPU may"
            write(f"{len(self._limits)} failed because {why}:")
            for test, reason in self._limits.items():
                write(f"  {test}: {reason}")
        if self._skips:
            were = count_phrase(self._skips.total(), "test was", "tests were")
            reasons = "reason that names" if len(self._skips) == 1 else "reasons that name"
            a = "a " if len(self._skips) == 1 else ""
            write(f"{were} skipped for {a}{reasons} a GPU:")
            for reason, count in self._skips.most_common(10):
                write(f"  {count} x {reason}")


_OUTCOMES: Final = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")


def _outcome_of(report: pytest.TestReport) -> str:
    """The outcome of a test as pytest's own summary calls it."""
    if report.failed and report.when != "call":
        return "error"
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    return str(report.outcome)


def _is_limit_of_device(error: pytest.ExceptionInfo[BaseException]) -> bool:
    """True if this package has raised an error for what the device cannot do."""
    last_file = str(error.traceback[-1].path)
    if not last_file.startswith(PACKAGE):
        return False
    return any(kind.__name__ in UNSUPPORTED for kind in error.type.__mro__)
