"""Where is the student's function? In one of the files of the folder that a tool has gone into."""

import functools
import importlib.util
import pathlib
import re


@functools.cache
def module(path):
    spec = importlib.util.spec_from_file_location(f"student_{path.stem[3:]}", path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def function(name):
    for path in sorted(pathlib.Path.cwd().glob("[0-9]*.py")):
        if re.search(rf"^(def {name}\(|{name} *=)", path.read_text(encoding="utf-8"), re.M):
            return getattr(module(path), name)
    raise AssertionError(f"there is no {name}")
