"""Patterns in a function's source are found on the right line, in helpers too, in a fixed order."""

from __future__ import annotations

import _thread
import ast
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from gpudojo.grading import source_patterns
from gpudojo.grading.executed_lines import RAN, compile_with_marks, take_executed_lines
from gpudojo.grading.load import load_submission
from gpudojo.grading.source_patterns import MOST_PATTERNS, pattern_lines
from gpudojo.grading.thread_tracing import trace_threads, tracing
from gpudojo.model.exercise import LineRole, Lines, pattern_key, was_executed
from gpudojo.model.exercise import line_to_show as find_line_to_show


def line_to_show(*arguments: Any) -> int | None:
    """The line alone, without what it is."""
    shown = find_line_to_show(*arguments)
    return None if shown is None else shown.line


SOURCE = """
def move(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, (list, tuple)):
        items = []
        for item in batch:
            items.append(move(item, device))
        return items
    if device.type == "cuda":
        batch["device"] = "cuda:1"
    return batch


def told(model):
    return {name: p.device for name, p in walked(model)}


def walked(model):
    def inner():
        return 1
    try:
        return model.named_parameters()
    except AttributeError:
        return (
            model
            .named_buffers()
        )


def step(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.zero_grad()


@cached
def loaded(data, device, size=2):
    device = device.type
    pin = device == "gpu"
    size //= 2
    for p in data:
        p.grad = p.grad / size
    if size < 1:
        raise ValueError(size)
    return Loader(lambda: data, pin_memory=pin, size=size, at=Watch(size))


class Watch:
    def wait(self, size):
        synchronize(size % 2)


def gray(sprites, flags):
    made = torch.zeros(3)
    made += torch.ones(3, device=sprites.device)
    moved = torch.tensor([1]).to(sprites.device)
    red, green = sprites.unbind(1)
    made.add_(red)
    green *= 2
    count = 4
    for flag in flags:
        if flag == made:
            break
    with torch.cuda.amp.autocast():
        made = made / count
    if count == 4:
        return made


def everything(x):
    return CALLS
""".replace("CALLS", " + ".join(f"f{number}(x)" for number in range(2 * MOST_PATTERNS)))


@pytest.fixture(scope="module")
def found() -> dict[str, int]:
    return pattern_lines(ast.parse(SOURCE.lstrip("\n")).body)


@pytest.mark.parametrize(
    ("sign", "line"),
    [
        ("move if Tensor", 3),
        ("move if tuple", 8),
        ("move if type", 10),
        ("move to(", 3),
        ("move for", 6),
        ("move return", 3),
        ("move return 3", 11),
        ("move [] =", 10),
        ('move "cuda"', 10),
        ('move == "cuda"', 9),
        ("move == .type", 9),
        ("move .type", None),
        ("told return", 15),
        ("told named_parameters(", 22),
        ("told named_buffers(", 26),
        ("told except", 23),
        ("walked return 2", 24),
        ("step return", 33),
        ("step zero_grad(", 31),
        ("step zero_grad( 2", 33),
        ("step backward( 2", None),
        ("loaded @", 36),
        ("loaded device =", 38),
        ('loaded == "gpu"', 39),
        ("loaded //", 40),
        ("loaded size =", 40),
        ("loaded data =", None),
        ("loaded .grad", 42),
        ("loaded .grad =", 42),
        ("loaded .grad 2", None),
        ("loaded /", 42),
        ("loaded raise", 44),
        ("loaded lambda", 45),
        ("loaded pin_memory=", 39),
        ("loaded at=", 45),
        ("loaded synchronize(", 50),
        ("loaded %", 50),
        ("gray made on cpu", 54),
        ("gray made on cpu 2", None),
        ("gray in place", 59),
        ("gray in place 2", None),
        ("gray / number", 60),
        ("gray ==", 62),
        ("gray == 2", None),
        ("gray leaves loop", 63),
        ("gray leaves loop 2", None),
        ('gray "cuda"', 64),
        ("gray end", 66),
        ("loaded end", None),
    ],
)
def test_a_sign_and_its_line(found: dict[str, int], sign: str, line: int | None) -> None:
    assert found.get(sign) == line


