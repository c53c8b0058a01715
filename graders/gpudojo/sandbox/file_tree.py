"""The file system of children: Python, the installed packages and scratch, and nothing else."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import virtual_cuda
from virtual_cuda.hooks import installed_folders

import gpudojo
from gpudojo.sandbox import kernel

# Read late by Python and by libraries.
SYSTEM_PATHS: Final = (
    "/usr/lib",
    "/usr/lib64",
    "/lib",
    "/lib64",
    "/usr/local/lib",
    "/etc/ld.so.cache",
    "/usr/share/zoneinfo",
    # By gloo, about its network interface.
    "/sys/class/net",
    "/sys/bus/pci",
    "/sys/devices",
    # By `os.popen` and the like, which say with it that there is no such program.
    "/bin/sh",
)
HOSTS_FILE: Final = "/etc/hosts"
HOSTS: Final = "127.0.0.1 localhost\n::1 localhost\n"  # the machine's own says whom it knows
# Not /dev/zero: shared memory can be made of it.
DEVICES: Final = ("/dev/null", "/dev/urandom", "/dev/random", "/dev/full")
SHARED_MEMORY: Final = "/dev/shm"  # where libc keeps named semaphores and shared memory
FILES_AT_MOST: Final = 4096
# The recorded evidence of a reference, in a release.
ANSWERS: Final = os.path.join(
    os.path.dirname(os.path.realpath(gpudojo.__file__)), "grading", "of_reference"
)
_READ_ONLY_DEVICES: Final = kernel.READ_ONLY | kernel.NO_SETUID
_READ_ONLY_FILES: Final = _READ_ONLY_DEVICES | kernel.NO_DEVICES


def readable_paths() -> list[str]:
    """Python, the installed packages and ours: what a child may read.

    Some of them are symbolic links, or lie behind one. The folder around our packages is not
    among them, as it may hold solutions.
    """
    # Of the import path only folders of installed packages: a checkout on it may hold solutions.
    # A package that lies elsewhere, without a list of what was installed, cannot be imported.
    paths = {
        *site.getsitepackages(),
        *sysconfig.get_paths().values(),
        *SYSTEM_PATHS,
        *installed_folders(),
        os.path.dirname(os.path.realpath(sys.executable)),
        os.path.join(sys.prefix, "pyvenv.cfg"),
    }
    allowed = [path for path in paths if os.path.exists(path) and not _is_our_checkout(path)]
    packages = [str(Path(package.__path__[0]).resolve()) for package in (gpudojo, virtual_cuda)]
    return [*sorted(allowed), *packages]


def _is_our_checkout(path: str) -> bool:
    """True for a folder that holds this package and the reference solutions."""
    folder = os.path.realpath(path)
    package = str(Path(gpudojo.__path__[0]).resolve())
    has_reference = os.path.isdir(os.path.join(folder, "reference"))
    return package.startswith(folder + os.sep) and has_reference


def replace_root(scratch: str, readable: Iterable[str], devices: Iterable[str]) -> None:
    """Replace the root of this process's mount namespace: from now on only these paths exist.

    They cannot be changed. `scratch` becomes an empty folder. /proc stays, for the process that
    measures children; they lose it. Raises OSError if the machine does not allow it.
    """
    root = scratch
    kernel.mount_memory(root, 1 << 20, FILES_AT_MOST, "755")
    tree = _FileTree(root)
    for path in filter(os.path.exists, readable):
        tree.bind_path(path, _READ_ONLY_FILES)
    for path in filter(os.path.exists, devices):
        tree.bind_path(path, _READ_ONLY_DEVICES)
    for folder in (scratch, SHARED_MEMORY, "/proc"):
        os.makedirs(root + folder, exist_ok=True)
    kernel.bind_mount("/proc", f"{root}/proc")
    hosts_file = Path(root + HOSTS_FILE)
    hosts_file.parent.mkdir(exist_ok=True)
    hosts_file.write_text(HOSTS)
    if os.path.isdir(root + ANSWERS):  # covered by an empty folder
        kernel.mount_memory(root + ANSWERS, 1 << 12, 1, "755")
        kernel.restrict_mount(root + ANSWERS, kernel.READ_ONLY)
    kernel.restrict_mount(root, _READ_ONLY_FILES, below=False)
    kernel.change_root(root)


class _FileTree:
    """A folder in which paths of the machine exist under the same names."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._bound: list[str] = []  # paths that are there, with all below them

    def bind_path(self, path: str, attributes: int) -> None:
        """Bind a path with these mount attributes, and make the folders and links on the way to it.

        What lies below a bound path is there already. Raises OSError if the machine does not allow
        it.
        """
        here = "/"
        parts = Path(path).parts[1:]
        for number, part in enumerate(parts, 1):
            if part == "..":
                here = os.path.dirname(here)
            else:
                here = os.path.join(here, part)
            if os.path.islink(here):
                target = self._copy_link(here)
                self.bind_path(os.path.join(target, *parts[number:]), attributes)
                return
            if self._is_bound(here):
                continue
            inside = self._root + here
            is_last = number == len(parts)
            if not is_last or os.path.isdir(here):
                os.makedirs(inside, exist_ok=True)
            else:
                Path(inside).touch()
            if is_last:
                kernel.bind_mount(here, inside)
                kernel.restrict_mount(inside, attributes)
                self._bound.append(here)

    def _copy_link(self, link: str) -> str:
        """Make a symbolic link as it is on the machine. Returns the path it leads to.

        Raises OSError if that cannot be done.
        """
        target = os.readlink(link)
        inside = self._root + link
        if not os.path.lexists(inside):
            os.symlink(target, inside)
        return os.path.join(os.path.dirname(link), target)

    def _is_bound(self, path: str) -> bool:
        """True if a path is there already, by itself or with a folder above it."""
        return any(path == bound or path.startswith(f"{bound}/") for bound in self._bound)
