"""Linux system calls that Python does not offer, and the seccomp filter."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import socket
import struct
import sys
from typing import Any, Final

NEWNS: Final = 0x00020000
NEWUTS: Final = 0x04000000
NEWIPC: Final = 0x08000000
NEWUSER: Final = 0x10000000
NEWPID: Final = 0x20000000
NEWNET: Final = 0x40000000

_MS_NOSUID = 0x2
_MS_NODEV = 0x4
_MS_NOEXEC = 0x8
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_PRIVATE = 0x40000
READ_ONLY, NO_SETUID, NO_DEVICES = 0x1, 0x2, 0x4  # attributes of a mount
_MOUNT_SETATTR = 442
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MNT_DETACH = 2
# Attributes of a process: the signal when its parent dies; whether its entry in /proc is its own; whether capabilities
# stay at the next change of user; whether descendants whose parent has died become its children.
PARENT_DEATH = 1
DUMPABLE = 4
KEEP_CAPABILITIES = 8
ADOPTS_ORPHANS = 36
_CAPABILITY_VERSION_3: Final = 0x20080522
DAC_READ_SEARCH: Final = 2
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_IFF_RUNNING = 0x40

_libc: Final = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *args: Any) -> None:
    function = getattr(_libc, name, None)  # other systems lack most of them
    if function is None or int(function(*args)) < 0:
        error = ctypes.get_errno() if function else errno.ENOSYS
        raise OSError(error, f"{name}: {os.strerror(error)}")


def unshare(flags: int) -> None:
    _call("unshare", flags)


def enter(namespace: int, flags: int) -> None:
    _call("setns", namespace, flags)


def private_mounts() -> None:
    """Hide what is mounted here from now on from the rest of the machine."""
    _call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)


def mount_memory(path: str, size: int, files: int, mode: str = "700") -> None:
    """Mount a file system in memory."""
    options = f"size={size},nr_inodes={files},mode={mode}".encode()
    _call("mount", b"tmpfs", os.fsencode(path), b"tmpfs", _MS_NOSUID | _MS_NODEV, options)


def mount_processes() -> None:
    """Mount a /proc that shows the processes of this process's namespace, by their numbers there."""
    _call("mount", b"proc", b"/proc", b"proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, None)


def bind(source: str, target: str) -> None:
    """Let a file or folder, with what is mounted below it, be at `target` too."""
    _call("mount", os.fsencode(source), os.fsencode(target), None, _MS_BIND | _MS_REC, None)


def restrict_mount(path: str, attributes: int, below: bool = True) -> None:
    """Add attributes to what is mounted at a path, and to everything mounted below it."""
    values = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    arguments = (
        _AT_FDCWD,
        os.fsencode(path),
        _AT_RECURSIVE if below else 0,
        values,
        ctypes.sizeof(values),
    )
    _call("syscall", ctypes.c_long(_MOUNT_SETATTR), *arguments)


def unmount(path: str) -> None:
    """Remove what is mounted there, even while it is in use."""
    _call("umount2", os.fsencode(path), _MNT_DETACH)


def change_root(folder: str) -> None:
    """Make what is mounted at `folder` the root of this mount namespace; nothing else stays reachable by a name."""
    os.chdir(folder)
    _call("pivot_root", b".", b".")
    unmount(".")
    os.chdir("/")


def loopback_up() -> None:
    if sys.platform == "win32":
        raise NotImplementedError
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(
            any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP | _IFF_RUNNING)
        )


