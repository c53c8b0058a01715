"""A cluster that several tests share, and the classes that are graded on it."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if sys.platform != "linux":
    collect_ignore_glob = ["test_*.py"]  # clusters run Linux
else:
    pytest.importorskip("distributed", reason="the extra `cluster` is not installed")

    from gpudojo.model.results_file import read

    from tests.gpudojo.classes.cluster.machines import Machines, grade, rows, write_class
    from tests.sharing import once

    @pytest.fixture(autouse=True, scope="module")
    def sockets_collected() -> Iterator[None]:
        """Dask leaves sockets of lost connections to the garbage collector.

        Its warning belongs to no test of another module.
        """
        yield
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()

    @pytest.fixture(scope="module")  # three processes, which are never quite idle
    def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
        """Two workers, one of them looked after by a nanny; no test may harm them."""
        with Machines(tmp_path_factory.mktemp("machines")) as made:
            made.scheduler()
            first = made.worker(threads=2, ready=False)
            made.worker("--nanny")
            made.registered(first)
            yield made

    @pytest.fixture(scope="module")
    def lonely(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
        """A scheduler; each test brings its workers and takes them away."""
        with Machines(tmp_path_factory.mktemp("lonely")) as machines:
            machines.scheduler()
            yield machines

    @pytest.fixture(scope="session")
    def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
        return write_class(tmp_path_factory.mktemp("mixed"))

    @pytest.fixture(scope="session")
    def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
        return write_class(tmp_path_factory.mktemp("slow"), slow=6)

    @pytest.fixture(scope="session")
    def brief(tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The first of the slow ones."""
        return write_class(tmp_path_factory.mktemp("brief"), slow=1)

    @pytest.fixture(scope="session")
    def known(mixed: Path, slow: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """Both classes as they come out on one machine, graded once for all of xdist's workers."""

        def make(out: Path) -> Path:
            grade([mixed, slow], out, None)
            return out

        return once(tmp_path_factory, "known", make)

    @pytest.fixture(scope="session")
    def mixed_rows(known: Path) -> dict[str, Any]:
        found = rows(read(known / "results.json"))
        return {name: row for name, row in found.items() if not name.startswith("slow-")}

    @pytest.fixture(scope="session")
    def slow_rows(known: Path) -> dict[str, Any]:
        return {
            name: row
            for name, row in rows(read(known / "results.json")).items()
            if name.startswith("slow-")
        }
