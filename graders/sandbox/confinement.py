"""How is a forked child fenced in before it reads a line of student code? Layer by layer, each told if it holds.

`Fences` is made in the nursery, once: what can be prepared is, so that a child only has to step behind it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from typing import Any, Final

from graders.sandbox import calls, gpu, kernel
from graders.sandbox.layers import CALLS, DEVICE, FILES, LIMITS, NETWORK, PROCESSES, SCRATCH, SIGNALS, USER, Layers
from graders.sandbox.limits import first_to_go, limit
from graders.sandbox.readable import readable_paths

# The first of the user numbers that children get: far from any that is handed out, or where a container has but few.
USERS: Final = (2_000_000_000, 50_000)
AT_ONCE: Final = 10_000
FILES_AT_MOST: Final = 4096
DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random", "/dev/full")


class Fences:
    """What of the isolation can be made ready before there is a child."""

    def __init__(self, scratch: str, with_gpu: bool = False, processes: bool = True) -> None:
        self.scratch = scratch
        self.with_gpu = with_gpu
        self.processes = processes  # whether there may be process namespaces at all
        self.visible = os.environ.pop(gpu.VISIBLE, None)
        self.layers: Layers = {}
        self.namespaces = 0
        self.own_processes: int | None = None
        self.landlock: Any = None
        self.readable: list[tuple[int, bool]] = []  # open paths, and whether they may be written to
        self.on_gpu: list[tuple[int, bool]] = []  # those of a child that uses the real one
        self.filter: Any = None
        self.users = first_user()

    def prepare(self) -> None:
        """Find out what this machine allows; to be called in the process that will fork children."""
        self._namespaces()
        self._landlock()
        self.filter, self.layers[CALLS] = calls.filter_of_calls()

    def _namespaces(self) -> None:
        why = ""
        try:
            if self.processes:
                own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
                kernel.unshare(kernel.NEWPID)
                kernel.enter(own, kernel.NEWPID)
                self.own_processes = own
            else:
                why = gpu.NO_PROC
        except OSError as error:
            why = _reason(error)
        self.layers[PROCESSES] = why
        for layer, flags in ((NETWORK, kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS), (SCRATCH, kernel.NEWNS)):
            why = _tried(flags)
            self.layers[layer] = why
            if not why:
                self.namespaces |= flags

    def _landlock(self) -> None:
        try:
            from py_landlock import landlock_sys
            from py_landlock.abi import MIN_SCOPE_ABI
            from py_landlock.flags import AccessFs

            abi = landlock_sys.get_abi_version()
        except ImportError:
            self.layers[FILES] = self.layers[SIGNALS] = "py-landlock is not installed"
            return
        except Exception as error:  # its own tree of errors: not in this kernel, or switched off
            self.layers[FILES] = self.layers[SIGNALS] = f"this kernel has no Landlock ({error})"
            return
        self.landlock = landlock_sys
        self.layers[FILES] = ""
        self.layers[SIGNALS] = "" if abi >= MIN_SCOPE_ABI else "this kernel's Landlock does not know signals"
        self.read = AccessFs.READ_FILE | AccessFs.READ_DIR
        self.execute = AccessFs.EXECUTE
        self.abi = abi
        self.readable = [*_opened(readable_paths(), False), *_opened(DEVICES, True)]
        if self.with_gpu:
            self.on_gpu = [*_opened(gpu.libraries(), False), *_opened(gpu.devices(), True)]

    def descriptors(self) -> list[int]:
        """What is open for a child to step behind the fences, and closed by that."""
        return [path for path, _ in (*self.readable, *self.on_gpu)]

    # In the nursery, around fork

    def before_fork(self) -> None:
        if self.own_processes is not None:
            kernel.unshare(kernel.NEWPID)

    def after_fork(self) -> None:
        if self.own_processes is not None:
            kernel.enter(self.own_processes, kernel.NEWPID)

    # In the child

    def confine(
        self, number: int, memory: int, scratch: int, seconds: float, files: dict[str, bytes], on_gpu: bool = False
    ) -> Layers:
        """Put up every fence, put the submission's files in its scratch folder, and tell which fences hold."""
        layers = {name: why for name, why in self.layers.items() if on_gpu or name != DEVICE}
        os.setsid()
        with contextlib.suppress(OSError):
            kernel.die_with_parent()
        first_to_go()
        if self.namespaces:
            kernel.unshare(self.namespaces)
        if not layers[SCRATCH]:
            kernel.private_mounts()
            kernel.mount_memory(self.scratch, scratch, FILES_AT_MOST)
            home = self.scratch
        else:
            home = os.path.join(self.scratch, str(number))
            os.mkdir(home, 0o700)
        if not layers[NETWORK]:
            kernel.loopback_up()
        user = None if self.users is None else self.users + number % AT_ONCE
        laid_out(home, files, user)
        os.chdir(home)
        os.environ.update(HOME=home, TMPDIR=home)
        limit(memory, scratch, seconds, user is not None, on_gpu)
        layers[LIMITS] = ""
        if on_gpu:
            gpu.shown(self.visible)
            if self.may_mount_processes():
                kernel.mount_processes()
        rules = self._ruleset(home, on_gpu)
        layers[USER] = self._drop(user, bool(rules))
        if rules is not None:
            self.landlock.restrict_self(rules, None)
            os.close(rules)
        if self.filter is not None:
            self.filter.load()
        return layers

    def may_mount_processes(self) -> bool:
        """Only where nobody else sees it: what is mounted outside a namespace is mounted for the machine."""
        return self.own_processes is not None and bool(self.namespaces & kernel.NEWNS)

    def _ruleset(self, home: str, on_gpu: bool) -> int | None:
        if self.landlock is None:
            return None
        from py_landlock.abi import MIN_SCOPE_ABI, get_supported_fs, get_supported_scope
        from py_landlock.flags import AccessFs

        attributes = self.landlock.RulesetAttr()
        attributes.handled_access_fs = get_supported_fs(self.abi)
        if self.abi >= MIN_SCOPE_ABI:
            attributes.scoped = get_supported_scope(self.abi)
        rules: int = self.landlock.create_ruleset(attributes)
        supported = get_supported_fs(self.abi)
        writing = (self.read | AccessFs.WRITE_FILE | AccessFs.IOCTL_DEV) & supported
        also = [*self.on_gpu, *_opened(gpu.READ, False)] if on_gpu else []
        for path, writable in (*self.readable, *also):
            directory = stat.S_ISDIR(os.fstat(path).st_mode)
            access = writing if writable else (self.read | self.execute) & supported
            self._allow(rules, path, access if directory else access & ~AccessFs.READ_DIR)
            os.close(path)
        if not on_gpu:
            for path, _ in self.on_gpu:
                os.close(path)
        for own, _ in _opened([home, *(gpu.WRITTEN if on_gpu else ())], True):
            self._allow(rules, own, supported & ~AccessFs.MAKE_CHAR & ~AccessFs.MAKE_BLOCK & ~AccessFs.EXECUTE)
            os.close(own)
        from py_landlock.prctl import set_no_new_privs

        set_no_new_privs()
        return rules

    def _allow(self, rules: int, path: int, access: int) -> None:
        rule = self.landlock.PathBeneathAttr()
        rule.allowed_access, rule.parent_fd = access, path
        self.landlock.add_rule(rules, rule)

    def _drop(self, user: int | None, fenced: bool) -> str:
        """Give up what a user has; gives the reason if this is still somebody's own account."""
        if user is None:
            kernel.only_capabilities()
            return "the submission runs as the user who grades"
        os.setgroups([])
        # Packages may lie where only root can look. Landlock says what may be read, so that DAC need not.
        kept = [kernel.DAC_READ_SEARCH] if fenced and kernel.capable(kernel.DAC_READ_SEARCH) else []
        if kept:
            kernel.keep_capabilities()
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        kernel.only_capabilities(*kept)
        return ""


