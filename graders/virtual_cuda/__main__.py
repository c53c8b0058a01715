"""Runs a script on the virtual CUDA device, and shows what each line did there.

The command is `python -m virtual_cuda FILE`.
"""

from __future__ import annotations

import argparse
import atexit
import os
import shutil
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from multiprocessing import spawn
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Any, Final

from virtual_cuda.clock.gpu_models import USUAL_GPU, gpu_named, gpus
from virtual_cuda.clock.lanes import times_of
from virtual_cuda.errors import NoSuchDevice, VirtualCudaError
from virtual_cuda.ledger import Ledger
from virtual_cuda.ledger.texts import with_similar_signs
from virtual_cuda.patching import around, patch
from virtual_cuda.script_code import TEXT_FILE, load_file, load_module, load_text
from virtual_cuda.script_report import ScriptReport
from virtual_cuda.single_options import SingleOptionsParser
from virtual_cuda.sizes import parse_size

if TYPE_CHECKING:
    from virtual_cuda.device_kinds import DeviceKind

PACKAGE: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
DESCRIPTION: Final = """\
Run a script on a virtual GPU: torch.cuda is available, on any machine. Then show for each line its
modelled time on a GPU, what it copied, how often the CPU waited for the GPU, and what was
allocated. Output and exit status are the script's own; the table goes to stderr. Options come
before FILE; what follows FILE goes to the script."""
# Of the command line, before FILE.
OPTIONS: Final = (
    "--gpus",
    "--gpu",
    "--compare",
    "--memory",
    "--real",
    "--timeline",
    "--trace",
    "--html",
)
USAGE: Final = "\n       ".join(
    f"%(prog)s [options] {what} [ARGS ...]" for what in ("FILE", "-m MODULE", "-c CODE")
)


def run_script(arguments: Sequence[str] | None = None, prog: str = "python -m virtual_cuda") -> int:
    """Run the script that the arguments name, as `python` would; returns its exit status.

    Processes of Python that the script starts open the device, too, unless it is a real one. The
    device stays open until the process ends, and the table is printed then. SystemExit and
    KeyboardInterrupt of the script are raised; other exceptions are printed by `sys.excepthook`,
    without frames of this package. Exits with a message where the device cannot be opened.
    """
    options = _parse_options(arguments, prog)
    # Not at the top: it imports torch, and `--help` does without.
    from virtual_cuda.devices import open_device
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
    run = _Run(options, opened.ledger, device, _name_of_device(options.real))
    # Have processes that the script starts open it, too.
    if not options.real:
        opening = _Opening(options.gpus, options.memory, options.gpu)
        patches = [
            around(spawn, "get_preparation_data", partial(_opening_first, opening)),
            around(Popen, "__init__", run.start_child),
        ]
        patch(patches, device)
    atexit.register(run.finish)  # registered first, so it is called last: after the script's own
    try:
        code = run.load(prog)
        exec(code, sys.modules["__main__"].__dict__)
    except SystemExit:
        raise
    except BaseException as error:  # whatever ends the script: it is shown as Python shows it
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
    parser = SingleOptionsParser(prog, USAGE, DESCRIPTION, allow_abbrev=False)
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
        if options.memory is not None:
            options.memory = parse_size(options.memory)
    except VirtualCudaError as error:
        parser.error(f"--memory: {error}")
    try:
        if options.gpu is not None:
            options.gpu = gpu_named(options.gpu).name
    except VirtualCudaError as error:
        parser.error(f"--gpu: {error}")
    for target in (options.trace, options.html):
        if target is not None and not _can_be_written(target):
            parser.error(f"cannot write {target}: its folder is missing or may not be written to")
    problem = _problem_of_program(options)
    if problem:
        parser.error(problem)
    return options


def _can_be_written(target: Path) -> bool:
    """True if a file can be written here."""
    folder = target.absolute().parent
    return os.access(folder, os.W_OK) and not target.is_dir()


def _problem_of_program(options: argparse.Namespace) -> str:
    """Why there is nothing to run, in a sentence; "" if there is something."""
    if options.module is not None:
        if options.module:
            return ""
        return "-m: name a module"
    if options.code is not None:
        if options.code:
            return ""
        return "-c: give code"
    if not options.script:
        return "name a script"
    file = Path(options.script[0])
    if file.suffix == ".ipynb":
        return f"{file} is a notebook, not a script"
    if file.is_dir():
        return f"{file} is a folder"
    if not file.is_file():
        return f"there is no file {file}"
    return ""


def _name_of_device(real: bool) -> str:
    """What the table calls the device."""
    if real:
        return "the real GPU"
    ranks = os.environ.get("WORLD_SIZE", "1")
    if ranks == "1":
        return "the virtual GPU"
    return f"the virtual GPU of rank 0 of {ranks}"


def _kind_to_open(real: bool) -> DeviceKind:
    """The kind of device to open: with `--real`, CUDA or else a Mac's MPS."""
    if not real:
        return "virtual"
    from virtual_cuda.real import device_count

    if device_count("cuda") or not device_count("mps"):
        return "cuda"
    return "mps"


