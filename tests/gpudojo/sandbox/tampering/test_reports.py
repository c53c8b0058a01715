"""What could lead to the grader is reported once, with its line; honest code is not reported."""

from __future__ import annotations

import os
import re

import pytest
from gpudojo.grading import sources
from gpudojo.sandbox.tampering.reports import EVENTS, MOST_REPORTS, _findings_in

from tests.exploits.hostile_class import HERE as EXPLOITS
from tests.gpudojo.sandbox.tampering.watched import HERE, run_watched
from tests.sharing import once

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="each snippet runs in a fork")
DAY8 = EXPLOITS.parents[1] / "tests" / "day8"

# The text that is run, and what is reported of its last line, or of the one with `# here`.
REPORTED = {
    # By the function that asks.
    "living objects by a module of its own": (
        "import sys\ndel sys.modules['gc']\nimport gc\ngc.get_objects()",
        EVENTS["gc.get_objects"],
    ),
    "referrers by map": (
        "import gc\nlist(map(gc.get_referrers, [gc]))",
        EVENTS["gc.get_referrers"],
    ),
    "referrers asked for twice": (
        "import gc\ngc.get_referrers(gc)  # here\ngc.get_referrers(sum)",
        EVENTS["gc.get_referrers"],
    ),
    "referrers at the end of the stack": (
        "import gc\n"
        "def f():\n"
        "    try: f()\n"
        "    except RecursionError: gc.get_referrers(gc)  # here\n"
        "f()",
        EVENTS["gc.get_referrers"],
    ),
    "referrers": ("import gc\ngc.get_referrers(gc)", EVENTS["gc.get_referrers"]),
    "referents": ("import gc\ngc.get_referents(gc)", EVENTS["gc.get_referents"]),
    "stacks of threads": ("import sys\nsys._current_frames()", EVENTS["sys._current_frames"]),
    "audit hook": ("import sys\nsys.addaudithook(lambda *a: None)", EVENTS["sys.addaudithook"]),
    "memory by its address": (
        "import ctypes\nctypes.c_long.from_address(id(1))",
        EVENTS["ctypes.cdata"],
    ),
    "memory as a text": ("import ctypes\nctypes.string_at(id(1), 8)", EVENTS["ctypes.string_at"]),
    "function of Python's own library": (
        "import ctypes\nctypes.pythonapi.PyList_New",
        EVENTS["ctypes.dlsym"],
    ),
    "another Python": (
        "import importlib, sys\n"
        "name = '_interpreters' if sys.version_info >= (3, 13) else '_xxsubinterpreters'\n"
        "importlib.import_module(name).create()",
        EVENTS["cpython.PyInterpreterState_New"],
    ),
    "code from bytes": ("import marshal\nmarshal.loads(marshal.dumps(1))", EVENTS["marshal.loads"]),
    # By the name that code gets.
    "name of a library's file": (
        "import os\ncompile('1', os.__file__, 'exec')",
        "compiled code under the name of a library's file",
    ),
    "name of a frozen module": (
        "compile('1', '<frozen os>', 'exec')",
        "compiled code under the name of a library's file",
    ),
    "name of a class of its own": (
        "class N(str): pass\ncompile('1', N('x'), 'exec')",
        "compiled code under the name of a library's file",
    ),
    "code object by hand": (
        "import os\ndef f(): pass\nf.__code__.replace(co_filename=os.__file__)",
        "compiled code under the name of a library's file",
    ),
    # By the module.
    "greenlets": ("import greenlet", "imported greenlet"),
    "greenlets by importlib": (
        "import importlib\nimportlib.import_module('gree' + 'nlet')",
        "imported greenlet._greenlet",
    ),
    "module of ours": (
        "import gpudojo.grading.call",
        "names `gpudojo.grading.call`, which leads to the grader's own modules",
    ),
    "module of ours among the loaded ones": (
        "import sys\nsys.modules['virtual_cuda.recorder']",
        "names `virtual_cuda.recorder`, which leads to the grader's own modules",
    ),
    # By a name in the text.
    "variables of a function": (
        "import textwrap\ntextwrap.dedent.__globals__",
        "names `__globals__`, which leads to the variables of a function",
    ),
    "variables of a function by name": (
        "import textwrap\ngetattr(textwrap.dedent, '__closure__')",
        "names `__closure__`, which leads to the variables of a function",
    ),
    "inside of a tensor": (
        "def f(tensor):\n    return tensor._virtual_inner  # here",
        "names `_virtual_inner`, which leads to the inside of a tensor on the virtual device",
    ),
    "what counts the lines of a frame": (
        "import sys\nsys._getframe().f_trace  # here",
        "names `f_trace`, which leads to the count of executed lines",
    ),
    # By what a probe raises.
    "what a probe has recorded": (
        "import sys\n"
        "m = sys.modules['gpudojo.' + 'grading.watching'.lower()]\n"
        "m.state_of(m.keep_state([1]))",
        "asked for what a probe has recorded",
    ),
    "what a probe has recorded, by the way of its objects": (
        "import sys\n"
        "m = sys.modules['gpudojo.' + 'grading.watching'.lower()]\n"
        "m.call_state(m.keep_state([1]), '__len__')",
        "asked for what a probe has recorded",
    ),
    "hook of a probe": (
        "import sys\n"
        "m = sys.modules['gpudojo.' + 'grading.watching'.lower()]\n"
        "try: m.call_state_for_hook(1, 'x')  # here\n"
        "except KeyError: pass",
        "called a hook by which a probe records, which only torch should call",
    ),
    # By the stack.
    "frame of the grader": (
        "import sys\n"
        "from gpudojo.grading.student_code import call_student\n"
        "call_student(lambda: sys._getframe())",
        "asked for a frame of the grader's call stack",
    ),
    "frame of an exception of the grader's": (
        "from gpudojo.grading.student_code import call_student\n"
        "def f():\n"
        "    try: 1 / 0\n"
        "    except ZeroDivisionError as error: error.__traceback__.tb_frame  # here\n"
        "call_student(f)",
        "asked for a frame of the grader's call stack",
    ),
}
# Lines that are not the student's file's, or that nobody knows.
ELSEWHERE = {
    "executed text": (
        "exec('import gc\\ngc.get_referrers(gc)')",
        "reported <string>:2 asked Python what refers to an object (gc.get_referrers)",
    ),
    "names in an executed text": (
        "import textwrap\nexec('import textwrap\\ntextwrap.dedent.__glo' + 'bals__')",
        "reported <string>:2 names `__globals__`, which leads to the variables of a function",
    ),
    # By a library, in a thread where no code of the student's runs.
    "what a probe has recorded, by a pool": (
        "import sys\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "m = sys.modules['gpudojo.' + 'grading.watching'.lower()]\n"
        "with ThreadPoolExecutor(1) as pool:\n"
        "    pool.submit(m.state_of, m.keep_state([1])).result()",
        "reported :None asked for what a probe has recorded, by `concurrent.futures.thread`",
    ),
}
# Other code for a function.
OURS = "from gpudojo.model.exercise import with_article as f\n"
CODES = {
    "code of ours": (
        OURS + "def solve():\n    f.__code__ = (lambda name: 'b').__code__",
        "forged student.py:3 replaced the code of gpudojo.model.exercise.with_article",
        "from gpudojo.model.exercise import with_article as f\nassert f('apple') == 'an apple'",
    ),
    "code of ours by a file": (
        OURS + "f.__code__ = (lambda name: 'b').__code__",
        "forged student.py:2 replaced the code of gpudojo.model.exercise.with_article",
        "from gpudojo.model.exercise import with_article as f\nassert f('apple') == 'an apple'",
    ),
    "defaults of ours": (
        OURS + "def solve():\n    f.__defaults__ = (1,)",
        "forged student.py:3 replaced the code of gpudojo.model.exercise.with_article",
        "from gpudojo.model.exercise import with_article as f\nassert f.__defaults__ is None",
    ),
    "code of ours after many reports": (
        "import gc, sys\n"
        + OURS
        + "for n in range(9): exec(f'import os\\ndef g{n}(x): return os.walk.__globals__')\n"
        + "\n".join(
            f"import {name}"
            for name in (
                "gpudojo.grading.call",
                "gpudojo.grading.load",
                "gpudojo.grading.observe",
                "gpudojo.grading.sources",
                "gpudojo.model.errors",
                "gpudojo.model.evidence",
                "gpudojo.model.catalogue",
                "gpudojo.sandbox.protocol",
                "gpudojo.sandbox.tampering.watch",
            )
        )
        + "\nf.__code__ = (lambda name: 'b').__code__  # here",
        "forged student.py:13 replaced the code of gpudojo.model.exercise.with_article",
        "",
    ),
    "code of torch": (
        "import torch\ndef solve():\n    torch.is_tensor.__code__ = (lambda obj: True).__code__",
        "could not be measured student.py:3 replaced the code of torch.is_tensor",
        "import torch\nassert not torch.is_tensor(1)",
    ),
}
HONEST = dict(
    re.findall(r"^### (.+)\n((?:(?!###).*\n)+)", (HERE / "honest_snippets.txt").read_text(), re.M)
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    snippets = {name: (text, "") for name, (text, _) in (REPORTED | ELSEWHERE).items()}
    snippets |= {name: (text, after) for name, (text, _, after) in CODES.items()}
    snippets |= {f"honest: {name}": (text, "") for name, text in HONEST.items()}
    return once(tmp_path_factory, "reports", lambda folder: run_watched(snippets))


@pytest.mark.parametrize("name", REPORTED)
def test_it_is_reported_once_with_its_line(found: dict[str, list[str]], name: str) -> None:
    text, what = REPORTED[name]
    lines = text.splitlines()
    line = next((n for n, each in enumerate(lines, 1) if "# here" in each), len(lines))
    assert found[name].count(f"reported student.py:{line} {what}") == 1, found[name]
    assert sum(each.endswith(what) for each in found[name]) == 1
    assert not any(each.startswith("raised") for each in found[name])


@pytest.mark.parametrize("name", ELSEWHERE)
def test_it_is_reported_also_without_a_line_of_the_file(
    found: dict[str, list[str]], name: str
) -> None:
    assert ELSEWHERE[name][1] in found[name]


@pytest.mark.parametrize("name", CODES)
def test_other_code_for_a_function_that_is_not_the_students(
    found: dict[str, list[str]], name: str
) -> None:
    assert CODES[name][1] in found[name]
    assert not any(each.startswith("raised") for each in found[name])  # it was put back


def test_there_are_not_too_many_reports(found: dict[str, list[str]]) -> None:
    lines = found["code of ours after many reports"]
    assert sum(each.startswith("reported ") for each in lines) == MOST_REPORTS


@pytest.mark.parametrize("name", HONEST)
def test_honest_code_is_not_reported(found: dict[str, list[str]], name: str) -> None:
    assert found[f"honest: {name}"] == []


@pytest.mark.parametrize("folder", ["right", "wrong"])
def test_no_kept_solution_names_what_leads_to_the_grader(folder: str) -> None:
    told = {}
    paths = sorted((DAY8 / folder).rglob("*.py"))
    for path in paths:
        try:
            text = sources.decode_source(path.read_bytes())
            code = compile(text, str(path), "exec", dont_inherit=True)
        except (SyntaxError, ValueError, sources.Unparsable):
            continue
        findings = list(_findings_in(code))
        if findings:
            told[path.name] = findings
    assert len(paths) > 100
    assert told == {}
