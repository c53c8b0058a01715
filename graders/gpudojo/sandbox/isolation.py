"""Sets up the isolation layers around a child, and finds out which of them hold on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import site
import stat
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import virtual_cuda

import gpudojo
from gpudojo.sandbox import gpus, kernel
from gpudojo.sandbox.gpus import CUDA_HOST_BYTES
from gpudojo.sandbox.layers import CALLS, DEVICE, FILES, LIMITS, NETWORK, PROCESSES, SCRATCH, SIGNALS, USER, Layers

LINUX: Final = sys.platform == "linux"
# Read late by Python and libraries: shared libraries and time zones.
SYSTEM: Final = (
    *("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib"),
    *("/etc/ld.so.cache", "/usr/share/zoneinfo"),
    *("/sys/class/net", "/sys/bus/pci", "/sys/devices"),  # read by gloo about its network interface
)
DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random", "/dev/full")
PROCESSES_AT_MOST: Final = 64
FILES_AT_MOST: Final = 4096
# The first of the user numbers for children: far from any in use, or small where a container has few.
USERS: Final = (2_000_000_000, 50_000)
AT_ONCE: Final = 10_000


def readable_paths() -> list[str]:
    """Python, the installed packages and ours; not the folder around our packages, which may hold solutions."""
    # Of the import path only folders of installed packages: a checkout on it may hold solutions.
    installed = [path for path in sys.path if "-packages" in path or path.endswith(".zip")]
    names = [*site.getsitepackages(), *sysconfig.get_paths().values(), *SYSTEM, *installed]
    names += [os.path.dirname(os.path.realpath(sys.executable)), os.path.join(sys.prefix, "pyvenv.cfg")]
    packages = [str(Path(package.__path__[0]).resolve()) for package in (gpudojo, virtual_cuda)]

    def around_ours(folder: str) -> bool:
        return packages[0].startswith(folder + os.sep) and os.path.isdir(os.path.join(folder, "reference"))

    found = {os.path.realpath(name) for name in names if os.path.exists(name)}
    return [*sorted(path for path in found if not around_ours(path)), *packages]


def limit(memory: int, scratch: int, seconds: float, alone: bool, gpu: bool = False) -> None:
    """Set the resource limits of this process; `memory` comes on top of what torch holds already.

    `alone` means that the child's user has no other processes, since the kernel counts by user. CUDA reserves
    addresses by the gigabyte, which cost nothing: with `gpu`, writable memory is limited instead.
    """
    if sys.platform == "win32":
        raise NotImplementedError
    processes = PROCESSES_AT_MOST + (0 if alone else _running())
    size = data = 8 << 30
    with contextlib.suppress(OSError), open("/proc/self/statm") as file:
        pages = [int(word) * resource.getpagesize() for word in file.read().split()]
        size, data = pages[0], pages[5]  # all addresses, and those of writable private memory
    for kind, most in (
        (resource.RLIMIT_DATA, data + CUDA_HOST_BYTES + memory) if gpu else (resource.RLIMIT_AS, size + memory),
        (resource.RLIMIT_CPU, int(seconds) + 5),
        (resource.RLIMIT_FSIZE, scratch),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        bounded = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (bounded, bounded))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then a write beyond the limit raises OSError


def _running() -> int:
    """How many threads this user has: the limit counts them too."""
    if sys.platform == "win32":
        raise NotImplementedError
    own, found = os.getuid(), 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{name}").st_uid == own:
                found += len(os.listdir(f"/proc/{name}/task"))
    return found


def own_namespaces(processes: bool = True) -> None:
    """Become the first process of new namespaces, if the machine allows it; the original process waits for this one."""
    if sys.platform == "win32":
        raise NotImplementedError
    uid, gid = os.getuid(), os.getgid()
    with contextlib.suppress(OSError):
        kernel.set_own(kernel.ADOPTS_ORPHANS, 1)
    try:
        kernel.unshare((kernel.NEWPID if processes else 0) | (kernel.NEWUSER if uid else 0))
        if uid:
            for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
                Path(f"/proc/self/{name}").write_text(text)
    except OSError:
        return  # `Isolation.prepare` finds out which layers are missing
    pid = os.fork()
    if pid:
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, signal.SIG_IGN)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF)
    kernel.set_own(kernel.PARENT_DEATH, signal.SIGKILL)


class Isolation:
    """Everything about the isolation of children that can be prepared before the fork.

    `gpu_watch` is there where children may use the real GPU; `processes` is whether there may be process namespaces.
    """

    def __init__(self, scratch: str, gpu_watch: gpus.GpuMemoryWatch | None = None, processes: bool = True) -> None:
        self.scratch, self.gpu_watch, self.processes = scratch, gpu_watch, processes
        self.visible = os.environ.pop(gpus.VISIBLE, None)
        self.layers: Layers = {}
        self.namespaces = 0
        self.own_processes: int | None = None
        self.landlock: Any = None
        self.readable: list[str] = []
        self.filter: Any = None
        self.users = first_user()

    def prepare(self) -> None:
        """Find out what this machine allows; to be called in the process that forks children."""
        self._namespaces()
        self._landlock()
        self.filter, self.layers[CALLS] = kernel.seccomp_filter()

    def _namespaces(self) -> None:
        if sys.platform == "win32":
            raise NotImplementedError
        self.layers[PROCESSES] = ""
        try:
            if self.processes:
                own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
                kernel.unshare(kernel.NEWPID)
                kernel.enter(own, kernel.NEWPID)
                self.own_processes = own
            else:
                self.layers[PROCESSES] = gpus.NO_PROC
        except OSError as error:
            self.layers[PROCESSES] = _reason(error.errno or 1)

        def network() -> None:
            kernel.unshare(kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS)
            kernel.loopback_up()

        def scratch() -> None:
            kernel.unshare(kernel.NEWNS)
            kernel.private_mounts()
            kernel.mount_memory("/tmp", 1 << 16, 4)

        for layer, trial, flags in (
            (NETWORK, network, kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS),
            (SCRATCH, scratch, kernel.NEWNS),
        ):
            code = _tried(trial)
            self.layers[layer] = _reason(code) if code else ""
            self.namespaces |= 0 if code else flags

    def _landlock(self) -> None:
        try:
            from py_landlock import landlock_sys
            from py_landlock.abi import MIN_SCOPE_ABI

            abi = landlock_sys.get_abi_version()
        except ImportError:
            self.layers[FILES] = self.layers[SIGNALS] = "py-landlock is not installed"
            return
        except Exception as error:  # py-landlock's own errors: not in this kernel, or switched off
            self.layers[FILES] = self.layers[SIGNALS] = f"this kernel has no Landlock ({error})"
            return
        self.landlock, self.abi, self.readable = landlock_sys, abi, readable_paths()
        self.layers[FILES] = ""
        self.layers[SIGNALS] = "" if abi >= MIN_SCOPE_ABI else "this kernel's Landlock does not cover signals"

    def wait_ready(self) -> None:
        """Wait for what was begun and takes time."""
        if self.gpu_watch is not None:
            self.gpu_watch.wait_ready()
            self.layers[DEVICE] = self.gpu_watch.why

    # In the fork server, around fork

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
        """Isolate this process and write the submission's files to its scratch folder. Returns the layers."""
        if sys.platform == "win32":
            raise NotImplementedError
        layers = {name: why for name, why in self.layers.items() if on_gpu or name != DEVICE}
        os.setsid()
        with contextlib.suppress(OSError):
            kernel.set_own(kernel.PARENT_DEATH, signal.SIGKILL)
        with contextlib.suppress(OSError):  # where memory runs out, a submission is killed before anything else
            Path("/proc/self/oom_score_adj").write_text("1000")
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
        write_files(home, files, user)
        os.chdir(home)
        os.environ.update(HOME=home, TMPDIR=home)
        limit(memory, scratch, seconds, user is not None, on_gpu)
        layers[LIMITS] = ""
        if on_gpu:
            gpus.show(self.visible)
            if self.may_mount_processes():
                kernel.mount_processes()
        rules = self._ruleset(home, on_gpu)
        layers[USER] = self._drop(user, rules is not None)
        if rules is not None:
            self.landlock.restrict_self(rules, None)
            os.close(rules)
        if self.filter is not None:
            self.filter.load()
        return layers

    def may_mount_processes(self) -> bool:
        """Only in namespaces of its own: otherwise /proc would be mounted for the whole machine."""
        return self.own_processes is not None and bool(self.namespaces & kernel.NEWNS)

    def _ruleset(self, home: str, on_gpu: bool) -> int | None:
        if self.landlock is None:
            return None
        from py_landlock.abi import get_supported_fs, get_supported_scope
        from py_landlock.flags import AccessFs
        from py_landlock.prctl import set_no_new_privs

        attributes, supported = self.landlock.RulesetAttr(), get_supported_fs(self.abi)
        attributes.handled_access_fs, attributes.scoped = supported, get_supported_scope(self.abi)
        rules: int = self.landlock.create_ruleset(attributes)
        reading = AccessFs.READ_FILE | AccessFs.READ_DIR | AccessFs.EXECUTE
        using = AccessFs.READ_FILE | AccessFs.READ_DIR | AccessFs.WRITE_FILE | AccessFs.IOCTL_DEV
        own = supported & ~AccessFs.MAKE_CHAR & ~AccessFs.MAKE_BLOCK & ~AccessFs.EXECUTE
        allowed = [(reading, self.readable), (using, DEVICES), (own, [home])]
        if on_gpu:
            allowed += [(reading, [*gpus.libraries(), *gpus.READ]), (using, gpus.devices()), (own, gpus.WRITTEN)]
        for access, paths in allowed:
            for path in _opened(paths):
                rule = self.landlock.PathBeneathAttr()
                directory = stat.S_ISDIR(os.fstat(path).st_mode)
                rule.allowed_access = access & supported & (~0 if directory else ~AccessFs.READ_DIR)
                rule.parent_fd = path
                self.landlock.add_rule(rules, rule)
        set_no_new_privs()
        return rules

    def _drop(self, user: int | None, landlocked: bool) -> str:
        """Give up privileges. Returns the reason where the process keeps the user who grades."""
        if sys.platform == "win32":
            raise NotImplementedError
        if user is None:
            kernel.only_capabilities()
            return "the submission runs as the user who grades"
        os.setgroups([])
        # Packages may be readable by root only. Landlock limits what is read instead of file permissions.
        kept = [kernel.DAC_READ_SEARCH] if landlocked and kernel.capable(kernel.DAC_READ_SEARCH) else []
        if kept:
            kernel.set_own(kernel.KEEP_CAPABILITIES, 1)
        os.setresgid(user, user, user)  # type: ignore[attr-defined, unused-ignore]
        os.setresuid(user, user, user)  # type: ignore[attr-defined, unused-ignore]
        kernel.only_capabilities(*kept)
        return ""


