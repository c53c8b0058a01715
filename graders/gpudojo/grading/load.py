"""Loads a student's file or notebook: reads, parses and runs it."""

from __future__ import annotations

import ast
import builtins
import contextlib
import difflib
import itertools
import re
import sys
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from gpudojo.grading.bindings import find_bindings, is_demo
from gpudojo.grading.executed_lines import compile_with_marks
from gpudojo.grading.machine_questions import asks_about_machine, mentions_machine
from gpudojo.grading.notebooks import NOTEBOOK_SUFFIX
from gpudojo.grading.source_patterns import pattern_lines
from gpudojo.grading.sources import (
    SourceText,
    Trees,
    Unparsable,
    cells_left_for,
    parse_source,
    read_texts,
    warnings_are_no_errors,
)
from gpudojo.grading.student_code import run_students_file
from gpudojo.model.errors import describe_error
from gpudojo.model.evidence import Raised

_DEFINES: Final = re.compile(r"^\s*(def|class) ", re.M)
_COMPILED: Final = re.compile(
    r"torch\.compile\b|\.compile\(\)|\bfrom torch import .*\bcompile\b|\b_dynamo\b"
)
SOLUTION: Final = "# BEGIN SOLUTION"  # what stubs are made without
_numbers: Final = itertools.count(1)


@dataclass
class Submission:
    """A student's file after it has run."""

    path: Path
    names: dict[str, Any] = field(default_factory=dict)
    todo: frozenset[str] = frozenset()
    # Why the file itself, or a cell of it, could not be run.
    broken: Raised | None = None
    # Where each name is bound last, and the lines of patterns in the source.
    lines: dict[str, int] = field(default_factory=dict)
    reference: bool = False  # whether it is a reference solution, by its marks
    # Whether it asks which machine this is when it is run, and not only when it is called.
    asks: bool = False
    # Of a notebook: the line at which each code cell begins.
    cells: list[int] = field(default_factory=list)
    # Its text, or the texts of its cells.
    texts: list[SourceText] = field(default_factory=list)
    # The code of each text by its number, or why there is none.
    codes: dict[int, types.CodeType | Raised] = field(default_factory=dict)
    warned: set[tuple[str, str, str, int]] = field(default_factory=set)  # warnings that were shown


def _nothing_is_ours(error: BaseException) -> bool:
    """False for every exception: all are the student's."""
    return False


def load_submission(
    path: Path, ours: Callable[[BaseException], bool] = _nothing_is_ours, trees: Trees | None = None
) -> Submission:
    """Run a student's file and return what it defines.

    What it defines before it fails still counts; the error is in `broken`. `ours` tells which
    exceptions are not the student's: those are raised. What is found in `trees` is taken out and
    not parsed again. The file's module stays in `sys.modules`; modules that it imports from its
    folder do not.
    """
    submission = Submission(path)
    try:
        submission.texts = read_texts(path)
    except Unparsable as error:
        submission.broken = error.evidence
        return submission
    if path.suffix == NOTEBOOK_SUFFIX:
        submission.cells = [source.first_line for source in submission.texts]
    # What was typed in a session is the student's, whatever it was copied from.
    if cells_left_for(path) is None:
        submission.reference = any(SOLUTION in source.text for source in submission.texts)
    # Everything is read before anything runs: afterwards names may mean something else, also those
    # that we use.
    parsed = _parse_texts(submission, trees)
    _describe_source(submission, parsed)
    _run_texts(submission, parsed, ours)
    return submission


def _parse_texts(submission: Submission, trees: Trees | None) -> dict[int, ast.Module]:
    """The syntax tree of each text, by its number.

    Why a text cannot be parsed is noted in `submission.codes`. Takes what it uses out of `trees`.
    """
    parsed = {}
    for number, source in enumerate(submission.texts):
        if trees and source in trees:
            parsed[number] = trees.pop(source)
            continue
        try:
            with warnings_are_no_errors():
                parsed[number] = parse_source(source.text, submission.path, source.first_line)
        except Unparsable as error:
            submission.codes[number] = error.evidence
    return parsed


def _describe_source(submission: Submission, parsed: Mapping[int, ast.Module]) -> None:
    """Fill in `lines`, `todo` and `asks` of the submission, by the syntax trees of its texts.

    `parsed` has these trees by the number of the text.
    """
    statements: list[ast.stmt] = []
    stubs = set()
    may_ask = False
    for number, tree in parsed.items():
        may_ask |= mentions_machine(submission.texts[number].text)
        for statement in tree.body:
            if not is_demo(statement):
                statements.append(statement)
        for binding in find_bindings(tree):
            submission.lines[binding.name] = binding.line
            stubs.discard(binding.name)  # the last binding of a name counts
            if binding.is_stub:
                stubs.add(binding.name)
    submission.lines |= pattern_lines(statements)
    submission.todo = frozenset(stubs)
    if may_ask:
        submission.asks = asks_about_machine(statements)


def load_again(submission: Submission) -> Submission:
    """Run a file anew, as it was read: on another machine it may find other answers.

    Returns a new submission; an error of the file is in its `broken`. The cells of a notebook in
    use are read from where they were left.
    """
    if not submission.texts:
        return load_submission(submission.path)
    again = replace(submission, names={}, broken=None)
    _run_texts(again, {}, _nothing_is_ours)
    return again