def first_user() -> int | None:
    """Where the users lie that this process may become; None where it is not root, or root of its own account only."""
    if os.getuid() != 0:
        return None
    try:
        with open("/proc/self/uid_map") as file:
            ranges = [(int(first), int(first) + int(count)) for first, _, count in map(str.split, file)]
    except (OSError, ValueError):
        ranges = [(0, 1 << 32)]
    return next((n for n in USERS if any(start <= n and n + AT_ONCE <= end for start, end in ranges)), None)


def laid_out(home: str, files: dict[str, bytes], owner: int | None) -> None:
    for name, data in files.items():
        path = os.path.join(home, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
    if owner is not None:
        for folder, _, names in os.walk(home):
            os.chown(folder, owner, owner)
            for name in names:
                os.chown(os.path.join(folder, name), owner, owner)


def _opened(paths: Iterable[str], writable: bool) -> list[tuple[int, bool]]:
    found = []
    for path in paths:
        with contextlib.suppress(OSError):
            found.append((os.open(path, os.O_PATH | os.O_CLOEXEC), writable))
    return found


def _tried(flags: int) -> str:
    """Whether a process may make namespaces of these kinds: in a child, which then ends."""
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            kernel.unshare(flags)
            if flags & kernel.NEWNS:
                kernel.private_mounts()
                kernel.mount_memory("/tmp", 1 << 16, 4)
            if flags & kernel.NEWNET:
                kernel.loopback_up()
        except OSError as error:
            code = error.errno or 1
        os._exit(code)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return "" if code == 0 else _reason(OSError(code, os.strerror(code)))


def _reason(error: OSError) -> str:
    return f"this machine does not allow such a namespace ({os.strerror(error.errno or 1)})"
