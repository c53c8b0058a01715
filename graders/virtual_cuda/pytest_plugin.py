"""The pytest fixture `virtual_cuda` and its marker.

Every pytest run in an environment with this package imports this module, so it imports nothing but pytest: torch comes
with the first test that uses the fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
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


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    # No failure where warnings are errors: on a GPU it would not be there.
    config.addinivalue_line("filterwarnings", "default:torch.compile does not compile:UserWarning")


def pytest_itemcollected(item: pytest.Item) -> None:
    # A marker that did nothing without the argument would let the test pass on the CPU, unnoticed.
    if isinstance(item, pytest.Function) and item.get_closest_marker(FIXTURE) and FIXTURE not in item.fixturenames:
        item.fixturenames.insert(0, FIXTURE)


@pytest.fixture
def virtual_cuda(request: pytest.FixtureRequest) -> Iterator[VirtualGpu]:
    """A virtual CUDA device, open during the test; `virtual_cuda.ledger` has the records of what happened on it."""
    from virtual_cuda import virtual_cuda
    from virtual_cuda.errors import DeviceError

    options = _options(request.node)
    with ExitStack() as stack:
        try:
            gpu = stack.enter_context(virtual_cuda(**options))
        except DeviceError as error:
            pytest.fail(f"no virtual CUDA device: {error}", pytrace=False)
        yield gpu


def _options(test: pytest.Item) -> dict[str, Any]:
    """The arguments of the marker nearest to the test."""
    marker = test.get_closest_marker(FIXTURE)
    if marker is None:
        return {}
    unknown = [*map(repr, marker.args), *(name for name in marker.kwargs if name not in OPTIONS)]
    if unknown:
        known = ", ".join(f"{name}=..." for name in OPTIONS)
        pytest.fail(f"@pytest.mark.{FIXTURE} takes {known}; it was given {', '.join(unknown)}", pytrace=False)
    return dict(marker.kwargs)
