"""Sets up the isolation layers around a child, and finds out which of them hold on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import secrets
import shutil
import signal
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from gpudojo.sandbox import kernel, real_gpus
from gpudojo.sandbox.file_tree import (
    DEVICES,
    FILES_AT_MOST,
    HOSTS_FILE,
    SHARED_MEMORY,
    readable_paths,
    replace_root,
)
from gpudojo.sandbox.layers import (
    CALLS,
    DEVICE,
    FILES,
    LIMITS,
    NETWORK,
    PROCESSES,
    SCRATCH,
    SIGNALS,
    TREE,
    USER,
    Layers,
)
from gpudojo.sandbox.real_gpus import CUDA_HOST_BYTES

LINUX: Final = sys.platform == "linux"
PROCESSES_AT_MOST: Final = 64
SHARED_PROCESSES: Final = 1024  # for all children together, where they are counted together
OPEN_FILES_AT_MOST: Final = 256
# Of addresses: for each of 64 threads glibc reserves 64 MiB, at first twice as much.
RESERVED_AT_MOST: Final = 8 << 30
# The first of the user numbers for children: far from any in use, or small where a container has
# few. Each fork server chooses one block of numbers, since processes are counted for each user.
FIRST_USERS: Final = (2_000_000_000, 50_000)
USERS_IN_BLOCK: Final = 10_000
BLOCKS_OF_USERS: Final = 10_000
STUDENT: Final = 1000  # the user number in a user namespace of its own
_NETWORK_NAMESPACES: Final = kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS


def limit_resources(memory: int, scratch: int, seconds: float, gpu: bool = False) -> None:
    """Set the resource limits of this process, for good.

    `memory` and `scratch` are bytes: of memory on top of what torch holds already, and of the
    largest file; `seconds` are of processor time. `memory` is a limit of writable memory. Addresses
    cost nothing as long as they are only reserved, as CUDA does by the gigabyte and glibc for each
    thread: where these ran out, threads of torch's that cannot allocate ended the process. Raises
    ValueError or OSError where a limit is refused.
    """
    if sys.platform == "win32":
        raise NotImplementedError
    addresses = 8 << 30
    writable = 8 << 30
    with contextlib.suppress(OSError), open("/proc/self/statm") as file:
        sizes = [int(word) * resource.getpagesize() for word in file.read().split()]
        addresses = sizes[0]
        writable = sizes[5]
    for_cuda = 0
    if gpu:
        for_cuda = CUDA_HOST_BYTES
    _limit_resource(resource.RLIMIT_DATA, writable + memory + for_cuda)
    if not gpu:
        _limit_resource(resource.RLIMIT_AS, addresses + memory + RESERVED_AT_MOST)
    _limit_resource(resource.RLIMIT_CPU, int(seconds) + 5)
    _limit_resource(resource.RLIMIT_FSIZE, scratch)
    _limit_resource(resource.RLIMIT_NOFILE, OPEN_FILES_AT_MOST)
    _limit_resource(resource.RLIMIT_CORE, 0)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then a write beyond the limit raises OSError


def _limit_resource(kind: int, most: int) -> None:
    """Limit a resource of this process for good. A limit that is lower already stays.

    Raises ValueError or OSError where that is refused.
    """
    if sys.platform == "win32":
        raise NotImplementedError
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(kind, (most, most))


def _threads_of_this_user() -> int:
    """How many threads the user of this process has: the limit of processes counts them.

    0 on other systems than Linux. Raises OSError if /proc cannot be listed.
    """
    if sys.platform == "win32":
        raise NotImplementedError
    if not LINUX:
        return 0
    own = os.getuid()
    count = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{name}").st_uid == own:
                count += len(os.listdir(f"/proc/{name}/task"))
    return count


def enter_namespaces(own_processes: bool, scratch: str) -> None:
    """Become a process of new namespaces, if the machine allows it.

    With `own_processes`, one of processes is among them. Forks: the original process waits for this
    one, removes `scratch`, and ends with its code. Nothing happens if there can be no namespaces;
    `Isolation.prepare` finds out which.
    """
    if sys.platform == "win32":
        raise NotImplementedError
    uid = os.getuid()
    gid = os.getgid()
    with contextlib.suppress(OSError):
        kernel.set_process_attribute(kernel.ADOPTS_ORPHANS, 1)
    # Which namespaces: one of users only for a process that is not root's.
    kinds = 0
    if own_processes:
        kinds |= kernel.NEWPID
    if uid:
        kinds |= kernel.NEWUSER
    try:
        kernel.unshare(kinds)
        if uid:
            _map_user(0, uid, gid)
    except OSError:
        return
    _go_on_in_new_process(scratch)
    if own_processes:
        # As number 2. Each child is number 1 of its namespace, and libraries that know by its
        # number that they run in a copy, such as filelock, have to see another one there.
        _go_on_in_new_process(scratch)


def _go_on_in_new_process(scratch: str) -> None:
    """Fork. The original process waits for the new one, removes `scratch`, and ends with its code.

    Only the new one returns; it is killed if the original one ends before, and adopts orphans.
    """
    if sys.platform == "win32":
        raise NotImplementedError
    pid = os.fork()
    if pid:
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, signal.SIG_IGN)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF
        with contextlib.suppress(OSError):
            os.rmdir(scratch)  # out of reach for a process with a file system of its own
        os._exit(code)
    kernel.set_process_attribute(kernel.PARENT_DEATH, signal.SIGKILL)
    with contextlib.suppress(OSError):
        kernel.set_process_attribute(kernel.ADOPTS_ORPHANS, 1)


def _map_user(inside: int, uid: int, gid: int, proc: int | None = None) -> None:
    """Give the user of this process another number, `inside`, in its new user namespace.

    `proc` is the process's open folder in /proc, for when /proc is gone. Raises OSError where that
    is refused.
    """
    texts = {"setgroups": "deny", "uid_map": f"{inside} {uid} 1", "gid_map": f"{inside} {gid} 1"}
    for name, text in texts.items():
        if proc is None:
            path = f"/proc/self/{name}"
        else:
            path = name
        descriptor = os.open(path, os.O_WRONLY, dir_fd=proc)
        os.write(descriptor, text.encode())
        os.close(descriptor)


class Isolation:
    """Everything about the isolation of children that can be prepared before the fork.

    `gpu_watch` is there if children may use the real GPU; `processes` is whether there may be
    process namespaces.
    """

    def __init__(
        self,
        scratch: str,
        gpu_watch: real_gpus.GpuMemoryWatch | None = None,
        processes: bool = True,
    ) -> None:
        """Find out what children may read and which users they can be. `scratch` is their folder.

        `gpu_watch` is given if children may use the real GPU; `processes` is whether there may be
        process namespaces. Takes the variable that names visible GPUs out of the environment.
        """
        self.scratch = scratch
        self.gpu_watch = gpu_watch
        self.processes = processes
        self.visible_gpus = os.environ.pop(real_gpus.VISIBLE, None)
        self.layers: Layers = {}
        self.namespaces = 0  # the kinds that each child enters
        self.own_processes: int | None = None  # this process's process namespace, opened
        self.landlock: Any = None  # a module of py-landlock
        self.landlock_version: Any = None  # of Landlock in this kernel
        self.readable = readable_paths()
        self.filters: dict[bool, Any] = {}  # of system calls, by whether the child uses the GPU
        self.users = first_user()
        # Whether each child has a user namespace of its own, where processes are counted anew.
        self.own_user = False

    # In the fork server, before it serves

    def prepare(self) -> None:
        """Find out which layers of isolation this machine allows, and note that in `layers`.

        To be called in the process that forks children. Keeps what `confine` needs of the layers.
        Raises OSError where nothing can be forked to try them.
        """
        self._try_process_namespace()
        self._try_other_namespaces()
        self._try_landlock()
        # Now, as its library is found with programs that `finish` leaves.
        _, self.layers[CALLS] = kernel.seccomp_filter()

    def finish(self) -> None:
        """Leave the machine's file system, and make the filters of system calls.

        To be called when all has been read that children cannot read. A file system that cannot be
        replaced is noted in `layers`, and where there are GPUs, whether the driver can be asked,
        which is waited for. Raises OSError where nothing can be forked.
        """
        if sys.platform == "win32":
            raise NotImplementedError
        if self.gpu_watch is not None:
            self.gpu_watch.wait_ready()
            self.layers[DEVICE] = self.gpu_watch.why
        if not self.layers[TREE]:
            try:
                self._enter_tree()
            except OSError as error:
                self.layers[TREE] = _reason_of_refusal(error.errno or 1)
        self.own_user = self.users is None and _errno_of(_count_processes_alone) == 0
        own_sockets = not self.layers[TREE] and not self.layers[NETWORK]
        for gpu in (False, True):
            self.filters[gpu], _ = kernel.seccomp_filter(own_sockets, shared_memory=gpu)

    def _enter_tree(self) -> None:
        """Give this process a file system with what children may read. Raises OSError."""
        kernel.unshare(kernel.NEWNS)
        kernel.make_mounts_private()
        readable = [*self.readable, sys.executable]
        devices = [*DEVICES]
        if self.gpu_watch is not None:
            readable += real_gpus.library_folders()
            devices += ["/dev/zero", *real_gpus.device_files()]
        replace_root(self.scratch, readable, devices)

    def _try_process_namespace(self) -> None:
        """Note in `layers` whether children can have process namespaces.

        Opens this process's own, to which `after_fork` goes back.
        """
        if sys.platform == "win32":
            raise NotImplementedError
        if not self.processes:
            self.layers[PROCESSES] = real_gpus.NO_PROC
            return
        try:
            own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            kernel.unshare(kernel.NEWPID)
            kernel.enter_namespace(own, kernel.NEWPID)
        except OSError as error:
            self.layers[PROCESSES] = _reason_of_refusal(error.errno or 1)
            return
        self.own_processes = own
        self.layers[PROCESSES] = ""

    def _try_other_namespaces(self) -> None:
        """Note in `layers` which other namespaces and file systems children can have."""
        self._try_layer(NETWORK, _enter_network, _NETWORK_NAMESPACES)
        self._try_layer(SCRATCH, _mount_scratch, kernel.NEWNS)
        self._try_layer(TREE, self._enter_tree, 0)

    def _try_layer(self, layer: str, trial: Callable[[], None], namespaces: int) -> None:
        """Try in a child what a layer needs, and note the result in `layers`.

        If it works, children will enter these namespaces. `trial` is what the child does;
        `namespaces` are flags.
        """
        code = _errno_of(trial)
        if code:
            self.layers[layer] = _reason_of_refusal(code)
        else:
            self.layers[layer] = ""
            self.namespaces |= namespaces

    def _try_landlock(self) -> None:
        """Note in `layers` whether the kernel has Landlock, and whether it covers signals.

        Keeps the module and the version, if it has.
        """
        try:
            from py_landlock import landlock_sys
            from py_landlock.abi import MIN_SCOPE_ABI

            version = landlock_sys.get_abi_version()
        except ImportError:
            self.layers[FILES] = self.layers[SIGNALS] = "py-landlock is not installed"
            return
        except Exception as error:  # py-landlock's own errors: not in this kernel, or switched off
            self.layers[FILES] = self.layers[SIGNALS] = f"this kernel has no Landlock ({error})"
            return
        self.landlock = landlock_sys
        self.landlock_version = version
        self.layers[FILES] = ""
        self.layers[SIGNALS] = ""
        if version < MIN_SCOPE_ABI:
            self.layers[SIGNALS] = "this kernel's Landlock does not cover signals"

    # In the fork server, around each fork

    def before_fork(self) -> None:
        """Let the next child be the first process of a new namespace. Raises OSError."""
        if self.own_processes is not None:
            kernel.unshare(kernel.NEWPID)

    def after_fork(self) -> None:
        """Undo `before_fork`. Raises OSError."""
        if self.own_processes is not None:
            kernel.enter_namespace(self.own_processes, kernel.NEWPID)

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
        """Isolate this process, and write the submission's files to its scratch folder.

        `number` is the child's; `memory` and `scratch` are limits in bytes, `seconds` of processor
        time. The scratch folder becomes the current one, HOME and TMPDIR. Returns by layer why it
        does not hold for this child, or "". The order matters: each step gives up what only the
        steps before it need. Raises OSError where a step that was tried before is refused, and what
        py-landlock raises.
        """
        if sys.platform == "win32":
            raise NotImplementedError
        layers = {name: why for name, why in self.layers.items() if on_gpu or name != DEVICE}
        os.setsid()
        if self.users is None:
            user = None
        else:
            user = self.users + number % USERS_IN_BLOCK
        processes = PROCESSES_AT_MOST
        if user is None and not self.own_user:
            processes = SHARED_PROCESSES + _threads_of_this_user()
        with contextlib.suppress(OSError):
            # Where memory runs out, a submission is killed before anything else.
            Path("/proc/self/oom_score_adj").write_text("1000")

        # Namespaces, and the scratch folder.
        if self.namespaces:
            kernel.unshare(self.namespaces)
        home = self._make_home(number, scratch, files, user)
        if not layers[NETWORK]:
            kernel.bring_loopback_up()
        os.chdir(home)
        os.environ.update(HOME=home, TMPDIR=home)
        tempfile.tempdir = None  # the fork server has chosen one, where this process may not write

        # Limits, and another user.
        limit_resources(memory, scratch, seconds, on_gpu)
        layers[LIMITS] = ""
        self._enter_user_namespace(on_gpu)
        _limit_resource(resource.RLIMIT_NPROC, processes)
        writable = [home] if layers[TREE] else [home, SHARED_MEMORY]
        rules = self._landlock_rules(writable, on_gpu)
        guarded = rules is not None or not (layers[TREE] or layers[CALLS])
        layers[USER] = self._give_up_privileges(user, guarded)
        with contextlib.suppress(OSError):  # now, as a change of user undoes it
            kernel.set_process_attribute(kernel.PARENT_DEATH, signal.SIGKILL)

        # Landlock and seccomp last: they would refuse the steps above.
        if rules is not None:
            self.landlock.restrict_self(rules, None)
            os.close(rules)
        if self.filters[on_gpu] is not None:
            self.filters[on_gpu].load()
        return layers

    def _make_home(self, number: int, size: int, files: dict[str, bytes], user: int | None) -> str:
        """Make the scratch folder of this child with the submission's files. Returns its path.

        Where the machine allows it, it is a file system in memory of `size` bytes. `user` is the
        owner of the files, if not None. Raises OSError where something cannot be made.
        """
        own_mount = not self.layers[SCRATCH]
        if own_mount:
            kernel.make_mounts_private()
            kernel.mount_memory(self.scratch, size, FILES_AT_MOST, "711")
        home = os.path.join(self.scratch, "home" if own_mount else str(number))
        os.mkdir(home, 0o700)
        write_files(home, files, user)
        if not self.layers[TREE]:
            shared = os.path.join(self.scratch, "shared")
            os.mkdir(shared, 0o700)
            write_files(shared, {}, user)
            kernel.bind_mount(shared, SHARED_MEMORY)
        return home

    def _enter_user_namespace(self, on_gpu: bool) -> None:
        """Lose the machine's /proc, and enter a user namespace if each child has its own.

        With `on_gpu` the GPUs are shown again, in a /proc of its own. Raises OSError where a step
        is refused.
        """
        if sys.platform == "win32":
            raise NotImplementedError
        uid = os.getuid()
        gid = os.getgid()
        proc = None
        if self.own_user:
            proc = os.open("/proc/self", os.O_RDONLY | os.O_CLOEXEC)
        if on_gpu:
            real_gpus.show_gpus(self.visible_gpus)
            if self.may_mount_proc():
                kernel.mount_proc()
        elif not self.layers[TREE]:
            kernel.unmount("/proc")
        if proc is not None:
            # Without a limit of processes, which would count for all of its user's.
            kernel.unshare(kernel.NEWUSER)
            _map_user(STUDENT, uid, gid, proc)
            os.close(proc)
            if on_gpu:
                kernel.set_process_attribute(kernel.DUMPABLE, 1)

    def may_mount_proc(self) -> bool:
        """True in namespaces of its own: otherwise /proc would be mounted for the whole machine."""
        if self.own_processes is None:
            return False
        return bool(self.namespaces & kernel.NEWNS)

    def _landlock_rules(self, writable: list[str], on_gpu: bool) -> int | None:
        """Make a set of Landlock rules for this process, and return its descriptor.

        Returns None without Landlock, the kernel's rules on files. `writable` are the folders that
        it may write. From here on this process cannot gain privileges by running a program. Raises
        what py-landlock raises.
        """
        if self.landlock is None:
            return None
        from py_landlock.abi import get_supported_fs, get_supported_scope
        from py_landlock.flags import AccessFs
        from py_landlock.prctl import set_no_new_privs

        supported = get_supported_fs(self.landlock_version)
        attributes = self.landlock.RulesetAttr()
        attributes.handled_access_fs = supported
        attributes.scoped = get_supported_scope(self.landlock_version)
        rules: int = self.landlock.create_ruleset(attributes)
        # What may be done with which paths.
        read = AccessFs.READ_FILE | AccessFs.READ_DIR | AccessFs.EXECUTE
        use = AccessFs.READ_FILE | AccessFs.READ_DIR | AccessFs.WRITE_FILE | AccessFs.IOCTL_DEV
        own = supported & ~AccessFs.MAKE_CHAR & ~AccessFs.MAKE_BLOCK & ~AccessFs.EXECUTE
        grants = [
            _LandlockGrant(read, self.readable),
            _LandlockGrant(use, DEVICES),
            _LandlockGrant(own, writable),
        ]
        if SHARED_MEMORY in writable:  # in a tree of its own
            grants.append(_LandlockGrant(read, [HOSTS_FILE]))
        if on_gpu:
            grants += [
                _LandlockGrant(read, [*real_gpus.library_folders(), *real_gpus.READ]),
                _LandlockGrant(use, ["/dev/zero", *real_gpus.device_files()]),
                _LandlockGrant(own, real_gpus.WRITTEN),
            ]
        # One rule for each path that exists.
        for grant in grants:
            for descriptor in _open_existing(grant.paths):
                rule = self.landlock.PathBeneathAttr()
                rule.parent_fd = descriptor
                rule.allowed_access = grant.access & supported
                if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                    rule.allowed_access &= ~AccessFs.READ_DIR
                self.landlock.add_rule(rules, rule)
        set_no_new_privs()
        return rules

    def _give_up_privileges(self, user: int | None, guarded: bool) -> str:
        """Give up capabilities, and become `user`, if there is one.

        `guarded` means that files are out of reach whoever their owner is. Returns the reason if
        the process keeps the user who grades, else an empty text. Raises OSError where the change
        of user is refused.
        """
        if sys.platform == "win32":
            raise NotImplementedError
        if user is None:
            with contextlib.suppress(OSError):  # macOS has none
                kernel.keep_only_capabilities()
            if self.own_user and not self.layers[TREE]:
                return ""
            return "the submission runs as the user who grades"
        os.setgroups([])
        # Packages may be readable by root only. What is read is not limited by file permissions
        # then.
        kept = []
        if guarded and kernel.has_capability(kernel.DAC_READ_SEARCH):
            kept.append(kernel.DAC_READ_SEARCH)
            kernel.set_process_attribute(kernel.KEEP_CAPABILITIES, 1)
        os.setresgid(user, user, user)  # type: ignore[attr-defined, unused-ignore]
        os.setresuid(user, user, user)  # type: ignore[attr-defined, unused-ignore]
        kernel.keep_only_capabilities(*kept)
        return ""


class _LandlockGrant(NamedTuple):
    """What a child may do with some files and folders."""

    access: Any  # flags of py-landlock
    paths: Iterable[str]


def first_user() -> int | None:
    """The first user number that children can have; None if this process cannot change its user.

    It is drawn anew each time, as far as there are enough: several gradings on one machine share
    no user.
    """
    if sys.platform == "win32":
        raise NotImplementedError
    if os.getuid() != 0:
        return None
    for first in FIRST_USERS:
        for start, end in _ranges_of_users():
            if start <= first and first + USERS_IN_BLOCK <= end:
                blocks = (end - first) // USERS_IN_BLOCK
                return first + USERS_IN_BLOCK * secrets.randbelow(min(BLOCKS_OF_USERS, blocks))
    return None


def _ranges_of_users() -> list[tuple[int, int]]:
    """The user numbers that exist in this user namespace, as first and one after last."""
    ranges = []
    try:
        for line in Path("/proc/self/uid_map").read_text().splitlines():
            first, _, count = map(int, line.split())
            ranges.append((first, first + count))
    except (OSError, ValueError):  # not on Linux
        return [(0, 1 << 32)]
    return ranges


def write_files(home: str, files: dict[str, bytes], owner: int | None) -> None:
    """Write a submission's files below `home`, and make folders as needed.

    `owner` is the number of the user they are to belong to, or None for the present one. Raises
    OSError.
    """
    if sys.platform == "win32":
        raise NotImplementedError
    for name, data in files.items():
        path = Path(home, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    if owner is not None:
        for path in (Path(home), *Path(home).rglob("*")):
            os.chown(path, owner, owner)


def _open_existing(paths: Iterable[str]) -> Iterator[int]:
    """Yield a descriptor of each path that exists; it is closed when the next one is asked for."""
    for path in paths:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)  # type: ignore[attr-defined, unused-ignore]
            try:
                yield descriptor
            finally:
                os.close(descriptor)


# Trials: whether this machine allows what a layer needs. Each raises OSError if it does not.


def _errno_of(trial: Callable[[], object]) -> int:
    """The error number of the OSError with which a trial fails, or 0. It runs in a forked child.

    Any other error counts as number 1. Raises OSError if nothing can be forked.
    """
    if sys.platform == "win32":
        raise NotImplementedError
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            trial()
            code = 0
        except OSError as error:
            code = error.errno or 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _reason_of_refusal(code: int) -> str:
    """Why a layer does not hold, by the error number of its trial."""
    return f"this machine does not allow such a namespace ({os.strerror(code)})"


def _enter_network() -> None:
    """Enter a network namespace with a loopback. Raises OSError if that is not allowed."""
    kernel.unshare(_NETWORK_NAMESPACES)
    kernel.bring_loopback_up()


def _mount_scratch() -> None:
    """Mount a file system in memory that only this process sees. Raises OSError if it may not."""
    kernel.unshare(kernel.NEWNS)
    kernel.make_mounts_private()
    kernel.mount_memory("/tmp", 1 << 16, 4)


def _count_processes_alone() -> None:
    """Enter a user namespace, and fork there under a limit of three processes.

    That raises OSError if the user's other processes count: the fork server and the grader are more
    already.
    """
    if sys.platform == "win32":
        raise NotImplementedError
    uid = os.getuid()
    gid = os.getgid()
    kernel.unshare(kernel.NEWUSER)
    _map_user(STUDENT, uid, gid)
    resource.setrlimit(resource.RLIMIT_NPROC, (3, 3))
    _errno_of(os.getpid)


def _mount_own_proc() -> None:
    """Mount a /proc in a new process namespace, which this process's children are in.

    Raises OSError if that is not allowed.
    """
    if sys.platform == "win32":
        raise NotImplementedError

    def mount_privately() -> None:
        kernel.make_mounts_private()
        kernel.mount_proc()

    user_namespace = 0
    if os.getuid():
        user_namespace = kernel.NEWUSER
    kernel.unshare(kernel.NEWPID | kernel.NEWNS | user_namespace)
    code = _errno_of(mount_privately)
    if code:
        raise OSError(code, os.strerror(code))


def prepare_isolation(scratch: str, gpu: bool) -> Isolation:
    """The isolation of children, in a process that is to fork them.

    `scratch` is the folder for all children; with `gpu` they may use the real GPU. Forks: from here
    on this process is in namespaces of its own. Raises OSError where a step fails that every
    machine allows.
    """
    if sys.platform == "win32":
        raise NotImplementedError
    watch = None
    if LINUX and gpu:
        watch = real_gpus.GpuMemoryWatch()
    # CUDA needs a /proc that shows the processes of its namespace.
    own_processes = not gpu or (LINUX and _errno_of(_mount_own_proc) == 0)
    if LINUX:
        enter_namespaces(own_processes, scratch)
    if os.getuid() == 0:
        os.chmod(scratch, 0o711)
    isolation = Isolation(scratch, watch, own_processes)
    isolation.prepare()
    return isolation


class _Attempt(NamedTuple):
    """Something that a layer should prevent."""

    layer: str
    what: str
    action: Callable[[], object]


def _attempts_to_escape() -> list[_Attempt]:
    """What a confined process tries, to find a layer of isolation that does not hold."""
    if sys.platform == "win32":
        raise NotImplementedError
    large_file = Path(os.getcwd(), "large")
    rare_family = getattr(socket, "AF_VSOCK", 40)

    def signal_the_parent() -> None:
        os.kill(os.getppid() or -1, 0)

    def send_to_another_machine() -> None:
        socket.socket(type=socket.SOCK_DGRAM).connect(("192.0.2.1", 9))

    def write_too_much() -> None:
        large_file.write_bytes(bytes(2 << 20))

    def open_python_to_write() -> None:
        os.close(os.open(os.__file__, os.O_WRONLY))

    def open_a_rare_socket() -> None:
        socket.socket(rare_family, socket.SOCK_STREAM)

    def become_root() -> None:
        os.setresuid(0, 0, 0)  # type: ignore[attr-defined, unused-ignore]

    def raise_a_limit() -> None:
        resource.setrlimit(resource.RLIMIT_NPROC, (1 << 20, 1 << 20))

    return [
        _Attempt(PROCESSES, "signalling the process that started it", signal_the_parent),
        _Attempt(NETWORK, "sending to another machine", send_to_another_machine),
        _Attempt(SCRATCH, "writing more than the limit", write_too_much),
        _Attempt(TREE, "changing Python's files", open_python_to_write),
        _Attempt(FILES, "listing the root folder", lambda: os.listdir("/")),
        _Attempt(CALLS, "making a namespace", lambda: kernel.unshare(kernel.NEWUTS)),
        _Attempt(CALLS, "opening a socket of any family", open_a_rare_socket),
        _Attempt(USER, "becoming root", become_root),
        _Attempt(LIMITS, "raising a limit", raise_a_limit),
    ]


def _add_holes(layers: Layers) -> None:
    """Try in a confined process what the layers should prevent, and note in `layers` what works.

    A layer that is missing keeps its own reason.
    """
    holes = {}
    for attempt in _attempts_to_escape():
        with contextlib.suppress(OSError, ValueError):
            attempt.action()
            holes[attempt.layer] = f"it was set up, but {attempt.what} is possible"
    for layer, why in holes.items():
        layers[layer] = layers[layer] or why


def print_layers() -> None:
    """Print which layers hold for a child of this process, as a line of JSON.

    This process is confined for good. Raises OSError where a child cannot be forked or confined.
    """
    if sys.platform == "win32":
        raise NotImplementedError
    with_gpu = LINUX and bool(real_gpus.device_files())
    scratch = tempfile.mkdtemp(prefix="dojo-")
    isolation = prepare_isolation(scratch, with_gpu)
    try:
        isolation.finish()
        isolation.before_fork()
        pid = os.fork()
        if pid == 0:
            layers = isolation.confine(1, 1 << 30, 1 << 20, 10, {}, with_gpu)
            _add_holes(layers)
            if with_gpu:
                layers[DEVICE] = layers[DEVICE] or real_gpus.make_context()
            print(json.dumps(layers), flush=True)
            os._exit(0)
        isolation.after_fork()
        os.waitpid(pid, 0)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
