"""The pytest fixture `virtual_cuda`, its marker, and the option `--virtual-cuda`.

Every pytest run in an environment with this package imports this module, so it imports nothing but
pytest: torch comes with the first test that uses the fixture, or with the option.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from virtual_cuda import VirtualGpu

FIXTURE: Final = "virtual_cuda"
OPTIONS: Final = ("devices", "memory", "name", "gpu", "clock")
MARKER: Final = (
    f"{FIXTURE}(devices=1, memory='8 GiB', name=..., gpu='T4', clock='modelled'): "
    "run the test with this virtual CUDA device open"
)


ABOUT_A_GPU: Final = re.compile(r"cuda|gpu|nccl|accelerator", re.IGNORECASE)
PACKAGE: Final = str(Path(__file__).parent)
UNSUPPORTED: Final = (
    "NotImplementedError",
    "AttributeError",
    "DeviceError",
)  # of this package's own frames


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that open a device for all tests."""
    group = parser.getgroup("virtual-cuda", "a CUDA device without a GPU")
    group.addoption(
        "--virtual-cuda",
        action="store_true",
        help="run all tests with a virtual CUDA device, also those that are skipped without a GPU",
    )
    group.addoption(
        "--virtual-cuda-devices",
        type=int,
        default=1,
        metavar="N",
        help="how many devices (default: 1)",
    )
    group.addoption(
        "--virtual-cuda-memory", metavar="SIZE", help="of each device, such as 8GiB (the default)"
    )
    group.addoption(
        "--virtual-cuda-gpu", metavar="NAME", help="the GPU it has the properties of, such as T4"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Open the device for all tests, if that is asked for."""
    # Before any conftest.py: many ask at import whether there is a GPU.
    if early_config.known_args_namespace.virtual_cuda:
        early_config.pluginmanager.register(AllTests(early_config), "virtual-cuda-of-all-tests")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and let a warning of the device be no error."""
    config.addinivalue_line("markers", MARKER)
    # No failure where warnings are errors: on a GPU it would not be there.
    config.addinivalue_line("filterwarnings", "default:torch.compile does not compile:UserWarning")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give a test with the marker the fixture, also where it has no such argument."""
    # A marker that did nothing without the argument would let the test pass on the CPU, unnoticed.
    if not isinstance(item, pytest.Function) or not item.get_closest_marker(FIXTURE):
        return
    if FIXTURE not in item.fixturenames:
        item.fixturenames.insert(0, FIXTURE)


@pytest.fixture
def virtual_cuda(request: pytest.FixtureRequest) -> Iterator[VirtualGpu]:
    """A virtual CUDA device, open during the test.

    `virtual_cuda.ledger` has the records of what happened on it.
    """
    from virtual_cuda import virtual_cuda
    from virtual_cuda.errors import DeviceError

    options = _device_options(request.node)
    every: AllTests | None = request.config.pluginmanager.get_plugin("virtual-cuda-of-all-tests")
    if every is not None and not options:
        yield every.gpu
        return
    with ExitStack() as stack:
        if every is not None:
            stack.enter_context(every.close_for_a_while())
        try:
            gpu = stack.enter_context(virtual_cuda(**options))
        except DeviceError as error:
            pytest.fail(f"no virtual CUDA device: {error}", pytrace=False)
        yield gpu


def _device_options(test: pytest.Item) -> dict[str, Any]:
    """The arguments of the marker nearest to the test."""
    marker = test.get_closest_marker(FIXTURE)
    if marker is None:
        return {}
    unknown = [repr(argument) for argument in marker.args]
    unknown += [name for name in marker.kwargs if name not in OPTIONS]
    if unknown:
        known = ", ".join(f"{name}=..." for name in OPTIONS)
        given = ", ".join(unknown)
        message = f"@pytest.mark.{FIXTURE} takes {known}; it was given {given}"
        pytest.fail(message, pytrace=False)
    return dict(marker.kwargs)


class AllTests:
    """One device for the whole run, and what the tests did with it.

    With xdist each worker has its own.
    """

    def __init__(self, config: pytest.Config) -> None:
        from virtual_cuda.errors import DeviceError

        chosen = config.known_args_namespace
        self._asked = {
            "devices": chosen.virtual_cuda_devices,
            "memory": chosen.virtual_cuda_memory,
            "gpu": chosen.virtual_cuda_gpu,
        }
        self._device = ExitStack()
        try:
            self._open_device()
        except DeviceError as error:
            raise pytest.UsageError(f"--virtual-cuda: {error}") from None
        self._used: Counter[str] = Counter()  # outcomes of the tests that used the device
        self._limits: dict[str, str] = {}
        self._skips: Counter[str] = Counter()

    def _open_device(self) -> None:
        from virtual_cuda import virtual_cuda

        self.gpu = self._device.enter_context(virtual_cuda(**self._asked))

    @contextmanager
    def close_for_a_while(self) -> Iterator[None]:
        """Closes the device for a test that opens one of its own."""
        self._device.close()
        try:
            yield
        finally:
            self._open_device()

    def pytest_unconfigure(self) -> None:
        self._device.close()

    def pytest_report_header(self) -> str:
        devices = len(self.gpu.devices)
        return f"virtual CUDA: {devices} x {self.gpu.name}, no GPU is used"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        """Begin each test with an empty ledger."""
        rows = self.gpu.ledger.rows
        rows.clear()  # a long run would keep millions
        assert not self.gpu.ledger.records
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note in the report whether the device was used, and whether it was its limit."""
        report = yield
        # Plain attributes reach xdist's controller, too.
        report.virtual_cuda_used = bool(self.gpu.ledger.rows)  # type: ignore[attr-defined]
        error = call.excinfo
        if report.failed and error is not None and _is_limit_of_device(error):
            message = f"{error.type.__name__}: {error.value}"
            first_line = message.partition("\n")[0]
            report.virtual_cuda_limit = first_line  # type: ignore[attr-defined]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the outcomes of tests that used the device, limits, and skips."""
        if report.skipped and isinstance(report.longrepr, tuple):
            reason = report.longrepr[2].removeprefix("Skipped: ")
            if ABOUT_A_GPU.search(reason):
                self._skips[reason] += 1
        is_outcome = report.when == "call" or report.failed
        if is_outcome and getattr(report, "virtual_cuda_used", False):
            self._used[report.outcome] += 1
        limit = getattr(report, "virtual_cuda_limit", "")
        if limit:
            self._limits[report.nodeid] = limit

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show what was counted."""
        write = terminalreporter.write_line
        terminalreporter.section("virtual CUDA")
        outcomes = sorted(self._used.items(), reverse=True)
        used = f"{self._used.total()} tests used the device"
        if outcomes:
            counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes)
            used += f": {counts}"
        write(f"{used}.")
        if self._limits:
            why = "the virtual device cannot do something, which a GPU may"
            write(f"{len(self._limits)} failed because {why}:")
            for test, reason in self._limits.items():
                write(f"  {test}: {reason}")
        if self._skips:
            write(f"{self._skips.total()} were skipped for reasons that name a GPU:")
            for reason, count in self._skips.most_common(10):
                write(f"  {count} x {reason}")


def _is_limit_of_device(error: pytest.ExceptionInfo[BaseException]) -> bool:
    """True if this package has raised an error for what the device cannot do."""
    last_file = str(error.traceback[-1].path)
    if not last_file.startswith(PACKAGE):
        return False
    return any(kind.__name__ in UNSUPPORTED for kind in error.type.__mro__)