def first_user() -> int | None:
    """The first user number that children can have; None where this process cannot change its user."""
    if sys.platform == "win32":
        raise NotImplementedError
    if os.getuid() != 0:
        return None
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
        ranges = [(int(first), int(first) + int(count)) for first, _, count in map(str.split, lines)]
    except (OSError, ValueError):
        ranges = [(0, 1 << 32)]
    return next((n for n in USERS if any(start <= n and n + AT_ONCE <= end for start, end in ranges)), None)


def write_files(home: str, files: dict[str, bytes], owner: int | None) -> None:
    """Write a submission's files below `home`; `owner` is the user they belong to."""
    if sys.platform == "win32":
        raise NotImplementedError
    for name, data in files.items():
        path = Path(home, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    if owner is not None:
        for path in (Path(home), *Path(home).rglob("*")):
            os.chown(path, owner, owner)


def _opened(paths: Iterable[str]) -> Iterator[int]:
    """Descriptors of those that exist, each closed after its use."""
    for path in paths:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)  # type: ignore[attr-defined, unused-ignore]
            try:
                yield descriptor
            finally:
                os.close(descriptor)


def _tried(steps: Callable[[], None]) -> int:
    """The error number with which these steps fail, or 0; tried in a child."""
    if sys.platform == "win32":
        raise NotImplementedError
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            steps()
            code = 0
        except OSError as error:
            code = error.errno or 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _reason(code: int) -> str:
    return f"this machine does not allow such a namespace ({os.strerror(code)})"


