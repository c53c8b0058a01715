"""Sets up the isolation layers around a child, and finds out which of them hold on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import secrets
import shutil
import signal
import site
import socket
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import virtual_cuda

import gpudojo
from gpudojo.sandbox import kernel, real_gpus
from gpudojo.sandbox.real_gpus import CUDA_HOST_BYTES

PROCESSES: Final = "processes"
NETWORK: Final = "network"
SCRATCH: Final = "scratch"
TREE: Final = "file system"
FILES: Final = "files"
SIGNALS: Final = "signals"
CALLS: Final = "system calls"
USER: Final = "user"
LIMITS: Final = "limits"
DEVICE: Final = "device memory"

PURPOSE: Final[dict[str, str]] = {
    PROCESSES: "a process namespace: everything a submission starts ends with it",
    NETWORK: "a network namespace with only its own loopback",
    SCRATCH: "a private scratch folder in memory, with a size limit",
    TREE: "a file system of its own: Python, the installed packages and scratch; nothing else can be named",
    FILES: "Landlock: reads Python and the installed packages, writes scratch, and nothing else",
    SIGNALS: "Landlock: no signals to the grader or to other submissions",
    CALLS: "seccomp: no tracing, mounting, kernel keys, other processes' memory, memory of no process, other sockets",
    USER: "a separate user, or a user namespace of its own, without privileges",
    LIMITS: "limits on memory, CPU time, processes, files and output",
    DEVICE: "memory of the GPU: a limit within torch, and what the driver reports for every process",
}
_NAMESPACES: Final = "allow user namespaces, or grade as root or in a container with --privileged"
ADVICE: Final[dict[str, str]] = {
    **dict.fromkeys((PROCESSES, NETWORK, SCRATCH), _NAMESPACES),
    TREE: f"use Linux 5.12 or newer; {_NAMESPACES}",
    FILES: "use Linux 5.13 or newer, and: pip install py-landlock",
    SIGNALS: "use Linux 6.12 or newer, and: pip install py-landlock",
    CALLS: "pip install pyseccomp, and your system's libseccomp (Debian: apt install libseccomp2)",
    USER: "use Linux 5.14 or newer and allow user namespaces; or grade as root: each submission is then another user",
    DEVICE: "grade where the driver (NVML) reports the memory of each process, or one submission at a time",
}
SECONDS: Final = 20.0

# By name, why a layer does not hold; an empty text where it does.
Layers = dict[str, str]


def missing(layers: Layers) -> list[str]:
    """The layers that do not hold, each with its reason."""
    return [f"{name}: {why}" for name, why in layers.items() if why]


def sentence(layers: Layers) -> str:
    """All layers in one line."""
    held = ", ".join(name for name, why in layers.items() if not why) or "none"
    lacking = "; ".join(missing(layers))
    return f"isolation: {held}; MISSING: {lacking}" if lacking else f"isolation: {held}"


def examine() -> Layers:
    """The layers of this machine; tried in a separate process."""
    everywhere = [name for name in PURPOSE if name != DEVICE]  # only where there is a GPU
    if not hasattr(os, "fork"):
        return dict.fromkeys(everywhere, "this system cannot fork")
    folder = str(Path(gpudojo.__file__).resolve().parents[1])
    # -P: nothing is imported from the current folder, which may be a student's checkout
    command = f"import sys; sys.path.append({folder!r})\nfrom gpudojo.sandbox.isolation import report; report()"
    words = [sys.executable, "-P", "-c", command]
    run = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
    for line in run.stdout.splitlines():
        if line.startswith("{"):
            found: Layers = json.loads(line)
            return found
    last = (run.stderr.strip().splitlines() or ["no output"])[-1]
    return dict.fromkeys(everywhere, f"it could not be tried: {last}")


LINUX: Final = sys.platform == "linux"
# Read late by Python and libraries: shared libraries and time zones.
SYSTEM: Final = (
    *("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib"),
    *("/etc/ld.so.cache", "/usr/share/zoneinfo"),
    *("/sys/class/net", "/sys/bus/pci", "/sys/devices"),  # read by gloo about its network interface
    "/bin/sh",  # by which `os.popen` and the like run a program, and say that there is none
)
HOSTS: Final = "/etc/hosts"
DEVICES: Final = (
    "/dev/null",
    "/dev/urandom",
    "/dev/random",
    "/dev/full",
)  # not zero: shared memory can be made of it
SHARED: Final = "/dev/shm"  # where libc keeps named semaphores and shared memory
# The recorded evidence of a reference, in a release.
ANSWERS: Final = os.path.join(
    os.path.dirname(os.path.realpath(gpudojo.__file__)), "grading", "of_reference"
)
PROCESSES_AT_MOST: Final = 64
RESERVED_AT_MOST: Final = (
    8 << 30
)  # of addresses; for each of 64 threads glibc reserves 64 MiB, at first twice as much
SHARED_PROCESSES: Final = 1024  # for all children together, where they are counted together
FILES_AT_MOST: Final = 4096
# The first of the user numbers for children: far from any in use, or small where a container has few.
USERS: Final = (2_000_000_000, 50_000)
STUDENT: Final = 1000  # in a user namespace of its own
AT_ONCE: Final = 10_000
BLOCKS: Final = 10_000  # of user numbers; each fork server chooses one, since processes are counted for each user


def readable_paths() -> list[str]:
    """Python, the installed packages and ours; not the folder around our packages, which may hold solutions.

    Some of them are symbolic links, or lie behind one.
    """
    # Of the import path only folders of installed packages: a checkout on it may hold solutions.
    installed = [path for path in sys.path if "-packages" in path or path.endswith(".zip")]
    names = [*site.getsitepackages(), *sysconfig.get_paths().values(), *SYSTEM, *installed]
    names += [
        os.path.dirname(os.path.realpath(sys.executable)),
        os.path.join(sys.prefix, "pyvenv.cfg"),
    ]
    packages = [str(Path(package.__path__[0]).resolve()) for package in (gpudojo, virtual_cuda)]

    def around_ours(folder: str) -> bool:
        return packages[0].startswith(folder + os.sep) and os.path.isdir(
            os.path.join(folder, "reference")
        )

    return [
        *sorted(
            {
                name
                for name in names
                if os.path.exists(name) and not around_ours(os.path.realpath(name))
            }
        ),
        *packages,
    ]


def limit(memory: int, scratch: int, seconds: float, gpu: bool = False) -> None:
    """Set the resource limits of this process; `memory` comes on top of what torch holds already.

    It is a limit of writable memory. Addresses cost nothing as long as they are only reserved, as CUDA does by the
    gigabyte and glibc for each thread: where these ran out, threads of torch's that cannot allocate ended the process.
    """
    if sys.platform == "win32":
        raise NotImplementedError
    size = data = 8 << 30
    with contextlib.suppress(OSError), open("/proc/self/statm") as file:
        pages = [int(word) * resource.getpagesize() for word in file.read().split()]
        size, data = pages[0], pages[5]  # all addresses, and those of writable private memory
    _at_most(resource.RLIMIT_DATA, data + memory + (CUDA_HOST_BYTES if gpu else 0))
    if not gpu:
        _at_most(resource.RLIMIT_AS, size + memory + RESERVED_AT_MOST)
    _at_most(resource.RLIMIT_CPU, int(seconds) + 5)
    _at_most(resource.RLIMIT_FSIZE, scratch)
    _at_most(resource.RLIMIT_NOFILE, 256)
    _at_most(resource.RLIMIT_CORE, 0)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then a write beyond the limit raises OSError


def _at_most(kind: int, most: int) -> None:
    """Limit a resource for good; a limit that is lower already stays."""
    if sys.platform == "win32":
        raise NotImplementedError
    _, hard = resource.getrlimit(kind)
    bounded = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (bounded, bounded))


def _running() -> int:
    """How many threads this user has: the limit counts them too."""
    if sys.platform == "win32":
        raise NotImplementedError
    own = os.getuid()
    found = 0
    for name in filter(str.isdigit, os.listdir("/proc") if LINUX else ()):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{name}").st_uid == own:
                found += len(os.listdir(f"/proc/{name}/task"))
    return found


def own_namespaces(processes: bool, scratch: str) -> None:
    """Become the first process of new namespaces, if the machine allows it; the original process waits for this one."""
    if sys.platform == "win32":
        raise NotImplementedError
    uid = os.getuid()
    gid = os.getgid()
    with contextlib.suppress(OSError):
        kernel.set_own(kernel.ADOPTS_ORPHANS, 1)
    try:
        kernel.unshare((kernel.NEWPID if processes else 0) | (kernel.NEWUSER if uid else 0))
        if uid:
            _map_user(0, uid, gid)
    except OSError:
        return  # `Isolation.prepare` finds out which layers are missing
    pid = os.fork()
    if pid:
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, signal.SIG_IGN)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF
        with contextlib.suppress(OSError):
            os.rmdir(scratch)  # out of reach for a process with a file system of its own
        os._exit(code)
    kernel.set_own(kernel.PARENT_DEATH, signal.SIGKILL)


def _map_user(inside: int, uid: int, gid: int, proc: int | None = None) -> None:
    """In a new user namespace: give this process's user another number; `proc` is its open folder in /proc."""
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{inside} {uid} 1"),
        ("gid_map", f"{inside} {gid} 1"),
    ):
        path = f"/proc/self/{name}" if proc is None else name
        descriptor = os.open(path, os.O_WRONLY, dir_fd=proc)
        os.write(descriptor, text.encode())
        os.close(descriptor)