def test_a_function_has_only_so_many(found: dict[str, int]) -> None:
    own = [key for key in found if key.startswith("everything ")]
    assert len(own) == MOST_PATTERNS
    assert "everything return" in own


def test_what_is_no_function_shows_nothing() -> None:
    assert (
        pattern_lines(ast.parse("DEVICE = 'cuda'\nclass A:\n    def f(self): return 1").body) == {}
    )


def test_a_key_is_no_device_and_a_loop_at_the_end_may_return_nothing() -> None:
    text = """def f(there):
    there = {"cuda": 1, "mps": 0}
    there["cuda"] = 2
    for kind in ("cuda", "mps"):
        if there[kind]:
            return kind
"""
    found = pattern_lines(ast.parse(text).body)
    assert [found.get(sign) for sign in ('f "cuda"', 'f "cuda" 2', 'f "mps"', "f end")] == [
        4,
        None,
        4,
        4,
    ]
    assert line_to_show(["skipped last return"], "f", found, ((1, 5),)) == 5


def test_a_parameter_computed_with_compared_and_returned() -> None:
    text = """def f(start, there):
    size = there
    size = 2 ** start.bit_length()
    if size != there:
        return start
    return size
"""
    found = pattern_lines(ast.parse(text).body)
    assert [found.get(f"f {sign}") for sign in ("from start", "from there", "!=")] == [3, None, 4]
    assert found["f return itself"] == 5
    assert "f return itself 2" not in found


def test_numbers_a_reversed_slice_and_a_result_of_itself_that_is_dropped() -> None:
    text = """def f(x):
    weights = (0.2126, 0.7152, 0.0722)
    scale = 0.5
    mixed = [0.5, 1]
    if x:
        f(x[::-1])
    return x[::2]
"""
    found = pattern_lines(ast.parse(text).body)
    assert (
        found["f numbers 0.213, 0.715, 0.0722"],
        found["f number 0.213"],
        found["f number 0.5"],
    ) == (2, 2, 3)
    assert (found["f [::-1]"], found["f unused itself("]) == (6, 6)
    assert not {"f numbers 0.5", "f [::-1] 2"} & found.keys()


def test_keys_of_a_dict_that_has_a_name() -> None:
    source = (
        "ANSWERS: dict = {\n"
        "    'portable': 'a',\n"
        "    3: 'b', **X,\n"
        "    'no_grad':\n"
        "        'c',\n"
        "}\n"
        "{'a': 1}"
    )
    assert pattern_lines(ast.parse(source).body) == {
        'ANSWERS ["portable"]': 2,
        'ANSWERS ["no_grad"]': 4,
    }


CHOOSING = """
def choose(prefer, device):
    \"\"\"Some text.\"\"\"
    if prefer is None: return 1
    if device == "cuda":
        found = 2
        used = (found,
                found)
    else:
        for found in ():
            used = found
    try:
        used = int(prefer)
        used = used + 1
    except ValueError:
        used = 0
    return helped(used)


def helped(used):
    return used


def never(used):
    return used
""".lstrip("\n")


def ran(*arguments: object) -> Lines:
    names: dict[str, Any] = {}
    exec(compile_with_marks(ast.parse(CHOOSING), "choosing.py"), names)
    take_executed_lines()
    names["choose"](*arguments)
    return take_executed_lines()


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ((None, "cuda"), [1, 2, 3]),
        (("1", "cuda"), [1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 14, 16, 19, 20]),
        (("x", "cpu"), [1, 2, 3, 4, 9, 11, 12, 14, 15, 16, 19, 20]),
    ],
)
def test_a_call_tells_the_lines_that_it_executed(
    arguments: tuple[object, ...], lines: list[int]
) -> None:
    found = ran(*arguments)
    assert [line for line in range(1, 25) if was_executed(line, found)] == lines


