"""Runs a script on the virtual CUDA device, and shows what each line did there.

The command is `python -m virtual_cuda FILE`.
"""

from __future__ import annotations

import argparse
import atexit
import builtins
import functools
import html
import importlib.machinery
import importlib.util
import io
import os
import shutil
import sys
import textwrap
import types
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from multiprocessing import spawn
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Any, Final

import msgspec

from virtual_cuda.clock.advice import compare_with_cpu, what_limits
from virtual_cuda.clock.gpu_models import USUAL_GPU, gpu_named, gpus
from virtual_cuda.clock.lanes import Times, times_of
from virtual_cuda.clock.to_scale import lanes_to_scale, modelled_trace
from virtual_cuda.errors import NoSuchDevice, VirtualCudaError
from virtual_cuda.ledger import (
    Ledger,
    draw_table,
    draw_timeline,
    file_rows,
    plain_lines,
    questions,
    timeline_of,
)
from virtual_cuda.ledger.line_table import LineRow, Spent, columns_of, totals
from virtual_cuda.ledger.texts import duration, with_similar_signs
from virtual_cuda.patching import around, patch
from virtual_cuda.sizes import format_size, parse_size

if TYPE_CHECKING:
    from virtual_cuda.device_kinds import DeviceKind

PACKAGE: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
DESCRIPTION: Final = """\
Run a script on a virtual GPU: torch.cuda is available, on any machine. Then show for each line its
modelled time on a GPU, what it copied, how often the CPU waited for the GPU, and what was
allocated. Output and exit status are the script's own; the table goes to stderr. Options come
before FILE; what follows FILE goes to the script."""
USAGE: Final = "\n       ".join(
    f"%(prog)s [options] {what} [ARGS ...]" for what in ("FILE", "-m MODULE", "-c CODE")
)


def run_script(arguments: Sequence[str] | None = None, prog: str = "python -m virtual_cuda") -> int:
    """Run the script that the arguments name, as `python` would; returns its exit status.

    The device stays open until the process ends, and the table is printed then. SystemExit and
    KeyboardInterrupt of the script are raised; other exceptions are printed by `sys.excepthook`,
    without frames of this package. Exits with a message where the device cannot be opened.
    """
    options = _parse_options(arguments, prog)
    # Not at the top: it imports torch, and `--help` does without.
    from virtual_cuda.devices import (
        open_device,
    )
    from virtual_cuda.recorder import nothing_above

    nothing_above(__file__)
    # About the CPU that computes for the device: sixty lines, the first time that bfloat16 is
    # multiplied on some.
    warnings.filterwarnings("ignore", "mkldnn_matmul failed")
    # Open the device.
    device = ExitStack()
    try:
        opened = device.enter_context(
            open_device(_kind_to_open(options.real), options.gpus, options.memory, options.gpu)
        )
    except NoSuchDevice as error:
        sys.exit(
            f"{prog}: --real: {error.missing}; without --real the script runs on a virtual GPU"
        )
    except VirtualCudaError as error:
        sys.exit(f"{prog}: {error}")
    ranks = os.environ.get("WORLD_SIZE", "1")
    on = (
        "the real GPU"
        if options.real
        else "the virtual GPU"
        if ranks == "1"
        else f"the virtual GPU of rank 0 of {ranks}"
    )
    run = _Run(options, opened.ledger, device, on)
    # Have processes that the script starts open it, too.
    if not options.real:
        first = functools.partial(
            _opening_first, _Opening(options.gpus, options.memory, options.gpu)
        )
        patch(
            [
                around(spawn, "get_preparation_data", first),
                around(Popen, "__init__", run.start_child),
            ],
            device,
        )
    atexit.register(run.finish)  # registered first, so it is called last: after the script's own
    try:
        code = run.load(prog)
        exec(code, sys.modules["__main__"].__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        run.failure = error
        _remove_own_frames(error)
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):  # Python ends itself with SIGINT then
            sys.excepthook = lambda *_: None
            raise
        return 1
    return 0


