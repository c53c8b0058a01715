"""Run as a script: runs each snippet under the watch, as a child of the fork server does.

Reads a JSON object of snippets by name. Each runs in a process of its own, as a student's file;
then its function `solve`, where it has one, is called. Then its text `after` is executed, which
belongs to the test. Prints what was found in the file, meanwhile, and in the function, in lines
such as "forged student.py:3 replaced the code of gpudojo.x.f".
"""

from __future__ import annotations

import builtins
import json
import os
import sys
import traceback
import types
from typing import Any, TypedDict


class Snippet(TypedDict):
    text: str
    after: str


def run_in_fork(watch: Any, snippet: Snippet) -> list[str]:
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(2, 1)
        lines: list[str] = []
        try:
            run_snippet(watch, snippet, lines)
        except BaseException as error:
            traceback.print_exc()
            lines.append(f"raised {type(error).__name__}: {error}")
        os.write(writing, "\n".join(lines).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        found = file.read().splitlines()
    os.wait()
    return found


def run_snippet(watch: Any, snippet: Snippet, lines: list[str]) -> None:
    def tell(finding: Any) -> None:
        lines.append(f"{finding.kind} {finding.file}:{finding.line} {finding.what}")

    module = sys.modules["student"] = types.ModuleType("student")
    module.__file__ = "/nowhere/student.py"
    vars(module)["__builtins__"] = vars(builtins)  # as loading a submission does
    vars(module)["call_recorder"] = watch.call_recorder
    code = compile(snippet["text"], module.__file__, "exec", dont_inherit=True)
    watch.tell_to(tell)
    watch.run_file(types.FunctionType(code, vars(module)))
    if "solve" in vars(module):
        watch.call(module.solve, (), {})
    for finding in watch.end_function():
        tell(finding)
    watch.tell_to(lambda finding: None)
    exec(snippet["after"], {"student": module, "watch": watch})


def main() -> None:
    from gpudojo.model.catalogue import exercises_of
    from gpudojo.sandbox.tampering.stacks import forget_greenlets
    from gpudojo.sandbox.tampering.watch import Watch
    from virtual_cuda.hooks import keep_patches

    exercises_of("day8")

    with keep_patches() as undo_patches:
        watch = Watch(undo_patches)
        forget_greenlets()
        found = {}
        for name, snippet in json.load(sys.stdin).items():
            found[name] = run_in_fork(watch, snippet)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