def test_an_error_ends_what_was_executed() -> None:
    RAN.add((3, 9))
    RAN.add((12, 20))
    assert take_executed_lines(error_line=5) == ((3, 5), (12, 20))
    assert take_executed_lines() == ()


@pytest.mark.parametrize(
    ("patterns", "arguments", "line"),
    [
        (("return",), (None, "cuda"), 3),
        (("return",), ("1", "cuda"), 16),
        (("for", "int("), ("1", "cuda"), 12),
        (("skipped for",), ("1", "cuda"), 4),
        (("skipped for",), (None, "cuda"), None),
        (("",), ("1", "cpu"), 1),
        (("last int(", "int("), (None, "cpu"), None),
    ],
)
def test_the_line_to_show_was_executed(
    patterns: tuple[str, ...], arguments: tuple[object, ...], line: int | None
) -> None:
    lines = pattern_lines(ast.parse(CHOOSING).body) | {"choose": 1}
    assert line_to_show(patterns, "choose", lines, ran(*arguments)) == line


def test_without_a_record_any_place_is_shown() -> None:
    lines = pattern_lines(ast.parse(CHOOSING).body)
    shown = [
        line_to_show((what,), "choose", lines, None)
        for what in ("for", "return", "last return", "skipped for")
    ]
    assert shown == [9, None, 16, None]


def test_marks_are_not_seen_by_a_debugger_or_in_a_traceback() -> None:
    names: dict[str, Any] = {}
    exec(compile_with_marks(ast.parse(CHOOSING), "choosing.py"), names)
    lines: list[int] = []

    def trace(frame: FrameType, event: str, value: Any) -> Any:
        if event == "line":
            lines.append(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        names["choose"]("x", "cuda")
    finally:
        sys.settrace(before)
    assert lines == [3, 4, 5, 6, 7, 6, 11, 12, 14, 15, 16, 20]
    assert hash(names["choose"].__code__)


ADDED = """
def f(loader, loss_fn):
    total = hits = 0
    for x, y in loader:
        loss = loss_fn(x, y)
        hits += (x == y).sum().item()
        total += loss.item()
        total += other(x) * len(y)
""".lstrip("\n")


@pytest.mark.parametrize(
    ("pattern", "line"), [("f += loss_fn(", 6), ("f += other(", 7), ("f += sum(", None)]
)
def test_where_the_result_of_a_call_is_added(pattern: str, line: int | None) -> None:
    assert pattern_lines(ast.parse(ADDED).body).get(pattern) == line


WITHOUT_EFFECT = """
DEVICE = "cuda"
def f(model, device, flag=True):
    model.eval
    torch.no_grad()
    device = DEVICE
    model.add_(1)
    g(model, flag=True)
    flag / 2
def g(model, device, flag):
    return DEVICE
""".lstrip("\n")


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("f eval not called", 3),
        ("f unused no_grad(", 4),
        ("f unused /", 8),
        ("f device =", 5),
        ("f global device", 5),
        ("f in place", 6),
        ("f without device", 7),
        ("f without flag", None),
        ("f flag=True", 2),
        ("f no return", 2),
        ("g no return", None),
    ],
)
def test_a_statement_without_an_effect_and_a_parameter_not_used(
    pattern: str, line: int | None
) -> None:
    assert pattern_lines(ast.parse(WITHOUT_EFFECT).body).get(pattern) == line


@pytest.mark.parametrize(
    ("text", "has_marks"),
    [
        ("import re\nWORDS = re.compile('x')", True),
        ("import torch\n@torch.compile", False),
        ("from torch import compile\n@compile", False),
        ("def g(model): model.compile()\n", False),
    ],
)
def test_a_file_for_torch_s_compiler_has_no_marks(
    tmp_path: Path, text: str, has_marks: bool
) -> None:
    path = tmp_path / "solution.py"
    path.write_text(f"{text}\ndef f(x):\n    return x\n")
    function = load_submission(path).names["f"]
    code = getattr(function, "_torchdynamo_orig_callable", function).__code__
    assert any(each is RAN for each in code.co_consts) is has_marks