def _parse_options(arguments: Sequence[str] | None, prog: str) -> argparse.Namespace:
    """The options of the command line, checked.

    Exits with status 2 and a message where an option is wrong or there is no script to run.
    """
    parser = argparse.ArgumentParser(prog, USAGE, DESCRIPTION, allow_abbrev=False)
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    parser.add_argument(
        "--gpus",
        type=int,
        default=ranks,
        metavar="N",
        help="number of virtual GPUs (default: one per rank)",
    )
    parser.add_argument(
        "--gpu",
        metavar="NAME",
        help=f"the GPU to be, and whose times to model: {', '.join(gpus())} (times: {USUAL_GPU})",
    )
    parser.add_argument(
        "--compare",
        choices=["cpu"],
        help="also say how long a CPU would take, and when it is as fast",
    )
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        help="memory of each, as 512MiB (default: 8GiB, or that of --gpu)",
    )
    parser.add_argument(
        "--real", action="store_true", help="use this machine's own GPU, and record the same"
    )
    parser.add_argument(
        "--timeline", action="store_true", help="draw copies, waits and memory in their order"
    )
    parser.add_argument(
        "--trace", type=Path, metavar="TO", help="write a trace that ui.perfetto.dev opens"
    )
    parser.add_argument(
        "--html",
        type=Path,
        metavar="TO",
        help="write a page: the script's lines with what each did",
    )
    # For processes that the script starts.
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="run a module instead"
    )
    parser.add_argument(
        "-c", dest="code", nargs=argparse.REMAINDER, metavar="CODE", help="run code instead"
    )
    parser.add_argument(
        "script", nargs=argparse.REMAINDER, metavar="FILE", help="the script, and its arguments"
    )
    # Wrong options are refused before torch is imported.
    options = parser.parse_args(arguments)
    try:
        options.memory = None if options.memory is None else parse_size(options.memory)
    except VirtualCudaError as error:
        parser.error(f"--memory: {error}")
    try:
        options.gpu = None if options.gpu is None else gpu_named(options.gpu).name
    except VirtualCudaError as error:
        parser.error(f"--gpu: {error}")
    for target in filter(None, (options.trace, options.html)):
        if not os.access(target.absolute().parent, os.W_OK) or target.is_dir():
            parser.error(f"cannot write {target}: its folder is missing or may not be written to")
    for letter, words in (("-m: name a module", options.module), ("-c: give code", options.code)):
        if words is not None:
            if not words:
                parser.error(letter)
            return options
    if not options.script:
        parser.error("name a script")
    file = Path(options.script[0])
    if file.suffix == ".ipynb":
        parser.error(f"{file} is a notebook, not a script")
    if not file.is_file():
        parser.error(f"{file} is a folder" if file.is_dir() else f"there is no file {file}")
    return options


def _kind_to_open(real: bool) -> DeviceKind:
    """The kind of device to open: with `--real`, CUDA or else a Mac's MPS."""
    if not real:
        return "virtual"
    from virtual_cuda.real import device_count

    return "cuda" if device_count("cuda") or not device_count("mps") else "mps"


class _Opening:
    """What a process of `multiprocessing` unpickles before it imports the script.

    To unpickle it opens the device there.
    """

    def __init__(self, gpus: int, memory: int | None, gpu: str | None) -> None:
        self._asked = gpus, memory, gpu

    def __reduce__(self) -> tuple[Any, tuple[int, int | None, str | None]]:
        from virtual_cuda.devices import open_in_child

        return open_in_child, self._asked


def _opening_first(opening: _Opening, original: Any, name: str) -> dict[str, Any]:
    """The data for a new process, with what opens the device in front.

    Used for spawned processes and those of a fork server. What they do there is not recorded.
    """
    return {"virtual_cuda": opening, **original(name)}


_WITH_VALUE: Final = ("-W", "-X")  # options of Python that are two words


def _on_device(command: Any, folder: Any, options: list[str]) -> Any:
    """The command that does what `command` does with the device open.

    Only a command that runs this Python on a script, a module or code is changed; any other one is
    returned as it is.
    """
    if isinstance(command, (str, bytes, os.PathLike)):
        return command
    words = [os.fspath(word) for word in command]
    if not words or words[0] != sys.executable:
        return command
    place = 1
    while (
        place < len(words)
        and words[place].startswith("-")
        and words[place] not in ("-m", "-c", "-")
    ):
        place += 2 if words[place] in _WITH_VALUE else 1
    target = words[place : place + 2]
    known = target[:1] in (["-m"], ["-c"]) or (
        target and os.path.isfile(os.path.join(folder or "", target[0]))
    )
    if not known or target == ["-m", "virtual_cuda"]:
        return command
    return [*words[:place], "-m", "virtual_cuda", *options, *words[place:]]