def _lay(tree: str, path: str, bound: list[str], attributes: int) -> None:
    """Let a path exist below `tree` as it does outside: its folders, symbolic links on the way, and itself."""
    here = "/"
    parts = Path(path).parts[1:]
    for number, part in enumerate(parts, 1):
        here = os.path.dirname(here) if part == ".." else os.path.join(here, part)
        inside = tree + here
        if os.path.islink(here):
            target = os.readlink(here)
            if not os.path.lexists(inside):
                os.symlink(target, inside)
            return _lay(
                tree,
                os.path.join(os.path.dirname(here), target, *parts[number:]),
                bound,
                attributes,
            )
        if any(here == one or here.startswith(f"{one}/") for one in bound):
            continue
        if number < len(parts) or os.path.isdir(here):
            os.makedirs(inside, exist_ok=True)
        else:
            Path(inside).touch()
        if number == len(parts):
            kernel.bind(here, inside)
            kernel.restrict_mount(inside, attributes)
            bound.append(here)
    return None


def own_tree(scratch: str, readable: Iterable[str], devices: Iterable[str]) -> None:
    """Replace the root of this process's mount namespace: only these paths exist from now on, and cannot be changed.

    /proc stays, for the process that measures children; they lose it.
    """
    tree = scratch
    bound: list[str] = []
    kernel.mount_memory(tree, 1 << 20, FILES_AT_MOST, "755")
    for path in filter(os.path.exists, readable):
        _lay(tree, path, bound, kernel.READ_ONLY | kernel.NO_SETUID | kernel.NO_DEVICES)
    for path in filter(os.path.exists, devices):
        _lay(tree, path, bound, kernel.READ_ONLY | kernel.NO_SETUID)
    for folder in (scratch, SHARED, "/proc"):
        os.makedirs(tree + folder, exist_ok=True)
    kernel.bind("/proc", f"{tree}/proc")
    hosts = Path(tree + HOSTS)
    hosts.parent.mkdir(exist_ok=True)
    hosts.write_text(
        "127.0.0.1 localhost\n::1 localhost\n"
    )  # not the machine's own, which says whom it knows
    if os.path.isdir(tree + ANSWERS):
        kernel.mount_memory(tree + ANSWERS, 1 << 12, 1, "755")
        kernel.restrict_mount(tree + ANSWERS, kernel.READ_ONLY)
    kernel.restrict_mount(
        tree, kernel.READ_ONLY | kernel.NO_SETUID | kernel.NO_DEVICES, below=False
    )
    kernel.change_root(tree)


