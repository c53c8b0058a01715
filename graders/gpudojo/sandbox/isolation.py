"""The isolation layers: their names, how they are put up, and which of them hold on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import site
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import virtual_cuda

import gpudojo
from gpudojo.sandbox import gpus, kernel
from gpudojo.sandbox.gpus import HOST_AROUND

PROCESSES: Final = "processes"
NETWORK: Final = "network"
SCRATCH: Final = "scratch"
FILES: Final = "files"
SIGNALS: Final = "signals"
CALLS: Final = "system calls"
USER: Final = "user"
LIMITS: Final = "limits"
DEVICE: Final = "device memory"

PURPOSE: Final[dict[str, str]] = {
    PROCESSES: "a process namespace: whatever a submission starts ends with it",
    NETWORK: "a network namespace with nothing but its own loopback",
    SCRATCH: "a private scratch folder in memory, with a size limit",
    FILES: "Landlock: reads Python and the installed packages, writes scratch, and nothing else",
    SIGNALS: "Landlock: no signals to the grader or to other submissions",
    CALLS: "seccomp: no tracing, mounting, kernel keys or other processes' memory",
    USER: "a user of its own without privileges",
    LIMITS: "limits on memory, processor time, processes, files and output",
    DEVICE: "memory of the GPU: a limit within torch, and every process weighed by the driver's own account",
}

# A name and why the layer does not hold; an empty text where it does.
Layers = dict[str, str]


def missing(layers: Layers) -> list[str]:
    """The layers that do not hold, each with its reason."""
    return [f"{name}: {why}" for name, why in layers.items() if why]


def sentence(layers: Layers) -> str:
    """All layers in a line."""
    held = [name for name, why in layers.items() if not why]
    said = f"isolation: {', '.join(held) or 'none'}"
    lacking = missing(layers)
    return f"{said}; NOT held: {'; '.join(lacking)}" if lacking else said


# What lies around Python and is read late: shared libraries, locales, time zones, certificates do not.
SYSTEM: Final = (
    *("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib"),
    *("/etc/ld.so.cache", "/usr/share/zoneinfo"),
    *("/sys/class/net", "/sys/bus/pci", "/sys/devices"),  # gloo looks at what its network interface is made of
)


def readable_paths() -> list[str]:
    """Python, what is installed, and this package; not the folder this package lies in, which may hold solutions."""
    names = [
        *site.getsitepackages(),
        *sysconfig.get_paths().values(),
        os.path.dirname(os.path.realpath(sys.executable)),
    ]
    names += [os.path.join(sys.prefix, "pyvenv.cfg"), *SYSTEM, *_editable_free(sys.path)]
    packages = [str(Path(package.__path__[0]).resolve()) for package in (gpudojo, virtual_cuda)]
    found = {os.path.realpath(name) for name in names if os.path.exists(name)}
    return [*sorted(path for path in found if not _holds(path, packages[0])), *packages]


def _editable_free(paths: Iterable[str]) -> list[str]:
    """The folders on the path that hold installed packages; a checkout on it is not one of them."""
    return [path for path in paths if "site-packages" in path or "dist-packages" in path or path.endswith(".zip")]


def _holds(folder: str, package: str) -> bool:
    """Whether the folder is a checkout around this package rather than where packages are installed."""
    beside = os.path.join(folder, "reference")
    return package.startswith(folder + os.sep) and os.path.isdir(beside)


PROCESSES_AT_MOST: Final = 64


def limit(memory: int, scratch: int, seconds: float, alone: bool, gpu: bool = False) -> None:
    """What the child may take in all; memory comes on top of what torch holds already.

    `alone` is said of a child whose user has no other processes: the kernel counts those of a user. On a GPU, CUDA
    reserves addresses by the gigabyte, which cost nothing: there what can be written to is counted instead.
    """
    processes = PROCESSES_AT_MOST + (0 if alone else _running())
    processor = int(seconds) + 5
    size, data = _sizes()
    for kind, most in (
        (resource.RLIMIT_DATA, data + HOST_AROUND + memory) if gpu else (resource.RLIMIT_AS, size + memory),
        (resource.RLIMIT_CPU, processor),
        (resource.RLIMIT_FSIZE, scratch),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        bounded = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (bounded, bounded))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write that is too long then is an OSError


def _running() -> int:
    """How many threads this user has already: the limit counts them, too."""
    own, found = os.getuid(), 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{name}").st_uid == own:
                found += len(os.listdir(f"/proc/{name}/task"))
    return found


def _sizes() -> tuple[int, int]:
    """The bytes of this process's addresses, and of those that it alone can write to."""
    try:
        with open("/proc/self/statm") as file:
            pages = [int(word) for word in file.read().split()]
            return pages[0] * resource.getpagesize(), pages[5] * resource.getpagesize()
    except OSError:
        return 8 << 30, 8 << 30


