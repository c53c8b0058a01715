"""Linux system calls that Python does not offer, and the seccomp filter.

Functions here raise OSError if the system lacks a call, or refuses it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import signal
import socket
import struct
import sys
from typing import Any, Final

# Kinds of namespaces, as in linux/sched.h.
NEWNS: Final = 0x00020000  # mounts
NEWUTS: Final = 0x04000000
NEWIPC: Final = 0x08000000
NEWUSER: Final = 0x10000000
NEWPID: Final = 0x20000000
NEWNET: Final = 0x40000000

# Flags of mount(2).
_MS_NOSUID: Final = 0x2
_MS_NODEV: Final = 0x4
_MS_NOEXEC: Final = 0x8
_MS_BIND: Final = 0x1000
_MS_REC: Final = 0x4000
_MS_PRIVATE: Final = 0x40000
_MNT_DETACH: Final = 2

# Attributes of a mount, and what mount_setattr(2) needs.
READ_ONLY: Final = 0x1
NO_SETUID: Final = 0x2
NO_DEVICES: Final = 0x4
_MOUNT_SETATTR: Final = 442
_AT_FDCWD: Final = -100
_AT_RECURSIVE: Final = 0x8000

# Attributes of a process, for prctl(2).
PARENT_DEATH: Final = 1  # the signal when its parent dies
DUMPABLE: Final = 4  # whether its entry in /proc is its own
KEEP_CAPABILITIES: Final = 8  # at the next change of user
ADOPTS_ORPHANS: Final = 36  # descendants whose parent has died become its children

_CAPABILITY_VERSION_3: Final = 0x20080522
DAC_READ_SEARCH: Final = 2  # the capability to read any file

# For the network interface "lo".
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 0x1
_IFF_RUNNING: Final = 0x40


@functools.cache
def _c_library() -> ctypes.CDLL:
    """The functions of the C library that this process has loaded."""
    return ctypes.CDLL(None, use_errno=True)


def _call_c_library(name: str, *args: Any) -> None:
    """Call a function of the C library that returns a negative number when it fails.

    Raises OSError if it fails, or if there is no such function.
    """
    function = getattr(_c_library(), name, None)  # other systems lack most of them
    if function is None:
        raise OSError(errno.ENOSYS, f"{name}: {os.strerror(errno.ENOSYS)}")
    if int(function(*args)) < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


def unshare(flags: int) -> None:
    """Move this process to new namespaces of these kinds; of NEWPID only its future children.

    Raises OSError if that is refused.
    """
    _call_c_library("unshare", flags)


def enter_namespace(descriptor: int, kind: int) -> None:
    """Move this process to an open namespace; for NEWPID only its future children.

    Raises OSError if that is refused.
    """
    _call_c_library("setns", descriptor, kind)


def make_mounts_private() -> None:
    """Hide what is mounted here from now on from the rest of the machine. Raises OSError."""
    _call_c_library("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)


def mount_memory(path: str, size: int, files: int, mode: str = "700") -> None:
    """Mount a file system in memory, with limits on its bytes and on its number of files.

    No code is run from it: neither a program nor an extension module that was written there. `mode`
    is that of the folder. Raises OSError if it may not be mounted.
    """
    options = f"size={size},nr_inodes={files},mode={mode}".encode()
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    _call_c_library("mount", b"tmpfs", os.fsencode(path), b"tmpfs", flags, options)


def mount_proc() -> None:
    """Mount a /proc that shows the processes of this process's namespace, as numbered there.

    Raises OSError if that is refused.
    """
    _call_c_library("mount", b"proc", b"/proc", b"proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, None)


def bind_mount(source: str, target: str) -> None:
    """Let a file or folder, with what is mounted below it, be at `target` too. Raises OSError."""
    _call_c_library(
        "mount", os.fsencode(source), os.fsencode(target), None, _MS_BIND | _MS_REC, None
    )


def restrict_mount(path: str, attributes: int, below: bool = True) -> None:
    """Add attributes to what is mounted at a path, and with `below` to what is mounted below it.

    `attributes` are flags such as READ_ONLY. Raises OSError if that is refused.
    """
    # A struct mount_attr: attributes to set, to clear, propagation, user namespace.
    values = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    number = ctypes.c_long(_MOUNT_SETATTR)
    flags = 0
    if below:
        flags = _AT_RECURSIVE
    _call_c_library(
        "syscall", number, _AT_FDCWD, os.fsencode(path), flags, values, ctypes.sizeof(values)
    )


def unmount(path: str) -> None:
    """Remove what is mounted there, even while it is in use. Raises OSError."""
    _call_c_library("umount2", os.fsencode(path), _MNT_DETACH)


def change_root(folder: str) -> None:
    """Make what is mounted at `folder` the root of this mount namespace.

    Nothing else stays reachable by a name. The current folder becomes the new root. Raises OSError
    if that is refused.
    """
    os.chdir(folder)
    _call_c_library("pivot_root", b".", b".")
    unmount(".")
    os.chdir("/")


def bring_loopback_up() -> None:
    """Let the processes of this network namespace reach each other at 127.0.0.1. Raises OSError."""
    if sys.platform == "win32":
        raise NotImplementedError
    request = struct.pack("16sH14x", b"lo", _IFF_UP | _IFF_RUNNING)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)


def set_process_attribute(attribute: int, value: int) -> None:
    """Set an attribute of this process, such as PARENT_DEATH. Raises OSError if that is refused."""
    _call_c_library("prctl", attribute, value, 0, 0, 0)


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapabilityData(ctypes.Structure):
    """32 capabilities, a bit for each."""

    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def has_capability(capability: int) -> bool:
    """True if this process may use a capability now. Raises OSError if the kernel does not say."""
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    data = (_CapabilityData * 2)()
    _call_c_library("capget", ctypes.byref(header), data)
    word, bit = divmod(capability, 32)
    return bool(data[word].effective >> bit & 1)


def keep_only_capabilities(*capabilities: int) -> None:
    """Give up every capability of this process but these. Raises OSError if that is refused."""
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    data = (_CapabilityData * 2)()
    for capability in capabilities:
        word, bit = divmod(capability, 32)
        data[word].effective |= 1 << bit
        data[word].permitted |= 1 << bit
    _call_c_library("capset", ctypes.byref(header), data)


# System calls that a child may not make.
DENIED: Final = """
    ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd process_madvise
    mount umount2 pivot_root chroot fsopen fsmount move_mount open_tree mount_setattr
    unshare setns bpf perf_event_open userfaultfd io_uring_setup open_by_handle_at
    keyctl add_key request_key kexec_load kexec_file_load reboot swapon swapoff
    init_module finit_module delete_module settimeofday clock_settime clock_adjtime adjtimex
    sethostname setdomainname acct quotactl syslog iopl ioperm personality vhangup
    memfd_create memfd_secret shmget shmat msgget semget mq_open