def _remove_own_frames(error: BaseException, seen: set[int] | None = None) -> None:
    """Remove the frames of this package from the tracebacks of an exception.

    Those of the exceptions that led to it are changed, too.
    """
    seen = set() if seen is None else seen
    if id(error) in seen:
        return
    seen.add(id(error))
    kept = []
    step = error.__traceback__
    while step is not None:
        if not step.tb_frame.f_code.co_filename.startswith(PACKAGE):
            kept.append(step)
        step = step.tb_next
    made: types.TracebackType | None = None
    for step in reversed(kept):
        made = types.TracebackType(made, step.tb_frame, step.tb_lasti, step.tb_lineno)
    error.__traceback__ = made
    group = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    for other in (error.__cause__, error.__context__, *group):
        if other is not None:
            _remove_own_frames(other, seen)


class _Run:
    """One script, from its start to the table at the end."""

    def __init__(
        self, options: argparse.Namespace, ledger: Ledger, device: ExitStack, on: str
    ) -> None:
        """Note what is run.

        `device` closes the device, and `on` is what the table calls it. One process of several
        ranks reports.
        """
        self.options = options
        self.ledger = ledger
        self.device = device
        self.on = on
        self.process = os.getpid()
        self.name = ""
        self.file = ""
        self.failure: BaseException | None = None
        self.times: Times | None = None  # modelled
        rank = os.environ.get("RANK", os.environ.get("LOCAL_RANK"))
        # Of several ranks, only the first one reports.
        self.reports = not options.child if rank is None else rank == "0"
        self.has_children = False

    @property
    def spent(self) -> Spent | None:
        """Modelled seconds of host and GPU, by the index of the record."""
        return None if self.times is None else self.times.by_record(self.ledger)

    def start_child(self, original: Any, popen: Any, args: Any, *rest: Any, **kwargs: Any) -> None:
        """Call `Popen.__init__`, with the device opened in the child if that runs Python.

        Launchers start the ranks of a distributed program so.
        """
        options = self.options
        passed = [
            "--child",
            "--gpus",
            str(options.gpus),
            *(["--timeline"] if options.timeline else []),
        ]
        for name in ("memory", "gpu", "trace", "html"):
            if getattr(options, name) is not None:
                passed += [f"--{name}", str(getattr(options, name))]
        command = _on_device(args, kwargs.get("cwd"), passed)
        self.has_children = self.has_children or command is not args
        original(popen, command, *rest, **kwargs)

    def load(self, prog: str) -> types.CodeType:
        """The code to run: a script's, a module's, or what was given with `-c`.

        From here on `__main__`, `sys.argv` and `sys.path` are as `python FILE` makes them. Exits
        with a message where there is no such module. What reading or compiling the file raises is
        raised.
        """
        from virtual_cuda.recorder import student_file

        main = types.ModuleType("__main__")
        # `-m MODULE`
        if self.options.module is not None:
            name, *arguments = self.options.module
            sys.path[0] = os.getcwd()
            try:
                spec = importlib.util.find_spec(name)
                if spec is not None and spec.submodule_search_locations is not None:
                    spec = importlib.util.find_spec(f"{name}.__main__")
            except ModuleNotFoundError:
                spec = None
            loader: Any = None if spec is None else spec.loader
            code = (
                loader.get_code(spec.name)
                if spec is not None and hasattr(loader, "get_code")
                else None
            )
            if spec is None or code is None:
                sys.exit(f"{prog}: there is no module {name} to run")
            self.name, self.file = name, spec.origin or name
            main.__package__, main.__spec__, main.__loader__ = spec.parent, spec, spec.loader
            main.__dict__["__cached__"] = spec.cached
            sys.argv = [self.file, *arguments]
        # `-c CODE`
        elif self.options.code is not None:
            text, *arguments = self.options.code
            self.name = "-c"
            self.file = "<string>"
            sys.argv = ["-c", *arguments]
            sys.path[0] = ""
            student_file[self.file] = True
            sys.modules["__main__"] = main
            return compile(text, self.file, "exec", dont_inherit=True)
        else:
            # A file.
            given, *arguments = self.options.script
            self.name, self.file = given, os.path.abspath(given)
            sys.argv = [given, *arguments]
            if not sys.flags.safe_path:
                sys.path[0] = os.path.dirname(os.path.realpath(given))
            main.__loader__ = importlib.machinery.SourceFileLoader("__main__", self.file)
            main.__dict__["__cached__"] = None
            with io.open_code(self.file) as file:
                code = compile(file.read(), self.file, "exec", dont_inherit=True)
        # A module or a file: `-c` has returned.
        main.__file__ = self.file
        main.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = main
        student_file[self.file] = True  # also one that lies among the libraries
        return code

    def finish(self) -> None:
        """Close the device, and print what was recorded to stderr.

        Writes the trace and the page that were asked for. Does nothing in a forked process, or
        where no script was loaded.
        """
        if os.getpid() != self.process or not self.file:
            return
        self.device.close()
        if not self.reports or (self.has_children and not self.ledger.rows):
            return
        # stdout may be closed by the script, or be a pipe that nobody reads.
        with suppress(OSError, ValueError, AttributeError):
            sys.stdout.flush()
        if not self.options.real and self.ledger.rows:
            self.times = times_of(self.ledger, gpu_named(self.options.gpu or USUAL_GPU))
        # The table, and the files that were asked for.
        lines = list(self.report_lines())
        for target, write in (
            (self.options.trace, self.write_trace),
            (self.options.html, self.write_page),
        ):
            if target is not None:
                try:
                    write(target)
                    advice = "; ui.perfetto.dev opens it" if target is self.options.trace else ""
                    lines.append(f"wrote {target}{advice}")
                except OSError as error:
                    lines.append(f"cannot write {target}: {error.strerror or error}")
        # stderr may be closed, or know few signs.
        with suppress(OSError, ValueError, AttributeError):
            text = "\n".join(["", *lines, ""])
            coding = sys.stderr.encoding or "utf-8"
            sys.stderr.write(with_similar_signs(text, coding))
            sys.stderr.flush()

    def rows_by_file(self) -> dict[str, list[LineRow]]:
        """The rows of the lines that did something, by file, the script first."""
        found = file_rows(self.ledger.records, self.spent)
        return dict(sorted(found.items(), key=lambda item: item[0] != self.file))

    def report_lines(self) -> Any:
        """The lines to print: the table, sentences about it, and how the script ended."""
        width = terminal_width()
        records = self.ledger.records
        tables = self.rows_by_file()
        if not tables:
            yield f"{self.name} did nothing on {self.on}."
        else:
            spent = self.spent
            modelled = (
                f", and how long it would take on {self.times.gpu} (modelled)" if self.times else ""
            )
            yield f"What each line did on {self.on}{modelled}:"
            short = {_short_path(file): rows for file, rows in tables.items()}
            sums = totals(records, spent)
            yield from draw_table(short, sums, width, columns_of(spent))
            for (file, line), count in list(
                questions.hot_lines(questions.waits(records), at_least=3).items()
            )[:5]:
                yield f"{_short_path(file)}:{line} made the CPU wait for the GPU {count:,} times."
            for sentence in self.sentences_on_times():
                yield from textwrap.wrap(sentence, width, break_on_hyphens=False)
        # At the end: what ranks exchanged, the timeline, and the error.
        if every := questions.collectives(records):
            sent = sum(each.bytes for each in every)
            waited = sum(each.seconds or 0 for each in every)
            said = f"{len(every):,} collective{'s' * (len(every) > 1)}"
            yield f"{said} of {format_size(sent)}, complete after {waited:.2f} s in all."
        if self.options.timeline and records:
            yield ""
            yield from self.draw_whole_timeline(width)
        if self.failure is not None:
            said = str(self.failure).partition("\n")[0]
            kind = type(self.failure).__name__
            yield f"{self.name} ended with {kind}{': ' * bool(said)}{said} (the traceback is above)"

    def sentences_on_times(self) -> Any:
        """Sentences on the modelled times."""
        if self.times is not None and self.times.end:
            took = duration(round(self.times.end * 1e9))
            idle = self.times.idle_share
            yield f"Modelled on {self.times.gpu}: {took}, GPU idle {idle:.0%} of the time."
            yield what_limits(self.times)
            if self.options.compare:
                yield from compare_with_cpu(self.ledger.rows, self.times, gpu_named(self.times.gpu))

    def draw_whole_timeline(self, width: int) -> list[str]:
        """The timeline of the whole run, as text."""
        source: list[str] = []
        with suppress(OSError):
            source = Path(self.file).read_text(encoding="utf-8", errors="replace").splitlines()
        peak = max(self.ledger.peaks.values(), default=0)
        lanes = None if self.times is None else lanes_to_scale(self.times)
        made = timeline_of(
            self.ledger.records, self.name, "", self.file, "", source, peak, scaled=lanes
        )
        return plain_lines(draw_timeline(made, width))

    def write_trace(self, target: Path) -> None:
        """Write a trace: to scale, with host and streams, where times are modelled."""
        if self.times is None:
            self.ledger.save_trace(target)
        else:
            target.write_bytes(msgspec.json.encode(modelled_trace(self.ledger, self.times)))

    def write_page(self, target: Path) -> None:
        """Write a page: every line of the files that used the device, with what it did."""
        escape = html.escape
        body = []
        spent = self.spent
        columns = columns_of(spent)
        for file, rows in self.rows_by_file().items():
            heads = "".join(f"<th>{heading}</th>" for heading in columns)
            body.append(
                f"<h2>{escape(_short_path(file))}</h2><table><tr><th></th><th></th>{heads}</tr>"
            )
            for row in _every_line(file, rows, len(columns)):
                cells = "".join(f"<td>{escape(cell)}</td>" for cell in row.cells)
                kind = ' class="used"' if any(row.cells) else ""
                body.append(
                    f"<tr{kind}><th>{row.number}</th><td><code>{escape(row.code)}</code></td>{cells}</tr>"
                )
            body.append("</table>")
        pairs = zip(columns, totals(self.ledger.records, spent), strict=True)
        sums = ", ".join(f"{heading} {cell}" for heading, cell in pairs if cell)
        drawn = escape("\n".join(self.draw_whole_timeline(120)))
        title = f"What {escape(self.name)} did on {self.on}"
        told = escape(" ".join(self.sentences_on_times()))
        text = PAGE.format(
            title=title, sums=escape(sums), told=told, drawn=drawn, body="\n".join(body)
        )
        target.write_text(text, encoding="utf-8")


