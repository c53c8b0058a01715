"""The command `dojo`."""

from __future__ import annotations

import linecache
import re
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gpudojo import __version__
from gpudojo.cli.authoring import new, sample
from gpudojo.cli.classroom import classroom, classroom50, gradescope
from gpudojo.cli.doctor import doctor
from gpudojo.cli.grade import grade
from gpudojo.cli.options import repository, which_day, which_root
from gpudojo.cli.release import notebooks, release
from gpudojo.cli.results import export, report

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from virtual_cuda.ledger import Ledger


# A text and not a function of this module: the ledger leaves out gpudojo's own frames, and so would see none of it.
TRAINING_LOOP: Final = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
labels = torch.randint(0, 2, (256,))
sprites = torch.rand(256, 1, 8, 8)
sprites[:, :, :4] += 2 * labels.view(-1, 1, 1, 1) - 1  # dark or bright
loader = DataLoader(TensorDataset(sprites, labels), 32, pin_memory=True)

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
layers = [nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2)]
model = nn.Sequential(*layers).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for sprite, label in loader:
    sprite = sprite.to(device, non_blocking=True)
    label = label.to(device, non_blocking=True)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(sprite), label)
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.3f}")
guesses = model(sprites.to(device)).argmax(1).cpu()
print(f"{(guesses == labels).sum()} of {len(labels)} right")
"""
FILE: Final = "training_loop.py"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dojo")
def main() -> None:
    """Exercises in GPU programming, on any machine."""


@main.command()
@click.option("--trace", type=click.Path(dir_okay=False, path_type=Path), help="Save a trace for ui.perfetto.dev.")
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="Save the table as an SVG picture.")
@click.option("--memory", default="8 GiB", show_default=True, help="How much memory the virtual device has.")
def bench(trace: Path | None, picture: Path | None, memory: str) -> None:
    """Train on a virtual CUDA device and show what each line moved where."""
    from rich.console import Console
    from virtual_cuda import virtual_cuda
    from virtual_cuda.errors import DeviceError

    linecache.cache[FILE] = (len(TRAINING_LOOP), None, TRAINING_LOOP.splitlines(True), FILE)
    try:
        with virtual_cuda(memory=memory) as gpu:
            exec(compile(TRAINING_LOOP, FILE, "exec"), {"__name__": "__main__"})
    except DeviceError as error:
        raise click.ClickException(str(error)) from error
    console = Console(highlight=False)
    show(by_line(gpu.ledger), gpu.ledger, console)
    for path, kind, save, advice in (
        (trace, "Trace", gpu.ledger.save_trace, " (open it at ui.perfetto.dev)"),
        (picture, "Picture", partial(save_picture, gpu.ledger), ""),
    ):
        if path is None:
            continue
        try:
            save(path)
        except OSError as error:
            raise click.ClickException(f"cannot write {path}: {error.strerror}") from error
        console.print(f"{kind}: {path}{advice}", markup=False, soft_wrap=True)


def show(table: Table, ledger: Ledger, console: Console) -> None:
    """The table, and below it the lines the host waited at again and again."""
    from virtual_cuda.ledger import questions

    console.print(table)
    for (_, line), count in questions.hot_lines(ledger.syncs(), at_least=2).items():
        console.print(f"Line {line} made the host wait for the device {count} times.")
    needed = whole_width(table)
    if console.width < needed:
        console.print(f"The code is cut off here; a terminal of {needed} columns shows it whole.", style="dim")


def whole_width(table: Table) -> int:
    """How many columns the table takes when nothing of it is cut off."""
    from rich.console import Console

    return Console(width=1000).measure(table).maximum


def save_picture(ledger: Ledger, path: Path) -> None:
    """What `show` prints, as an SVG as wide as the longest line of code needs."""
    from rich import box
    from rich._export_format import CONSOLE_SVG_FORMAT
    from rich.console import Console

    table = by_line(ledger)
    table.box = box.SIMPLE  # no vertical lines: in most fonts of a browser they would not meet
    console = Console(
        record=True,
        file=StringIO(),
        width=whole_width(table),
        highlight=False,
        force_terminal=True,
        color_system="truecolor",
    )
    show(table, ledger, console)
    # Without the font rich would fetch from the web: a picture in a page may not load it, and the reader's own will do.
    layout = re.sub(r"@font-face {{.*?}}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace("Fira Code, ", "")
    path.write_text(
        console.export_svg(title="dojo bench", code_format=layout, unique_id="dojo-bench"), encoding="utf-8"
    )


def by_line(ledger: Ledger) -> Table:
    """The training loop, and beside each line what it caused."""
    from rich.syntax import Syntax
    from rich.table import Table
    from virtual_cuda.ledger import COLUMNS, line_rows, totals

    colours = Syntax("", "python", background_color="default")
    table = Table(title="What moved where, by source line", title_justify="left", show_footer=True)
    table.add_column("", justify="right", style="dim", no_wrap=True)
    table.add_column(FILE, footer="in all")
    for heading, sum_ in zip(COLUMNS, totals(ledger.records), strict=True):
        table.add_column(heading, justify="right", no_wrap=True, footer=sum_)
    for row in line_rows(ledger.records, FILE, TRAINING_LOOP.splitlines()):
        shown = colours.highlight(row.code)
        shown.rstrip()
        # On a narrow terminal the code is cut off, so that a line of it stays a line of the table.
        shown.no_wrap, shown.overflow = True, "ellipsis"
        table.add_row(str(row.number), shown, *row.cells)
    return table


@main.command()
@click.option("--quick", is_flag=True, help="Believe the first lines of wrong solutions instead of grading them.")
@which_day
@which_root
def lint(quick: bool, day: str, root: Path | None) -> None:
    """Prove that a day is fit for students."""
    from rich.console import Console
    from rich.table import Table

    from gpudojo.authoring.lint import lint as look

    report = look(day, root or repository(), quick)
    table = Table(title=f"dojo lint: {day}", title_justify="left", show_footer=True)
    table.add_column("exercise", no_wrap=True)
    for heading in ("points", "functions", "checks", "wrong"):
        table.add_column(heading, justify="right")
    table.add_column("verdict", no_wrap=True, min_width=10)
    for row in report.rows:
        problems = sum(not finding.warning for finding in row.findings)
        fine = "[yellow]unfinished[/]" if row.notes else "[green]fine[/]"
        verdict = f"[red]{problems} problem{'s' * (problems > 1)}[/]" if problems else fine
        numbers = (row.points, row.functions, row.checks, row.enemies)
        table.add_row(row.stem, *(f"{number:g}" for number in numbers), verdict)
    sums = [sum(getattr(row, name) for row in report.rows) for name in ("points", "functions", "checks", "enemies")]
    for column, text in zip(table.columns, ["in all", *(f"{number:g}" for number in sums)], strict=False):
        column.footer = text
    console = Console(highlight=False)
    console.print(table)
    for finding in sorted(report.findings, key=lambda finding: finding.warning):
        kind = "warning" if finding.warning else "problem"
        console.print(f"{kind}: {finding.exercise}: {finding.text}", markup=False, soft_wrap=True)
    if report.problems:
        raise SystemExit(1)


main.add_command(classroom)
main.add_command(export)
main.add_command(doctor)
main.add_command(grade)
main.add_command(new)
main.add_command(sample)
release.add_command(classroom50)
release.add_command(gradescope)
release.add_command(notebooks)
main.add_command(release)
main.add_command(report)