""".split()  # the last line: memory that belongs to no process, and so is not measured

_AF_UNIX: Final = 1
_AF_NETLINK: Final = 16
_NETLINK_ROUTE: Final = 0  # the protocol by which libc lists network interfaces
FAMILIES: Final = (socket.AF_INET, socket.AF_INET6, _AF_NETLINK)
_MAP_SHARED: Final = 0x01
_MAP_ANONYMOUS: Final = 0x20


def seccomp_filter(unix_sockets: bool = False, shared_memory: bool = False) -> tuple[Any, str]:
    """A filter for a child to load after the other layers, and an empty text.

    None and the reason if there can be none. `unix_sockets` is for children that can name no
    socket but their own; others have only pairs of connected ones. `shared_memory` without a file
    is for CUDA: the kernel does not say which process holds it.
    """
    try:
        import pyseccomp as seccomp  # type: ignore[import-untyped]
    except ImportError:
        return None, "pyseccomp is not installed"
    except (RuntimeError, OSError, AttributeError) as error:
        return None, f"libseccomp is not installed ({error})"
    calls = seccomp.SyscallFilter(seccomp.ALLOW)
    denied = seccomp.ERRNO(errno.EPERM)
    for name in DENIED:
        with contextlib.suppress(OSError):  # not on every processor
            calls.add_rule(denied, name)

    # Sockets: of these families only, and of netlink only for network interfaces.
    if unix_sockets:
        allowed = {*FAMILIES, _AF_UNIX}
    else:
        allowed = {*FAMILIES}
    last = max(allowed)
    for family in range(last):
        if family not in allowed:
            calls.add_rule(denied, "socket", seccomp.Arg(0, seccomp.EQ, family))
    calls.add_rule(denied, "socket", seccomp.Arg(0, seccomp.GT, last))
    is_netlink = seccomp.Arg(0, seccomp.EQ, _AF_NETLINK)
    is_not_about_routes = seccomp.Arg(2, seccomp.NE, _NETLINK_ROUTE)
    calls.add_rule(denied, "socket", is_netlink, is_not_about_routes)
    calls.add_rule(denied, "socketpair", seccomp.Arg(0, seccomp.NE, _AF_UNIX))

    if not shared_memory:
        unnamed = _MAP_SHARED | _MAP_ANONYMOUS
        calls.add_rule(denied, "mmap", seccomp.Arg(3, seccomp.MASKED_EQ, unnamed, unnamed))

    # New namespaces. The flags of clone3 lie in memory, where a filter cannot look; libraries
    # then use clone instead.
    for flag in (NEWUSER, NEWNS, NEWNET, NEWPID):
        calls.add_rule(denied, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, flag, flag))
    calls.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")

    # The first process of a namespace cannot be ended by its own SIGABRT. abort() then runs an
    # invalid instruction, which the kernel reports as SIGTRAP on ARM and as SIGSEGV on x86, like
    # a segmentation fault. With these rules the kernel ends the process at the call that raises
    # SIGABRT, and reports SIGSYS.
    for name, position in (("kill", 1), ("tkill", 1), ("tgkill", 2)):
        is_abort = seccomp.Arg(position, seccomp.EQ, signal.SIGABRT)
        calls.add_rule(seccomp.KILL_PROCESS, name, is_abort)
    return calls, ""