class Isolation:
    """Everything about the isolation of children that can be prepared before the fork.

    `gpu_watch` is there where children may use the real GPU; `processes` is whether there may be process namespaces.
    """

    def __init__(
        self,
        scratch: str,
        gpu_watch: real_gpus.GpuMemoryWatch | None = None,
        processes: bool = True,
    ) -> None:
        self.scratch = scratch
        self.gpu_watch = gpu_watch
        self.processes = processes
        self.visible = os.environ.pop(real_gpus.VISIBLE, None)
        self.layers: Layers = {}
        self.namespaces = 0
        self.own_processes: int | None = None
        self.landlock: Any = None
        self.readable = readable_paths()
        self.filters: dict[bool, Any] = {}  # by whether the child uses the GPU
        self.users = first_user()
        self.own_user = False  # whether each child has a user namespace of its own, where users are counted anew

    def prepare(self) -> None:
        """Find out what this machine allows; to be called in the process that forks children."""
        self._namespaces()
        self._landlock()
        _, self.layers[CALLS] = (
            kernel.seccomp_filter()
        )  # its library is found with programs that `finish` leaves

    def finish(self) -> None:
        """Leave the machine's file system; to be called when all has been read that children cannot read."""
        if sys.platform == "win32":
            raise NotImplementedError
        self.wait_ready()
        if not self.layers[TREE]:
            try:
                self._enter_tree()
            except OSError as error:
                self.layers[TREE] = _reason(error.errno or 1)
        self.own_user = self.users is None and _tried(_counted_alone) == 0
        own_sockets = not self.layers[TREE] and not self.layers[NETWORK]
        for gpu in (False, True):
            self.filters[gpu], _ = kernel.seccomp_filter(own_sockets, shared_memory=gpu)

    def _enter_tree(self) -> None:
        kernel.unshare(kernel.NEWNS)
        kernel.private_mounts()
        with_gpu = self.gpu_watch is not None
        libraries, devices = (
            (real_gpus.libraries(), ["/dev/zero", *real_gpus.devices()]) if with_gpu else ([], [])
        )
        own_tree(self.scratch, [*self.readable, sys.executable, *libraries], [*DEVICES, *devices])

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
                self.layers[PROCESSES] = real_gpus.NO_PROC
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
            (TREE, self._enter_tree, 0),
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
        self.landlock = landlock_sys
        self.abi = abi
        self.layers[FILES] = ""
        self.layers[SIGNALS] = (
            "" if abi >= MIN_SCOPE_ABI else "this kernel's Landlock does not cover signals"
        )

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
        self,
        number: int,
        memory: int,
        scratch: int,
        seconds: float,
        files: dict[str, bytes],
        on_gpu: bool = False,
    ) -> Layers:
        """Isolate this process and write the submission's files to its scratch folder. Returns the layers."""
        if sys.platform == "win32":
            raise NotImplementedError
        layers = {name: why for name, why in self.layers.items() if on_gpu or name != DEVICE}
        os.setsid()
        user = None if self.users is None else self.users + number % AT_ONCE
        alone = user is not None or self.own_user
        processes = PROCESSES_AT_MOST if alone else SHARED_PROCESSES + _running()
        with contextlib.suppress(
            OSError
        ):  # where memory runs out, a submission is killed before anything else
            Path("/proc/self/oom_score_adj").write_text("1000")
        if self.namespaces:
            kernel.unshare(self.namespaces)
        if not layers[SCRATCH]:
            kernel.private_mounts()
            kernel.mount_memory(self.scratch, scratch, FILES_AT_MOST, "711")
        home = os.path.join(self.scratch, "home" if not layers[SCRATCH] else str(number))
        os.mkdir(home, 0o700)
        write_files(home, files, user)
        if not layers[TREE]:
            shared = os.path.join(self.scratch, "shared")
            os.mkdir(shared, 0o700)
            write_files(shared, {}, user)
            kernel.bind(shared, SHARED)
        if not layers[NETWORK]:
            kernel.loopback_up()
        os.chdir(home)
        os.environ.update(HOME=home, TMPDIR=home)
        tempfile.tempdir = None  # the fork server has chosen one, where this process may not write
        limit(memory, scratch, seconds, on_gpu)
        layers[LIMITS] = ""
        self._own_user(on_gpu)
        _at_most(resource.RLIMIT_NPROC, processes)
        rules = self._ruleset([home, SHARED] if not layers[TREE] else [home], on_gpu)
        guarded = rules is not None or not (layers[TREE] or layers[CALLS])
        layers[USER] = self._drop(user, guarded)
        with contextlib.suppress(OSError):  # now, as a change of user undoes it
            kernel.set_own(kernel.PARENT_DEATH, signal.SIGKILL)
        if rules is not None:
            self.landlock.restrict_self(rules, None)
            os.close(rules)
        if self.filters[on_gpu] is not None:
            self.filters[on_gpu].load()
        return layers

    def _own_user(self, on_gpu: bool) -> None:
        """Enter a user namespace, where there is one for each child, and lose the machine's /proc."""
        if sys.platform == "win32":
            raise NotImplementedError
        uid = os.getuid()
        gid = os.getgid()
        own = os.open("/proc/self", os.O_RDONLY | os.O_CLOEXEC) if self.own_user else None
        if on_gpu:
            real_gpus.show(self.visible)
            if self.may_mount_processes():
                kernel.mount_processes()
        elif not self.layers[TREE]:
            kernel.unmount("/proc")
        if own is not None:
            kernel.unshare(
                kernel.NEWUSER
            )  # without a limit of processes, which would count for all of its user's
            _map_user(STUDENT, uid, gid, own)
            os.close(own)
            if on_gpu:
                kernel.set_own(kernel.DUMPABLE, 1)

    def may_mount_processes(self) -> bool:
        """Only in namespaces of its own: otherwise /proc would be mounted for the whole machine."""
        return self.own_processes is not None and bool(self.namespaces & kernel.NEWNS)

    def _ruleset(self, written: list[str], on_gpu: bool) -> int | None:
        if self.landlock is None:
            return None
        from py_landlock.abi import get_supported_fs, get_supported_scope
        from py_landlock.flags import AccessFs
        from py_landlock.prctl import set_no_new_privs

        attributes = self.landlock.RulesetAttr()
        supported = get_supported_fs(self.abi)
        attributes.handled_access_fs, attributes.scoped = supported, get_supported_scope(self.abi)
        rules: int = self.landlock.create_ruleset(attributes)
        reading = AccessFs.READ_FILE | AccessFs.READ_DIR | AccessFs.EXECUTE
        using = AccessFs.READ_FILE | AccessFs.READ_DIR | AccessFs.WRITE_FILE | AccessFs.IOCTL_DEV
        own = supported & ~AccessFs.MAKE_CHAR & ~AccessFs.MAKE_BLOCK & ~AccessFs.EXECUTE
        allowed = [(reading, self.readable), (using, DEVICES), (own, written)]
        if SHARED in written:  # in a tree of its own
            allowed.append((reading, [HOSTS]))
        if on_gpu:
            devices = ["/dev/zero", *real_gpus.devices()]
            allowed += [
                (reading, [*real_gpus.libraries(), *real_gpus.READ]),
                (using, devices),
                (own, list(real_gpus.WRITTEN)),
            ]
        for access, paths in allowed:
            for path in _opened(paths):
                rule = self.landlock.PathBeneathAttr()
                directory = stat.S_ISDIR(os.fstat(path).st_mode)
                rule.allowed_access = access & supported & (~0 if directory else ~AccessFs.READ_DIR)
                rule.parent_fd = path
                self.landlock.add_rule(rules, rule)
        set_no_new_privs()
        return rules

    def _drop(self, user: int | None, guarded: bool) -> str:
        """Give up privileges. Returns the reason where the process keeps the user who grades.

        `guarded` means that files are out of reach whoever their owner is.
        """
        if sys.platform == "win32":
            raise NotImplementedError
        if user is None:
            with contextlib.suppress(OSError):  # macOS has none
                kernel.only_capabilities()
            return (
                ""
                if self.own_user and not self.layers[TREE]
                else "the submission runs as the user who grades"
            )
        os.setgroups([])
        # Packages may be readable by root only. What is read is not limited by file permissions then.
        kept = (
            [kernel.DAC_READ_SEARCH] if guarded and kernel.capable(kernel.DAC_READ_SEARCH) else []
        )
        if kept:
            kernel.set_own(kernel.KEEP_CAPABILITIES, 1)
        os.setresgid(user, user, user)  # type: ignore[attr-defined, unused-ignore]
        os.setresuid(user, user, user)  # type: ignore[attr-defined, unused-ignore]
        kernel.only_capabilities(*kept)
        return ""