class _Opening:
    """What a process of `multiprocessing` unpickles before it imports the script.

    To unpickle it opens the device there.
    """

    def __init__(self, gpus: int, memory: int | None, gpu: str | None) -> None:
        self._asked = gpus, memory, gpu

    def __reduce__(self) -> tuple[Any, tuple[int, int | None, str | None]]:
        """For pickle: a call that opens the device."""
        from virtual_cuda.devices import open_in_child

        return open_in_child, self._asked


def _opening_first(opening: _Opening, original: Any, name: str) -> dict[str, Any]:
    """The data for a new process, with what opens the device in front.

    Replaces `get_preparation_data` of `multiprocessing`, the `original`, for spawned processes and
    those of a fork server. What they do there is not recorded.
    """
    return {"virtual_cuda": opening, **original(name)}


_WITH_VALUE: Final = ("-W", "-X")  # options of Python that are two words


def _on_device(command: Any, folder: Any, options: list[str]) -> Any:
    """The command that does what `command` does with the device open.

    `options` are those of `python -m virtual_cuda`, `folder` is where the command runs, or None for
    here. Only a command that runs this Python on a script, a module or code is changed; any other
    one is returned as it is. Raises TypeError for a word that is no text or path.
    """
    if isinstance(command, (str, bytes, os.PathLike)):
        return command
    words = [os.fspath(word) for word in command]
    if not words or words[0] != sys.executable:
        return command
    count = 1 + _count_of_options(words[1:])
    program = words[count:]  # with its arguments
    if not program or program[:2] == ["-m", "virtual_cuda"]:
        return command
    is_file = os.path.isfile(os.path.join(folder or "", program[0]))
    if program[0] not in ("-m", "-c") and not is_file:
        return command
    return [*words[:count], "-m", "virtual_cuda", *options, *program]


def _count_of_options(words: list[str]) -> int:
    """How many words of Python's command line are options before the program."""
    count = 0
    while count < len(words):
        word = words[count]
        if not word.startswith("-") or word in ("-m", "-c", "-"):
            break
        count += 2 if word in _WITH_VALUE else 1
    return count


def _remove_own_frames(error: BaseException, seen: set[int] | None = None) -> None:
    """Remove the frames of this package from the tracebacks of an exception.

    Those of the exceptions that led to it are changed, too. `seen` has the identities of those that
    are done.
    """
    if seen is None:
        seen = set()
    if id(error) in seen:
        return
    seen.add(id(error))
    error.__traceback__ = _traceback_without_own_frames(error.__traceback__)
    group = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    for other in (error.__cause__, error.__context__, *group):
        if other is not None:
            _remove_own_frames(other, seen)


