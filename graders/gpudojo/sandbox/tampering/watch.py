"""The watch over student code in a child: calls it, cleans up after it, tells what it replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from virtual_cuda import open_device
from virtual_cuda.hooks import patches_in_force

from gpudojo.model.catalogue import registered_days
from gpudojo.sandbox.tampering.findings import FindingKind, WatchFinding
from gpudojo.sandbox.tampering.leftovers import Leftovers
from gpudojo.sandbox.tampering.names import (
    MOST_TOLD,
    GuardedNames,
    owners_in_packages,
    owners_in_torch_and_python,
)
from gpudojo.sandbox.tampering.operators import LibraryWatch
from gpudojo.sandbox.tampering.reports import OWN_PACKAGES, Reports, Tell, folders_of
from gpudojo.sandbox.tampering.stacks import call_without_callers


class Watch:
    """Watches student code in this process and in all that are forked from it."""

    def __init__(self, undo_patches: Callable[[], None]) -> None:
        """Remember everything as it is now, before student code runs.

        `undo_patches` gives torch its own names back that an open device has patched.
        """
        days = [each.package.partition(".")[0] for each in registered_days().values()]
        packages = tuple({*OWN_PACKAGES, *days})
        self._undo_patches = undo_patches
        self._leftovers = Leftovers()
        self._libraries = LibraryWatch()
        self._torchs = GuardedNames(owners_in_torch_and_python())
        self._own = GuardedNames(owners_in_packages(packages))
        # An open device has names of its own in torch, mostly the same ones.
        with open_device("virtual"):
            self._torchs_with_device = self._torchs.take_snapshot()
            self._own_with_device = self._own.take_snapshot()
        undo_patches()
        self._torchs_without_device = self._torchs.take_snapshot()
        self._own_without_device = self._own.take_snapshot()
        self._replaced_by_file: list[WatchFinding] = []
        self._reports = Reports(folders_of(packages))

    def tell_to(self, tell: Tell) -> None:
        """Tell at once, from now on, what student code does that somebody should read."""
        self._reports.tell_to(tell)

    def call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call student code on a stack of its own, and remove what it leaves in place.

        Returns what it returns, and raises what it raises.
        """
        put_back = self._leftovers.remember()
        try:
            return call_without_callers(function, args, kwargs)
        finally:
            put_back()

    def run_file(self, function: Callable[[], Any]) -> None:
        """Run a student's file, and put back what it replaces of torch. Raises what it raises.

        Reports names in its code that lead to the grader.
        """
        self._reports.report_names(function.__code__)
        before = self._torchs.take_snapshot()  # a device may be open
        try:
            self.call(function, (), {})
        finally:
            replaced = self._torchs.find_replaced(FindingKind.REPORTED, before)
            self._replaced_by_file += replaced
            if replaced:
                self._torchs.put_back(before)
            self._reports.put_back_functions()

    def take_replaced(self) -> list[WatchFinding]:
        """What files have replaced since this was asked last."""
        replaced = self._replaced_by_file[:MOST_TOLD]
        self._replaced_by_file.clear()
        return replaced

    def end_function(self) -> list[WatchFinding]:
        """What calls of a function have replaced. Everything is put back.

        What its file has replaced of the grader is told here, too, after its first function.
        """
        torchs = self._torchs.find_replaced(
            FindingKind.UNMEASURED,
            self._torchs_with_device,
            self._torchs_without_device,
            # Where torch's settings changed meanwhile, the device has made new ones.
            patches=patches_in_force(),
        )
        own = self._own.find_replaced(
            FindingKind.FORGED, self._own_with_device, self._own_without_device
        )
        if torchs or own:
            self._undo_patches()
            self._torchs.put_back(self._torchs_without_device)
            self._own.put_back(self._own_without_device)
        self._reports.put_back_functions()
        return [*self._libraries.findings(), *torchs, *own]
