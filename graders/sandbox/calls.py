"""Which system calls may a child not make? Those that reach into other processes, or change the machine."""

from __future__ import annotations

import contextlib
import errno
from typing import Any, Final

from graders.sandbox import kernel

DENIED: Final = (
    *("ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd", "process_madvise"),
    *("mount", "umount2", "pivot_root", "chroot", "fsopen", "fsmount", "move_mount", "open_tree", "mount_setattr"),
    *("unshare", "setns", "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "open_by_handle_at"),
    *("keyctl", "add_key", "request_key", "kexec_load", "kexec_file_load", "reboot", "swapon", "swapoff"),
    *("init_module", "finit_module", "delete_module", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex"),
    *("sethostname", "setdomainname", "acct", "quotactl", "syslog", "iopl", "ioperm", "personality", "vhangup"),
)


def filter_of_calls() -> tuple[Any, str]:
    """A filter that a child loads, once it is behind the other fences; None and a reason where there can be none."""
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
    for flag in (kernel.NEWUSER, kernel.NEWNS, kernel.NEWNET, kernel.NEWPID):
        made.add_rule(seccomp.ERRNO(errno.EPERM), "clone", seccomp.Arg(0, seccomp.MASKED_EQ, flag, flag))
    # Its flags lie in memory, where a filter cannot look; libraries then use clone instead.
    made.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")
    return made, ""
