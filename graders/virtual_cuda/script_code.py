"""Finds the code of a script, a module or `-c`, and makes `__main__` for it as Python does."""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import io
import os
import sys
import types
from typing import Any, Final, NamedTuple

TEXT_FILE: Final = "<string>"  # stands for the file of code that is given as a text


def load_file(path: str, arguments: list[str]) -> types.CodeType:
    """Set up Python for a file as `python FILE` does, and return the file's code.

    `__main__`, `sys.argv` and `sys.path` are changed for that. The ledger names the file's lines.
    Raises what reading or compiling it raises.
    """
    file = os.path.abspath(path)
    sys.argv = [path, *arguments]
    if not sys.flags.safe_path:
        real_path = os.path.realpath(path)
        sys.path[0] = os.path.dirname(real_path)
    loader = importlib.machinery.SourceFileLoader("__main__", file)
    with io.open_code(file) as source:
        code = compile(source.read(), file, "exec", dont_inherit=True)
    main = types.ModuleType("__main__")
    main.__loader__ = loader
    main.__dict__["__cached__"] = None
    _use_as_main(main, file)
    return code


class ModuleCode(NamedTuple):
    """The code of a module, and the file that it is from."""

    file: str
    code: types.CodeType


def load_module(name: str, arguments: list[str]) -> ModuleCode | None:
    """Set up Python for a module as `python -m NAME` does, and return the module's code.

    It is that of a package's `__main__` for a package; None if there is none. `__main__`,
    `sys.argv` and `sys.path` are changed for that; without such a module, only `sys.path` is.
    Raises what importing the packages around it or compiling it raises.
    """
    sys.path[0] = os.getcwd()
    spec = _spec_to_run(name)
    if spec is None:
        return None
    loader: Any = spec.loader
    code = None
    if hasattr(loader, "get_code"):
        code = loader.get_code(spec.name)
    if code is None:
        return None
    file = spec.origin or name
    sys.argv = [file, *arguments]
    main = types.ModuleType("__main__")
    main.__package__ = spec.parent
    main.__spec__ = spec
    main.__loader__ = spec.loader
    main.__dict__["__cached__"] = spec.cached
    _use_as_main(main, file)
    return ModuleCode(file, code)


def _spec_to_run(name: str) -> importlib.machinery.ModuleSpec | None:
    """The spec of a module, or of a package's `__main__`; None if it cannot be found.

    Packages around the module are imported for that; what they raise is raised, unless it is
    ModuleNotFoundError.
    """
    try:
        spec = importlib.util.find_spec(name)
        is_package = spec is not None and spec.submodule_search_locations is not None
        if is_package:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError:
        return None
    return spec


def load_text(text: str, arguments: list[str]) -> types.CodeType:
    """Set up Python for a text as `python -c TEXT` does, and return the text's code.

    `__main__`, `sys.argv` and `sys.path` are changed for that. Raises SyntaxError, or ValueError
    for a text with a null character.
    """
    sys.argv = ["-c", *arguments]
    sys.path[0] = ""
    sys.modules["__main__"] = types.ModuleType("__main__")
    _count_as_students(TEXT_FILE)
    return compile(text, TEXT_FILE, "exec", dont_inherit=True)


def _use_as_main(main: types.ModuleType, file: str) -> None:
    """Let this module be `__main__`, with the code of a file, whose lines the ledger names."""
    main.__file__ = file
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    _count_as_students(file)


def _count_as_students(file: str) -> None:
    """Let the ledger name lines of this file, also where it lies among the libraries."""
    # Not imported before: it imports torch.
    from virtual_cuda.recorder import student_file

    student_file[file] = True
