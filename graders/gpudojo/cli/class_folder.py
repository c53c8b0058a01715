"""The class that a command is about: its folder, and its gradebook, which is locked meanwhile."""

from __future__ import annotations

import contextlib
import getpass
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from gpudojo.classes.gradebook import Gradebook

HERE: Final = "The folder that `dojo grade --out` made (default: this one, or the only one in it)."


@contextlib.contextmanager
def open_class(out: Path | None) -> Iterator[Gradebook]:
    """Give the class in a folder, which nobody else can write to during the block.

    `out` is the folder, or None for the only one here. Raises ClickException where nothing was
    graded yet, BadClass where another command writes to it or its course file is gone, BadFile for
    a course file, roster or overrides that cannot be used, and OSError.
    """
    from gpudojo.classes.class_opening import load_last_course, open_gradebook
    from gpudojo.classes.class_state import load_state
    from gpudojo.classes.store import Store

    folder = class_folder(out)
    if not load_state(folder).students:
        raise click.ClickException(f"{folder} has no results yet; run `dojo grade` first")
    store = Store(folder)
    store.open()
    try:
        state = load_state(folder)  # again: a `dojo grade` may have ended since
        yield open_gradebook(folder, state, load_last_course(folder, state))
    finally:
        store.close()


def class_folder(out: Path | None) -> Path:
    """The folder of the class: the one given, or the only one here.

    Raises ClickException where there is none or several, and OSError.
    """
    from gpudojo.classes.class_state import STATE

    if out is not None:
        return out
    here = Path()
    folders = []
    for folder in (here, *sorted(here.iterdir())):
        if (folder / STATE).is_file():
            folders.append(folder)
    if len(folders) == 1:
        return folders[0]
    message = "--out is missing: the folder that `dojo grade --out` made"
    if folders:
        names = ", ".join(str(folder) for folder in folders)
        message += f"; there are {names}"
    raise click.ClickException(message)


def login_name() -> str:
    """Who runs the command; "unknown" where the system does not say."""
    with contextlib.suppress(OSError, KeyError, ImportError):  # what getpass raises
        return getpass.getuser()
    return os.environ.get("USER", "unknown")
