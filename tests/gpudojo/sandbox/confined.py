"""Runs pieces of code in one confined process, as a child of the fork server would be, and says
what came of each.

    python confined.py PATHS < JSON

where JSON is {"code": {NAME: SOURCE, …}, "without": [LAYER, …], "neighbour": SOURCE}, and `without`
names the layers that the machine is to lack.

Prints the layers and, for each piece, the text of what it raised or of its variable `found`. The
neighbour is another confined process that has run its code before and stays.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from typing import Any

WITHOUT = {
    "namespaces": "kernel.unshare = kernel.enter_namespace = refused",
    "mounts": "kernel.restrict_mount = refused",
    "landlock": "sys.modules['py_landlock'] = None",
    "seccomp": "sys.modules['pyseccomp'] = None",
    # a folder that exists here
    "answers": "import email, os; file_tree.ANSWERS = os.path.dirname(email.__file__)",
}

forking_process = 0  # its number, for the code that is tried


def refused(*_: object, **__: object) -> None:
    raise OSError(1, "refused")


def main() -> None:
    sys.path[:0] = json.loads(sys.argv[1])
    asked = json.load(sys.stdin)
    from gpudojo.sandbox import file_tree, isolation, kernel

    names: dict[str, Any] = {
        "file_tree": file_tree,
        "kernel": kernel,
        "sys": sys,
        "refused": refused,
    }
    for lacking in asked["without"]:
        exec(WITHOUT[lacking], names)
    scratch = tempfile.mkdtemp(prefix="dojo-")
    made = isolation.prepare_isolation(scratch, gpu=False)
    made.finish()
    global forking_process
    forking_process = os.getpid()
    processes: list[int] = []
    for number, code in enumerate(({"neighbour": asked["neighbour"]}, asked["code"]), 1):
        said, heard = os.pipe()
        made.before_fork()
        pid = os.fork()
        if pid == 0:
            try:
                layers = made.confine(number, 1 << 30, 16 << 20, 60, {"sub/file.txt": b"text"})
                found = {name: _ran(source) for name, source in code.items()}
                os.write(heard, json.dumps({"layers": layers, "found": found}).encode() + b"\n")
                time.sleep(60)
            finally:
                os._exit(1)
        made.after_fork()
        os.close(heard)
        processes.append(pid)
        with os.fdopen(said) as answer:
            told = (
                answer.readline()
            )  # not to the end: processes that the code has started keep the pipe open
    for pid in processes:
        os.kill(pid, signal.SIGKILL)
    print(told, flush=True)
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(0)  # and the others with it


def _ran(source: str) -> str:
    names: dict[str, Any] = {}
    try:
        exec(source, names)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return str(names.get("found"))


if __name__ == "__main__":
    main()