def _mount_own_proc() -> None:
    """In a process namespace; raises OSError where that is not allowed."""
    if sys.platform == "win32":
        raise NotImplementedError
    kernel.unshare(kernel.NEWPID | kernel.NEWNS | (kernel.NEWUSER if os.getuid() else 0))

    def mount() -> None:
        kernel.private_mounts()
        kernel.mount_processes()

    if code := _tried(mount):
        raise OSError(code, os.strerror(code))


def prepared(scratch: str, gpu: bool) -> Isolation:
    """The isolation of children, in a process that is to fork them; it then runs in namespaces of its own."""
    if sys.platform == "win32":
        raise NotImplementedError
    watch = gpus.GpuMemoryWatch() if LINUX and gpu else None
    processes = not gpu or (LINUX and _tried(_mount_own_proc) == 0)
    if LINUX:
        own_namespaces(processes)
    if os.getuid() == 0:
        os.chmod(scratch, 0o711)
    isolation = Isolation(scratch, watch, processes)
    isolation.prepare()
    return isolation


def report() -> None:
    """Print which layers hold for a child of this process."""
    if sys.platform == "win32":
        raise NotImplementedError
    with_gpu = LINUX and bool(gpus.devices())
    scratch = tempfile.mkdtemp(prefix="dojo-")
    isolation = prepared(scratch, with_gpu)
    try:
        isolation.wait_ready()
        isolation.before_fork()
        pid = os.fork()
        if pid == 0:
            layers = isolation.confine(1, 1 << 30, 1 << 20, 10, {}, with_gpu)
            if with_gpu:
                layers[DEVICE] = layers[DEVICE] or gpus.context()
            print(json.dumps(layers), flush=True)
            os._exit(0)
        isolation.after_fork()
        os.waitpid(pid, 0)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