def set_own(attribute: int, value: int) -> None:
    """Set an attribute of this process."""
    _call("prctl", attribute, value, 0, 0, 0)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def capable(capability: int) -> bool:
    header = _Header(_CAPABILITY_VERSION_3, 0)
    data = (_Data * 2)()
    _call("capget", ctypes.byref(header), data)
    return bool(data[capability // 32].effective >> (capability % 32) & 1)


def only_capabilities(*kept: int) -> None:
    """Give up every capability but these."""
    header = _Header(_CAPABILITY_VERSION_3, 0)
    data = (_Data * 2)()
    for one in kept:
        data[one // 32].effective = data[one // 32].permitted = data[one // 32].permitted | 1 << (
            one % 32
        )
    _call("capset", ctypes.byref(header), data)


DENIED: Final = (
    *("ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd", "process_madvise"),
    *(
        "mount",
        "umount2",
        "pivot_root",
        "chroot",
        "fsopen",
        "fsmount",
        "move_mount",
        "open_tree",
        "mount_setattr",
    ),
    *(
        "unshare",
        "setns",
        "bpf",
        "perf_event_open",
        "userfaultfd",
        "io_uring_setup",
        "open_by_handle_at",
    ),
    *(
        "keyctl",
        "add_key",
        "request_key",
        "kexec_load",
        "kexec_file_load",
        "reboot",
        "swapon",
        "swapoff",
    ),
    *(
        "init_module",
        "finit_module",
        "delete_module",
        "settimeofday",
        "clock_settime",
        "clock_adjtime",
        "adjtimex",
    ),
    *(
        "sethostname",
        "setdomainname",
        "acct",
        "quotactl",
        "syslog",
        "iopl",
        "ioperm",
        "personality",
        "vhangup",
    ),
    # Memory that belongs to no process, and so is not measured.
    *("memfd_create", "memfd_secret", "shmget", "shmat", "msgget", "semget", "mq_open"),
)


_AF_UNIX = 1
_AF_NETLINK = 16
FAMILIES: Final = (
    socket.AF_INET,
    socket.AF_INET6,
    _AF_NETLINK,
)  # netlink: libc lists network interfaces by it
_MAP_SHARED = 0x01
_MAP_ANONYMOUS = 0x20


def seccomp_filter(unix_sockets: bool = False, shared_memory: bool = False) -> tuple[Any, str]:
    """A filter for a child to load after the other layers; None and the reason where there can be none.

    `unix_sockets` is for children that can name no socket but their own; others have only pairs of connected ones.
    `shared_memory` without a file is for CUDA: the kernel does not say which process holds it.
    """
    try:
        import pyseccomp as seccomp  # type: ignore[import-untyped]
    except ImportError:
        return None, "pyseccomp is not installed"
    except (RuntimeError, OSError, AttributeError) as error:
        return None, f"libseccomp is not installed ({error})"
    made = seccomp.SyscallFilter(seccomp.ALLOW)
    for name in DENIED:
        with contextlib.suppress(OSError):  # not on every processor
            made.add_rule(seccomp.ERRNO(errno.EPERM), name)
    allowed = (*FAMILIES, _AF_UNIX) if unix_sockets else FAMILIES
    for family in set(range(max(allowed))) - set(allowed):
        made.add_rule(seccomp.ERRNO(errno.EPERM), "socket", seccomp.Arg(0, seccomp.EQ, family))
    made.add_rule(seccomp.ERRNO(errno.EPERM), "socket", seccomp.Arg(0, seccomp.GT, max(allowed)))
    routes = (
        seccomp.Arg(0, seccomp.EQ, max(allowed)),
        seccomp.Arg(2, seccomp.NE, 0),
    )  # netlink about anything else
    made.add_rule(seccomp.ERRNO(errno.EPERM), "socket", *routes)
    made.add_rule(seccomp.ERRNO(errno.EPERM), "socketpair", seccomp.Arg(0, seccomp.NE, _AF_UNIX))
    if not shared_memory:
        unnamed = _MAP_SHARED | _MAP_ANONYMOUS
        made.add_rule(
            seccomp.ERRNO(errno.EPERM), "mmap", seccomp.Arg(3, seccomp.MASKED_EQ, unnamed, unnamed)
        )
    for flag in (NEWUSER, NEWNS, NEWNET, NEWPID):
        made.add_rule(
            seccomp.ERRNO(errno.EPERM), "clone", seccomp.Arg(0, seccomp.MASKED_EQ, flag, flag)
        )
    # The flags of clone3 lie in memory, where a filter cannot look; libraries then use clone instead.
    made.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")
    # The first process of a namespace cannot be ended by its own SIGABRT. abort() then runs an invalid instruction,
    # which the kernel reports as SIGTRAP on ARM and as SIGSEGV on x86, like a segmentation fault. With these rules
    # the kernel ends the process at the call that raises SIGABRT, and reports SIGSYS.
    for name, argument in (("kill", 1), ("tkill", 1), ("tgkill", 2)):
        made.add_rule(seccomp.KILL_PROCESS, name, seccomp.Arg(argument, seccomp.EQ, signal.SIGABRT))
    return made, ""