def first_to_go() -> None:
    """When memory runs out on the machine, a submission goes before anything else."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


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
        self.visible = os.environ.pop(gpus.VISIBLE, None)
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
        self.filter, self.layers[CALLS] = kernel.filter_of_calls()

    def _namespaces(self) -> None:
        why = ""
        try:
            if self.processes:
                own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
                kernel.unshare(kernel.NEWPID)
                kernel.enter(own, kernel.NEWPID)
                self.own_processes = own
            else:
                why = gpus.NO_PROC
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
            self.on_gpu = [*_opened(gpus.libraries(), False), *_opened(gpus.devices(), True)]

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
            gpus.shown(self.visible)
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
        also = [*self.on_gpu, *_opened(gpus.READ, False)] if on_gpu else []
        for path, writable in (*self.readable, *also):
            directory = stat.S_ISDIR(os.fstat(path).st_mode)
            access = writing if writable else (self.read | self.execute) & supported
            self._allow(rules, path, access if directory else access & ~AccessFs.READ_DIR)
            os.close(path)
        if not on_gpu:
            for path, _ in self.on_gpu:
                os.close(path)
        for own, _ in _opened([home, *(gpus.WRITTEN if on_gpu else ())], True):
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


SECONDS: Final = 20.0
ADVICE: Final[dict[str, str]] = {
    "processes": "allow user namespaces, or grade as root or in a container with --privileged",
    "network": "allow user namespaces, or grade as root or in a container with --privileged",
    "scratch": "allow user namespaces, or grade as root or in a container with --privileged",
    "files": "use Linux 5.13 or newer, and: pip install py-landlock",
    "signals": "use Linux 6.12 or newer, and: pip install py-landlock",
    "system calls": "pip install pyseccomp, and your system's libseccomp (Debian: apt install libseccomp2)",
    "user": "grade as root: submissions then run as a user of their own",
    "device memory": "grade where the driver (NVML) tells what each process holds, or one submission at a time",
}


def examine() -> Layers:
    """The layers, each with the reason why it does not hold, or an empty text."""
    everywhere = [name for name in PURPOSE if name != DEVICE]  # which is asked for only where there is one
    if not hasattr(os, "fork"):
        return dict.fromkeys(everywhere, "this system cannot fork")
    folder = str(Path(gpudojo.__file__).resolve().parents[1])
    # -P: what lies where the command was typed, a student's checkout perhaps, is not to be imported
    command = f"import sys; sys.path.append({folder!r})\nfrom {__name__} import _report; _report()"
    run = subprocess.run(
        [sys.executable, "-P", "-c", command],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    for line in run.stdout.splitlines():
        if line.startswith("{"):
            found: Layers = json.loads(line)
            return found
    last = (run.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return dict.fromkeys(everywhere, f"it could not be tried out: {last}")


def _report() -> None:
    from gpudojo.sandbox import gpus
    from gpudojo.sandbox.fork_server import own_namespaces

    linux = sys.platform == "linux"
    with_gpu = linux and bool(gpus.devices())
    scales = gpus.DeviceScales() if with_gpu else None
    processes = not with_gpu or gpus.proc_of_its_own()
    if linux:
        own_namespaces(processes)
    with tempfile.TemporaryDirectory(prefix="dojo-") as scratch:
        os.chmod(scratch, 0o711)
        fences = Fences(scratch, with_gpu, processes)
        fences.prepare()
        if scales is not None:
            scales.ready()
            fences.layers[DEVICE] = scales.why
        fences.before_fork()
        pid = os.fork()
        if pid == 0:
            layers = fences.confine(1, 1 << 30, 1 << 20, 10, {}, with_gpu)
            if with_gpu:
                layers[DEVICE] = layers[DEVICE] or gpus.context()
            print(json.dumps(layers), flush=True)
            os._exit(0)
        fences.after_fork()
        os.waitpid(pid, 0)
