"""What may a child read? Python, what is installed, and this package, but nothing that lies around it."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import graders

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
    package = str(Path(graders.__file__).resolve().parent)
    found = {os.path.realpath(name) for name in names if os.path.exists(name)}
    return [*sorted(path for path in found if not _holds(path, package)), package]


def _editable_free(paths: Iterable[str]) -> list[str]:
    """The folders on the path that hold installed packages; a checkout on it is not one of them."""
    return [path for path in paths if "site-packages" in path or "dist-packages" in path or path.endswith(".zip")]


def _holds(folder: str, package: str) -> bool:
    """Whether the folder is a checkout around this package rather than where packages are installed."""
    beside = os.path.join(folder, "reference")
    return package.startswith(folder + os.sep) and os.path.isdir(beside)