PAGE: Final = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>{title}</title>
<style>
:root{{color-scheme:light dark}}
body{{font:15px system-ui,sans-serif;margin:2em auto;max-width:75em;padding:0 1em}}
table{{border-collapse:collapse;font-size:13px}}
td,th{{padding:.1em .6em;text-align:right;white-space:nowrap}}
td:nth-child(2){{text-align:left;white-space:pre}} tr:not(.used) td,tr>th:first-child{{opacity:.6}}
tr.used{{background:color-mix(in srgb,orange 15%,transparent)}} pre,.wide{{overflow-x:auto}}
</style></head><body><h1>{title}</h1>
<p>In all: {sums}.</p>
<p>{told}</p>
<pre>{drawn}</pre>
<div class="wide">
{body}
</div></body></html>
"""


def _every_line(file: str, rows: list[LineRow], columns: int) -> list[LineRow]:
    """The rows of all lines of a file, also of those that did nothing.

    Only the given rows where the file cannot be read.
    """
    known = {row.number: row for row in rows}
    try:
        source = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return rows
    return [
        known.get(number) or LineRow(number, text, ("",) * columns)
        for number, text in enumerate(source, 1)
    ]


def _short_path(file: str) -> str:
    """The path from the current folder, where that is shorter."""
    with suppress(ValueError):  # another drive
        return min(file, os.path.relpath(file), key=len)
    return file


def terminal_width() -> int:
    """The columns of the terminal that the table goes to; 100 where it goes elsewhere."""
    if "COLUMNS" not in os.environ:
        with suppress(OSError, ValueError, AttributeError):
            return os.get_terminal_size(sys.stderr.fileno()).columns
    return shutil.get_terminal_size((100, 24)).columns


if __name__ == "__main__":
    sys.exit(run_script())