def test_lines_of_all_threads_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner in (_thread, threading):  # to be put back
        for name in [name for name in vars(owner) if name.lstrip("_").startswith("start_")]:
            monkeypatch.setattr(owner, name, getattr(owner, name))
    trace_threads()
    names: dict[str, Any] = {}
    exec(
        compile(
            "def work(times, done):\n    for _ in range(times):\n        pass\n    done()",
            "x.py",
            "exec",
        ),
        names,
    )
    lines: list[int] = []
    tracing.append(lambda frame: lines.append(frame.f_lineno))
    try:
        for start in (
            _thread.start_new_thread,
            lambda work, args: threading.Thread(target=work, args=args).start(),
        ):
            done = threading.Event()
            lines.clear()
            start(names["work"], (30, done.set))
            assert done.wait(10)
            assert lines.count(3) == 30
    finally:
        tracing.clear()


@pytest.mark.parametrize(
    ("used", "is_named"),
    [
        ("model(x)", False),
        ("model.train()", False),
        ("list(model.parameters())", False),
        ("other(model)", True),
        ("model.sum()", True),
    ],
)
def test_a_copy_that_is_dropped_is_none_of_a_module(used: str, is_named: bool) -> None:
    """A module moves in place, also where the function never calls it."""
    source = f"def f(model, x, device):\n    model.to(device)\n    return {used}\n"
    found = pattern_lines(ast.parse(source).body)
    assert (pattern_key("f", "unused moved") in found) is is_named


def test_methods_of_modules_are_those_that_no_tensor_has() -> None:
    for method in source_patterns._METHODS_OF_MODULES:
        assert hasattr(torch.nn.Module, method)
        assert not hasattr(torch.Tensor, method)


STATISTICS = """def f(loader, n):
    try:
        for x, y in loader:
            y = y - 1
            loss = loss_fn(x, y)
            loss = loss + 0.1
            loss.backward()
            best = torch.max(x, 0)
            worst = x.argmax(dim=0)
            first = x[-n:]
            if best <= worst:
                total = {"used": first, "all": n}
            loss -= total
    except (KeyError, RuntimeError):
        pass
    try:
        total += loss
    except Exception:
        raise
"""


@pytest.mark.parametrize(
    ("pattern", "lines"),
    [
        ("item =", [4]),
        ("changed loss_fn(", [6, 13]),
        ("max over 0", [8]),
        ("argmax over 0", [9]),
        ("[-n:]", [10]),
        ("<=", [11]),
        ('"used":', [10, 12]),
        ('"all":', [12]),
        ("except any", [14]),
        ("except", [14, 18]),
    ],
)
def test_what_goes_wrong_in_a_loop_over_batches(pattern: str, lines: list[int]) -> None:
    found = pattern_lines(ast.parse(STATISTICS).body)
    places = [pattern_key("f", each) for each in (pattern, f"{pattern} 2")]
    assert [found[each] for each in places if each in found] == lines


DROPPED = """
def f(x, seen, model):
    x.div(2)
    x.div_(2)
    seen.add(x)
    model.float()
    torch.max(x, 1)[0]
    largest, _ = x.max(1)
    x.max(1).values
    x.topk(1).indices
""".lstrip("\n")


@pytest.mark.parametrize(("pattern", "places"), [("unused result", [2]), ("max values", [6, 7, 8])])
def test_results_that_are_dropped_and_values_taken_for_indices(
    pattern: str, places: list[int]
) -> None:
    found = pattern_lines(ast.parse(DROPPED).body)
    keys = [f"f {pattern}", *(f"f {pattern} {number}" for number in range(2, 9))]
    assert [found[key] for key in keys if key in found] == places


ASKED = """
def f(device, table):
    kind = device.type
    match device.type:
        case "cpu":
            pass
    table.get(device.type)
    table[device.type]
    torch.device(kind)
""".lstrip("\n")


