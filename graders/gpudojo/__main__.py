"""The command `dojo`, also as `python -m gpudojo`.

Where a new class is to be graded here, the process that imports torch is started before anything else is imported.
"""

from __future__ import annotations

import gc
import itertools
import os
import sys
from collections.abc import Sequence
from typing import Final

NOT_HERE: Final = ("-h", "--help", "--rejudge", "--scheduler", "--bench")  # options of `dojo grade`


def main() -> None:
    client = None
    gc.disable()  # until all is imported, and stays: to look for garbage in it takes a tenth of the start
    if in_new_folder(sys.argv[1:]):
        from gpudojo.sandbox.fork_client import ForkClient

        client = ForkClient()
    try:
        if client is not None:
            client.start()
        from gpudojo.cli import main as command

        gc.freeze()
        gc.enable()
        command(obj=client)
    finally:
        if client is not None:
            client.close()


def in_new_folder(words: Sequence[str]) -> bool:
    """Whether these are the words of `dojo grade` for a class that is new, and graded here on the virtual device."""
    if (
        words[:1] != ["grade"]
        or not hasattr(os, "fork")
        or any(word.startswith(NOT_HERE) for word in words)
    ):
        return False
    return any(
        option == "--out" and not os.path.exists(out) for option, out in itertools.pairwise(words)
    )


if __name__ == "__main__":
    main()