def _traceback_without_own_frames(
    traceback: types.TracebackType | None,
) -> types.TracebackType | None:
    """A traceback made anew without the frames of this package; None if no other is left."""
    steps = []
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(PACKAGE):
            steps.append(traceback)
        traceback = traceback.tb_next
    result = None
    for step in reversed(steps):
        result = types.TracebackType(result, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return result


class _Run:
    """One script, from its start to the table at the end."""

    def __init__(
        self, options: argparse.Namespace, ledger: Ledger, device: ExitStack, device_name: str
    ) -> None:
        """Note what is run.

        `device` closes the device, and the table calls it `device_name`. One process of several
        ranks reports.
        """
        self.options = options
        self.ledger = ledger
        self.device = device
        self.device_name = device_name
        self.process = os.getpid()
        self.name = ""  # of the script, as the command line has it
        self.file = ""
        self.prog = ""  # of the command
        self.misplaced_options: list[str] = []  # options of ours that stood behind the script
        self.failure: BaseException | None = None
        self.has_children = False
        # Of several ranks, only the first one reports.
        rank = os.environ.get("RANK", os.environ.get("LOCAL_RANK"))
        self.reports = not options.child if rank is None else rank == "0"

    def start_child(self, original: Any, popen: Any, args: Any, *rest: Any, **kwargs: Any) -> None:
        """Call `Popen.__init__`, with the device opened in the child if that runs Python.

        Launchers start the ranks of a distributed program so. It is noted that there are children.
        Raises what `Popen.__init__`, the `original`, raises.
        """
        command = _on_device(args, kwargs.get("cwd"), self._options_for_child())
        if command is not args:
            self.has_children = True
        original(popen, command, *rest, **kwargs)

    def _options_for_child(self) -> list[str]:
        """The options of the command line with which a child opens the same device."""
        options = ["--child", "--gpus", str(self.options.gpus)]
        if self.options.timeline:
            options.append("--timeline")
        for name in ("memory", "gpu", "trace", "html"):
            value = getattr(self.options, name)
            if value is not None:
                options += [f"--{name}", str(value)]
        return options

    def load(self, prog: str) -> types.CodeType:
        """Set up Python as `python` does, and return the code to run.

        It is a script's, a module's, or what was given with `-c`; its name and file are noted.
        `__main__`, `sys.argv` and `sys.path` are changed. Exits with a message where there is no
        such module. What reading or compiling the file raises is raised.
        """
        # `-m MODULE`
        if self.options.module is not None:
            name, *arguments = self.options.module
            module = load_module(name, arguments)
            if module is None:
                sys.exit(f"{prog}: there is no module {name} to run")
            self.name = name
            self.file = module.file
            return module.code
        # `-c CODE`
        if self.options.code is not None:
            text, *arguments = self.options.code
            self.name = "-c"
            self.file = TEXT_FILE
            return load_text(text, arguments)
        # A file.
        path, *arguments = self.options.script
        self.prog = prog
        self.misplaced_options = _find_misplaced_options(path, arguments)
        self.name = path
        self.file = os.path.abspath(path)
        return load_file(path, arguments)

    def finish(self) -> None:
        """Close the device, and print what was recorded to stderr.

        Writes the trace and the page that were asked for. Does nothing in a forked process, or
        where no script was loaded.
        """
        if os.getpid() != self.process or not self.file:
            return
        self.device.close()
        launched_others = self.has_children and not self.ledger.rows
        if not self.reports or launched_others:
            return
        # stdout may be closed by the script, or be a pipe that nobody reads.
        with suppress(OSError, ValueError, AttributeError):
            sys.stdout.flush()
        lines = ["", *self._report_lines(), ""]
        # stderr may be closed, or know few signs.
        with suppress(OSError, ValueError, AttributeError):
            coding = sys.stderr.encoding or "utf-8"
            text = with_similar_signs("\n".join(lines), coding)
            sys.stderr.write(text)
            sys.stderr.flush()

    def _report_lines(self) -> Iterator[str]:
        """The lines to print at the end: the report, the error, and which files were written.

        The files that were asked for are written while the lines are made.
        """
        times = None
        if not self.options.real and self.ledger.rows:
            gpu = gpu_named(self.options.gpu or USUAL_GPU)
            times = times_of(self.ledger, gpu)
        report = ScriptReport(self.name, self.file, self.device_name, self.ledger, times)
        with_cpu = self.options.compare is not None
        yield from report.lines(terminal_width(), self.options.timeline, with_cpu)
        if self.misplaced_options:
            options = " and ".join(self.misplaced_options)
            yield f"{options} went to {self.name}; options of {self.prog} come before FILE"
        if self.failure is not None:
            ending = _describe_error(self.failure)
            yield f"{self.name} ended with {ending} (the traceback is above)"
        # The files that were asked for.
        trace = self.options.trace
        if trace is not None:
            problem = _problem_of_writing(report.write_trace, trace)
            yield problem or f"wrote {trace}; ui.perfetto.dev opens it"
        page = self.options.html
        if page is not None:
            problem = _problem_of_writing(partial(report.write_page, with_cpu=with_cpu), page)
            yield problem or f"wrote {page}"


def _find_misplaced_options(path: str, arguments: Sequence[str]) -> list[str]:
    """The arguments of a script that are options of ours, and that it does not mention itself."""
    try:
        text = Path(path).read_bytes()
    except OSError:
        return []
    found = []
    for argument in arguments:
        option, _, _ = argument.partition("=")
        if option in OPTIONS and option.removeprefix("--").encode() not in text:
            found.append(option)
    return list(dict.fromkeys(found))


def _problem_of_writing(write: Callable[[Path], None], target: Path) -> str:
    """Write a file; returns a sentence on why that was not possible, or ""."""
    try:
        write(target)
    except OSError as error:
        return f"cannot write {target}: {error.strerror or error}"
    return ""


def _describe_error(error: BaseException) -> str:
    """The class of an error, and the first line of its message if it has one."""
    kind = type(error).__name__
    message = str(error).partition("\n")[0]
    if message:
        return f"{kind}: {message}"
    return kind


def terminal_width() -> int:
    """The columns of the terminal that the table goes to; 100 where it goes elsewhere."""
    if "COLUMNS" not in os.environ:
        with suppress(OSError, ValueError, AttributeError):
            return os.get_terminal_size(sys.stderr.fileno()).columns
    return shutil.get_terminal_size((100, 24)).columns


def run_command(arguments: Sequence[str]) -> int:
    """Run a command, or the script that the arguments name; returns the exit status.

    The commands are `record`, `fit` and `estimate`; a script with such a name is given as
    `./record`.
    """
    command = arguments[0] if arguments else ""
    if command == "record":
        from virtual_cuda.fitting import recording

        return recording.main(arguments[1:])
    if command == "fit":
        from virtual_cuda.fitting import figures

        return figures.main(arguments[1:])
    if command == "estimate":
        from virtual_cuda.estimate.command import run_estimate

        return run_estimate(arguments[1:])
    return run_script(arguments)


if __name__ == "__main__":
    sys.exit(run_command(sys.argv[1:]))