def first_user() -> int | None:
    """The first user number that children can have; None where this process cannot change its user.

    It is drawn anew each time, as far as there are enough: several gradings on one machine share no user.
    """
    if sys.platform == "win32":
        raise NotImplementedError
    if os.getuid() != 0:
        return None
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
        ranges = [
            (int(first), int(first) + int(count)) for first, _, count in map(str.split, lines)
        ]
    except (OSError, ValueError):
        ranges = [(0, 1 << 32)]
    for first in USERS:
        for start, end in ranges:
            if start <= first and first + AT_ONCE <= end:
                return first + AT_ONCE * secrets.randbelow(min(BLOCKS, (end - first) // AT_ONCE))
    return None


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


def _counted_alone() -> None:
    """In a new user namespace; raises OSError where others of the same user count for the limit of processes there."""
    if sys.platform == "win32":
        raise NotImplementedError
    uid = os.getuid()
    gid = os.getgid()
    kernel.unshare(kernel.NEWUSER)
    _map_user(STUDENT, uid, gid)
    resource.setrlimit(
        resource.RLIMIT_NPROC, (3, 3)
    )  # the fork server and the grader are more already
    _tried(os.getpid)


def _tried(steps: Callable[[], object]) -> int:
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
    watch = real_gpus.GpuMemoryWatch() if LINUX and gpu else None
    processes = not gpu or (LINUX and _tried(_mount_own_proc) == 0)
    if LINUX:
        own_namespaces(processes, scratch)
    if os.getuid() == 0:
        os.chmod(scratch, 0o711)
    isolation = Isolation(scratch, watch, processes)
    isolation.prepare()
    return isolation


def _holes() -> dict[str, str]:
    """In a confined process: what can be done although a layer should prevent it."""
    if sys.platform == "win32":
        raise NotImplementedError
    home = os.getcwd()
    family = getattr(socket, "AF_VSOCK", 40)
    attempts: tuple[tuple[str, str, Callable[[], object]], ...] = (
        (
            PROCESSES,
            "signalling the process that started it",
            lambda: os.kill(os.getppid() or -1, 0),
        ),
        (
            NETWORK,
            "sending to another machine",
            lambda: socket.socket(type=socket.SOCK_DGRAM).connect(("192.0.2.1", 9)),
        ),
        (
            SCRATCH,
            "writing more than the limit",
            lambda: Path(home, "large").write_bytes(bytes(2 << 20)),
        ),
        (TREE, "changing Python's files", lambda: os.close(os.open(os.__file__, os.O_WRONLY))),
        (FILES, "listing the root folder", lambda: os.listdir("/")),
        (CALLS, "making a namespace", lambda: kernel.unshare(kernel.NEWUTS)),
        (
            CALLS,
            "opening a socket of any family",
            lambda: socket.socket(family, socket.SOCK_STREAM),
        ),
        (USER, "becoming root", lambda: os.setresuid(0, 0, 0)),  # type: ignore[attr-defined, unused-ignore]
        (
            LIMITS,
            "raising a limit",
            lambda: resource.setrlimit(resource.RLIMIT_NPROC, (1 << 20, 1 << 20)),
        ),
    )
    found = {}
    for layer, what, attempt in attempts:
        with contextlib.suppress(OSError, ValueError):
            attempt()
            found[layer] = what
    return found


def report() -> None:
    """Print which layers hold for a child of this process."""
    if sys.platform == "win32":
        raise NotImplementedError
    with_gpu = LINUX and bool(real_gpus.devices())
    scratch = tempfile.mkdtemp(prefix="dojo-")
    isolation = prepared(scratch, with_gpu)
    try:
        isolation.finish()
        isolation.before_fork()
        pid = os.fork()
        if pid == 0:
            layers = isolation.confine(1, 1 << 30, 1 << 20, 10, {}, with_gpu)
            for layer, what in _holes().items():
                layers[layer] = layers[layer] or f"it was set up, but {what} is possible"
            if with_gpu:
                layers[DEVICE] = layers[DEVICE] or real_gpus.context()
            print(json.dumps(layers), flush=True)
            os._exit(0)
        isolation.after_fork()
        os.waitpid(pid, 0)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
