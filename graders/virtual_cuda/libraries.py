"""Tells files of Python and of installed packages from those of whoever uses them.

Nobody is known by how a path is spelt: what is installed is asked of Python and of what installers
leave behind. Nothing here imports torch.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import sys
import sysconfig
from typing import Final

_real_folder: Final = functools.cache(os.path.realpath)


@functools.cache
def from_library(filename: str) -> bool:
    """True if a file is Python's, an installed package's or ours, not a student's.

    The answer is remembered for the process.
    """
    libraries = _library_folders()
    # Most of them: only the folder is looked up, once for all files in it.
    if filename.startswith(libraries):
        folder = _real_folder(os.path.dirname(filename))
        return os.path.join(folder, "").startswith(libraries)
    return filename.startswith("<frozen") or os.path.realpath(filename).startswith(libraries)


@functools.cache
def _library_folders() -> tuple[str, ...]:
    """The folders and archives whose files are no student's, each with a separator at its end.

    They are those of Python, of torch and of this project, and those with installed packages.
    """
    folders = {
        os.path.dirname(os.__file__),
        os.path.dirname(os.path.dirname(os.path.abspath(__file__))),  # both packages of gpudojo
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("platstdlib"),
        *installed_folders(),
    }
    torch = importlib.util.find_spec("torch")
    if torch is not None and torch.origin is not None:
        folders.add(os.path.dirname(torch.origin))
    real_folders = [os.path.realpath(folder) for folder in folders]
    return tuple(os.path.join(folder, "") for folder in real_folders)


def installed_folders() -> list[str]:
    """The folders and archives in which packages are installed, whatever they are called.

    `pip install` puts them into Python's own folders, `pip --target` anywhere; a `.pth` file or
    PYTHONPATH leads there.
    """
    own = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    others = [path for path in sys.path if path not in own and _has_installed_package(path)]
    return [*dict.fromkeys(own), *others]


def _has_installed_package(folder: str) -> bool:
    """True if an installer has put a package into a folder or archive.

    An installer leaves a list of the files, RECORD. A project that is only developed there has
    none.
    """
    packages = importlib.metadata.distributions(path=[folder])
    return any(package.read_text("RECORD") is not None for package in packages)