@pytest.mark.parametrize(
    ("pattern", "line"),
    [("f .type", 2), ("f == .type", 3), ("f [] .type", 7), ("f device of type", 8)],
)
def test_what_the_type_of_a_device_is_used_for(pattern: str, line: int) -> None:
    assert pattern_lines(ast.parse(ASKED).body)[pattern] == line


MADE_ELSEWHERE = """
from functools import partial
from torch.utils.checkpoint import checkpoint as again


def number(field):
    if field == "[N/A]":
        return 0
    return int(field)


def read(line, out):
    def mib(field):
        return int(field) if field.isdigit() else -1

    memory = [mib(part) for part in line]
    parts = line.split(",")
    free = found = []
    found.append(1)
    used, total = number(line), max(line)
    gpu = {"used": used, "total": total, "free": memory[0], "name": parts[0], "all": found}
    gpu["spare"] = mib(line)
    return dict(gpu, first=number(line), second=memory)


def load(data, device):
    pin = device == "cuda"
    options = {"shuffle": True}
    if pin:
        options["pin_memory"] = True
    reentrant = True
    run = partial(again, use_reentrant=reentrant)
    other = torch.argmax
    dim = -2
    run(data)
    return other(data, dim), data.max(dim=dim), max(data, 0)


def pick(indices, palette, squares):
    safe = indices.clamp(0, 3)
    turned = palette.flip(0)
    distances = squares[:, 0] + squares[:, 1]
    found = palette[safe], turned[indices], palette.index_select(0, safe), palette[indices + 1]
    return torch.argmin(distances, 1), found, F.embedding(safe, palette)


def train(model, loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        p.grad = None
        p.grad.zero_()
        p.grad *= 0
        p.grad.data[:] = 0.0
        p.grad = p.grad / 2
        p.grad *= 2
        setattr(p, "grad", None)
    torch._foreach_zero_([p.grad for p in model.parameters()])
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("pattern", "lines"),
    [
        # The `return`s of a helper, the assignment, or the line itself where nothing is certain
        ('read "used":', [7, 8, 19, 20]),
        ('read "total":', [19, 20]),
        ('read "free":', [13, 15, 20]),
        ('read "name":', [20]),
        ('read "all":', [20]),
        ('read "spare":', [13, 21]),
        ('read "first":', [7, 8, 22]),
        ('read "second":', [13, 15, 22]),
        ("read value -1", [13]),
        ("number value 0", [7]),
        # Options
        ("load pin_memory=", [29]),
        ("load pin_memory=True", [29]),
        ("load shuffle=True", [27]),
        ("load use_reentrant=True", [30]),
        # Other names
        ("load partial(", [31]),
        ("load checkpoint(", [34]),
        ("load argmax(", [35]),
        ("load argmax over -2", [35]),
        ("load max over -2", [35]),
        ("load max over 0", []),
        ("pick [index]", [39, 40, 42, 43]),
        ("pick argmin of", [41, 43]),
        ("train zeroed gradients", [47, 50, 51, 52, 53, 56, 57]),
    ],
)
def test_where_values_are_made_and_what_names_stand_for(pattern: str, lines: list[int]) -> None:
    found = pattern_lines(ast.parse(MADE_ELSEWHERE.lstrip("\n")).body)
    keys = [pattern, *(f"{pattern} {number}" for number in range(2, 9))]
    assert sorted(found[key] for key in keys if key in found) == lines


def test_of_the_places_between_two_lines_the_first_is_shown() -> None:
    found = pattern_lines(ast.parse(MADE_ELSEWHERE.lstrip("\n")).body)
    everything = ((1, 99),)
    pattern = "between 48 and 58 zeroed gradients"
    assert line_to_show([pattern], "train", found, everything) == 50
    assert line_to_show(["between 57 and 58 zeroed gradients"], "train", found, everything) is None


def test_a_condition_that_is_a_variable_is_shown_where_it_was_decided() -> None:
    found = pattern_lines(ast.parse(MADE_ELSEWHERE.lstrip("\n")).body)
    shown = find_line_to_show(["skipped pin_memory=True"], "load", found, ((25, 28), (30, 35)))
    assert shown == (26, LineRole.CONDITION)
