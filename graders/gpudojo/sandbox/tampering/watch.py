"""The watch over student code in a child: calls it, cleans up after it, tells what it replaced."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from itertools import compress
from operator import is_not
from typing import Any

from virtual_cuda import open_device
from virtual_cuda.hooks import find_patch

from gpudojo.model.catalogue import registered_days
from gpudojo.sandbox.tampering.code_names import names_stored_by
from gpudojo.sandbox.tampering.debugging import show_students_code_alone
from gpudojo.sandbox.tampering.findings import OWN_PACKAGES, FindingKind, WatchFinding
from gpudojo.sandbox.tampering.leftovers import Leftovers
from gpudojo.sandbox.tampering.names import (
    FREE,
    MISSING,
    MOST_TOLD,
    FewNames,
    GuardedNames,
    Owner,
    ReplacedName,
    owners_in_packages,
    owners_in_torch_and_python,
)
from gpudojo.sandbox.tampering.operators import LibraryWatch
from gpudojo.sandbox.tampering.reports import Reports, Tell, folders_of
from gpudojo.sandbox.tampering.stacks import call_without_callers


class Watch:
    """Watches student code in this process and in all that are forked from it."""

    def __init__(self, undo_patches: Callable[[], None]) -> None:
        """Remember everything as it is now, before student code runs.

        `undo_patches` gives torch its own names back that an open device has patched. Functions of
        `sys`, `gc` and torch are replaced, and an audit hook is added, for as long as the process
        lives. Raises a DojoError where the virtual device cannot be opened.
        """
        days = [each.package.partition(".")[0] for each in registered_days().values()]
        packages = tuple({*OWN_PACKAGES, *days})
        own_folders = folders_of(packages)
        show_students_code_alone(own_folders)
        self._leftovers = Leftovers()
        self._registered_kernels = LibraryWatch()
        self._builtins = GuardedBuiltins()
        self._torchs = GuardedNames(owners_in_torch_and_python())
        self._own = GuardedNames(owners_in_packages(packages))
        # An open device has names of its own in torch, mostly the same ones.
        with open_device("virtual"):
            self._torchs_with_device = self._torchs.take_snapshot()
            self._own_with_device = self._own.take_snapshot()
        undo_patches()
        self._torchs_without_device = self._torchs.take_snapshot()
        self._own_without_device = self._own.take_snapshot()
        self._reports = Reports(own_folders)
        # By the name of a student's file: what its functions are most likely to replace.
        self._replaceable: dict[str, FewNames] = {}
        # What the call that is running has replaced of torch and Python; None while none is.
        self._find_replaced: Callable[[], list[ReplacedName]] | None = None

    def tell_to(self, tell: Tell) -> None:
        """Tell at once, from now on, what student code does that somebody should read."""
        self._reports.tell_to(tell)

    def call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call student code on a stack of its own.

        Afterwards hooks that it leaves in place are gone, and names of torch and Python that it
        replaced are put back, before anybody else uses them, and reported. Returns what it returns,
        and raises what it raises.

        To compare all names takes longer than most calls: after a call of a function only those are
        looked at that its file stores something in. `end_function` finds the others.
        """
        outer_call = self._find_replaced
        self._find_replaced = find_replaced = self._finder_for(function)
        remove_leftovers = self._leftovers.remember()
        try:
            return call_without_callers(function, args, kwargs)
        finally:
            self._find_replaced = outer_call
            replaced = self._builtins.put_back()  # first: all code uses them
            remove_leftovers()
            replaced += find_replaced()
            self._put_back_and_note(replaced)

    def _finder_for(self, function: Callable[..., Any]) -> Callable[[], list[ReplacedName]]:
        """The function that finds what a call of this student's function has replaced."""
        code = getattr(function, "__code__", None)
        replaceable = self._replaceable.get(code.co_filename) if code is not None else None
        if replaceable is None:
            return self._find_replaced_in_torch
        return lambda: _without_patches(replaceable.find_replacements())

    def call_recorder(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call a function of a probe's that student code has reached while it runs.

        Names of Python and torch that student code has replaced mean their own things meanwhile,
        and what it has made of them afterwards: a wrapper may count calls. Returns what the
        function returns, and raises what it raises.
        """
        replaced = self._builtins.put_back()  # first: all code uses them
        if self._find_replaced is not None:
            replaced += self._find_replaced()
        for each in replaced:
            each.put_back()
        try:
            return function(*args)
        finally:
            for each in replaced:
                each.replace_again()

    def run_file(self, function: Callable[[], Any]) -> None:
        """Run a student's file, and put back what it replaces of torch.

        Reports names in its code that lead to the grader, and remembers which names of torch its
        functions may replace. Raises what the file raises.
        """
        code = function.__code__
        self._reports.report_names(code)
        self._replaceable.pop(code.co_filename, None)  # without an entry, `call` compares all names
        try:
            self.call(function, (), {})
        finally:
            self._reports.put_back_code_of_functions()
            self._replaceable[code.co_filename] = self._torchs.choose(
                names_stored_by(code), self._torchs_without_device, self._torchs_with_device
            )

    def _put_back_and_note(self, replaced: list[ReplacedName]) -> None:
        """Put these names back, and report the first MOST_TOLD of them."""
        for each in replaced:
            each.put_back()
        for each in replaced[:MOST_TOLD]:
            self._reports.report(each.make_finding(FindingKind.PUT_BACK))

    def end_function(self) -> list[WatchFinding]:
        """What calls of a function have left replaced of torch and Python, and of the grader.

        Names are put back, and the code of functions. Kernels that were registered for operators of
        torch cannot be: they are told again after each later function. What the file has replaced
        of the grader is told after its first function.
        """
        torchs = self._find_replaced_in_torch()
        own = self._own.find_replacements(self._own_without_device, self._own_with_device)
        for each in (*torchs, *own):
            each.put_back()
        self._reports.put_back_code_of_functions()
        return [
            *self._registered_kernels.findings(),
            *[each.make_finding(FindingKind.UNMEASURED) for each in torchs[:MOST_TOLD]],
            *[each.make_finding(FindingKind.FORGED) for each in own[:MOST_TOLD]],
        ]

    def _find_replaced_in_torch(self) -> list[ReplacedName]:
        """Names of torch and Python with values that neither they had nor a device gave them."""
        return _without_patches(
            self._torchs.find_replacements(self._torchs_without_device, self._torchs_with_device)
        )


def _without_patches(replaced: list[ReplacedName]) -> list[ReplacedName]:
    """Those names whose values are not patches of an open device, with what is to be put back.

    `before` of each is replaced by the device's patch, where there is one. Where torch's settings
    have changed, the device has made new patches.
    """
    found = []
    for each in replaced:
        patch = find_patch(each.owner.owner, each.name)
        before = each.before if patch is None else patch.put
        if each.now is not before:
            found.append(each._replace(before=before))
    return found


class GuardedBuiltins:
    """Puts built-in functions back that student code has replaced.

    All other code uses them, also that which compares names: it works only afterwards.
    """

    def __init__(self) -> None:
        self._names = vars(builtins)
        self._owner = Owner("builtins", builtins, self._names)
        self._functions = {name: each for name, each in self._names.items() if name not in FREE}
        self._as_left: dict[str, Any] = {}  # by student code

    def put_back(self) -> list[ReplacedName]:
        """Give all built-in functions their names back. Returns those that had lost them.

        Its first three lines work whatever the names of built-in functions mean.
        """
        self._as_left.clear()
        self._as_left.update(self._names)
        self._names.update(self._functions)
        left = map(self._as_left.get, self._functions)
        changed = compress(self._functions, map(is_not, left, self._functions.values()))
        return [
            ReplacedName(self._owner, name, self._functions[name], self._as_left.get(name, MISSING))
            for name in changed
        ]