def _run_texts(
    submission: Submission,
    parsed: Mapping[int, ast.Module],
    ours: Callable[[BaseException], bool],
) -> None:
    """Run the code of a submission in a new module, which stays in `sys.modules`.

    Fills in `names`, `codes` and `broken`. Trees of what is not compiled yet are in `parsed`, by
    the number of the text. Modules of the student's folder are forgotten afterwards. Raises
    exceptions that are `ours`; all others become evidence.
    """
    path = submission.path
    module = types.ModuleType(f"exercise_{path.stem}_{next(_numbers)}")
    module.__file__ = str(path)
    # dataclasses and pickle look a class's module up by its name.
    sys.modules[module.__name__] = module
    submission.names = module.__dict__
    # Some libraries look for them there, as `exec` leaves them.
    submission.names["__builtins__"] = vars(builtins)
    sys.path.insert(0, str(path.parent))  # as when the file is run as a script
    failures: dict[int, Raised] = {}  # by the number of the text
    try:
        for number in range(len(submission.texts)):
            try:
                with warnings_are_no_errors(), _clocks_put_back():
                    code = _code_of_text(submission, parsed, number)
                    if isinstance(code, Raised):
                        failures[number] = code
                    else:
                        run_students_file(types.FunctionType(code, module.__dict__))
            except BaseException as error:  # whatever student code may raise
                if ours(error):
                    raise
                failures[number] = describe_exception(error, path)
                submission.codes.setdefault(number, failures[number])  # it cannot be compiled
    finally:
        with contextlib.suppress(ValueError):  # the student may have taken it out
            sys.path.remove(str(path.parent))
        _forget_modules_beside(path, module.__name__)
    submission.broken = _failure_to_show(submission, failures)


def _code_of_text(
    submission: Submission, parsed: Mapping[int, ast.Module], number: int
) -> types.CodeType | Raised:
    """The code of a text, compiled once, or the error of a text that cannot be parsed or compiled.

    Notes the one or the other in `submission.codes`; its tree in `parsed` is changed. Raises what
    else `compile` raises.
    """
    codes = submission.codes
    if number not in codes:
        try:
            codes[number] = _compile_text(submission, parsed[number], number)
        except SyntaxError as error:  # such as `return` outside a function
            codes[number] = Raised(type(error).__name__, error.msg, error.lineno)
    return codes[number]


def _compile_text(submission: Submission, tree: ast.Module, number: int) -> types.CodeType:
    """The code of a text with this syntax tree. Raises SyntaxError and what else `compile` raises.

    `number` is that of the text.
    """
    name = str(submission.path)
    # A reference's lines are shown to nobody, and torch's compiler does not understand marks.
    if submission.reference or _names_torchs_compiler(submission.texts[number].text):
        return compile(tree, name, "exec")
    return compile_with_marks(tree, name)


def _forget_modules_beside(path: Path, first: str) -> None:
    """Remove from `sys.modules` what was imported from the student's folder after the module
    `first`.

    The next student's folder may have others of the same name.
    """
    later = list(itertools.takewhile(lambda name: name != first, reversed(sys.modules)))
    for name in later:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and Path(file).parent == path.parent:
            del sys.modules[name]


def _failure_to_show(submission: Submission, failures: Mapping[int, Raised]) -> Raised | None:
    """The error that is shown to the student. Returns None where there is none.

    `failures` are by the number of the text. It is that of the first text that was to define
    something, else the first. A text that only tried something out says less.
    """
    numbers = sorted(failures)
    for number in numbers:
        if _DEFINES.search(submission.texts[number].text):
            return failures[number]
    if not numbers:
        return None
    return failures[numbers[0]]


def _names_torchs_compiler(source: str) -> bool:
    """True if a source uses `torch.compile` or dynamo."""
    # The words first: the pattern takes longer, and most sources have neither.
    if "compile" not in source and "_dynamo" not in source:
        return False
    return _COMPILED.search(source) is not None


@contextlib.contextmanager
def _clocks_put_back() -> Iterator[None]:
    """Put the functions of `time` back after running a file, which may have replaced them."""
    before = dict(vars(time))
    try:
        yield
    finally:
        vars(time).update(before)


def describe_exception(error: BaseException, path: Path) -> Raised:
    """An exception as evidence, with the last line of the student's file it passed through.

    Of an endless recursion it is the line that it passed through most often, which is the call. Of
    an error that Python raises because a generator raised StopIteration, it is that one's line. A
    similar name is suggested for one that does not exist.
    """
    lines: list[int] = []  # of the student's file
    names: list[str] = []  # that can be used where it was raised, if that is in the student's file
    trace = error.__traceback__
    if type(error) is RuntimeError and type(error.__cause__) is StopIteration:
        trace = error.__cause__.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_filename == str(path):
            lines.append(trace.tb_lineno)
            if trace.tb_next is None:
                names = [*frame.f_locals, *frame.f_globals, *vars(builtins)]
        trace = trace.tb_next
    line = None
    if lines:
        line = lines[-1]
        if isinstance(error, RecursionError):
            [(line, _)] = Counter(lines).most_common(1)
    kind, message = describe_error(error)
    similar = _similar_name(error, names)
    if similar:
        message += f". Did you mean: '{similar}'?"
    return Raised(kind, message, line)


def _similar_name(error: BaseException, names: list[str]) -> str:
    """The one of `names` that is spelt most like a name that does not exist, or "" for none.

    For a missing attribute the names are those of its owner's class or module. Python suggests one
    in a traceback, too.
    """
    if not isinstance(error, AttributeError | NameError) or type(error.name) is not str:
        return ""
    if isinstance(error, AttributeError):
        owner = error.obj
        if type(owner) is types.ModuleType:
            names = list(vars(owner))
        else:
            names = list(type.__dir__(type(owner)))
    public = [name for name in names if type(name) is str and not name.startswith("_")]
    similar = difflib.get_close_matches(error.name, public, 1, 0.75)
    if not similar:
        return ""
    return similar[0]
