"""Reads names in the code of a student's file, before it runs."""

from __future__ import annotations

import dis
import re
from collections.abc import Iterator
from types import CodeType
from typing import Any, Final, NamedTuple

WORD: Final = re.compile(r"\w+")
# Steps of bytecode between an import and the names that it is stored under.
OF_IMPORTS: Final = frozenset("IMPORT_NAME IMPORT_FROM SWAP POP_TOP".split())
TO_ATTRIBUTES: Final = frozenset("LOAD_ATTR LOAD_METHOD".split())
STORES_ATTRIBUTE: Final = frozenset("STORE_ATTR DELETE_ATTR".split())
STORING_OPCODES: Final = frozenset(dis.opmap[name] for name in STORES_ATTRIBUTE)


class NameInCode(NamedTuple):
    """A name or a text in code."""

    text: str
    line: int
    follows_import: bool  # an attribute of something imported, as in `torch.nn`


def find_names(code: CodeType) -> Iterator[NameInCode]:
    """Yield all names and texts in code, and in code inside of it, each with its line."""
    codes = list(_codes_in(code))
    imported = {name for each in codes for name in _imported_names(each)}
    for each in codes:
        follows_import = False
        line = each.co_firstlineno
        for step in dis.get_instructions(each):
            if step.positions is not None:
                line = step.positions.lineno or line
            for text in _texts_in(step.argval):
                yield NameInCode(text, line, follows_import)
            if type(step.argval) is str and step.argval in imported:
                follows_import = True
            elif step.opname not in TO_ATTRIBUTES:
                follows_import = False


def _imported_names(code: CodeType) -> Iterator[str]:
    """The names under which code stores what it imports."""
    is_importing = False
    for step in dis.get_instructions(code):
        if is_importing and step.opname.startswith("STORE_"):
            yield step.argval
        else:
            is_importing = step.opname in OF_IMPORTS


def names_mentioned_in(code: CodeType) -> set[str]:
    """All names and texts in code and in code inside of it, and all words of the texts."""
    mentioned: set[str] = set()
    for each in _codes_in(code):
        mentioned.update(each.co_names)
        for constant in each.co_consts:
            for text in _texts_in(constant):
                mentioned.add(text)
                mentioned.update(WORD.findall(text))
    return mentioned


def names_stored_by(code: CodeType) -> set[str]:
    """Names of attributes that code, or code inside of it, gives a value or deletes.

    Also all words of texts, which may be meant for `setattr` or `mock.patch`. A name that is put
    together while the code runs is not found.
    """
    stored: set[str] = set()
    for each in _codes_in(code):
        # `dis` takes long, so only where an opcode, every second byte, is one that stores.
        if not STORING_OPCODES.isdisjoint(each.co_code[::2]):
            for step in dis.get_instructions(each):
                if step.opname in STORES_ATTRIBUTE:
                    stored.add(step.argval)
        for constant in each.co_consts:
            for text in _texts_in(constant):
                stored.update(WORD.findall(text))
    return stored


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and all those inside of it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes_in(constant)


def _texts_in(constant: Any) -> Iterator[str]:
    """A constant that is a text, or the texts in a constant of several values.

    A text of a class of its own says what it likes when it is asked: such a one is left out.
    """
    values = constant if isinstance(constant, (tuple, frozenset)) else (constant,)
    for value in values:
        if type(value) is str:
            yield value
