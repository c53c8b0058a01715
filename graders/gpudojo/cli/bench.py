"""`dojo bench`: a training loop on a virtual device, and what each of its lines did."""

from __future__ import annotations

import linecache
import re
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Final

import click
from rich import box
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from virtual_cuda import virtual_cuda
from virtual_cuda.ledger import COLUMNS, Ledger, line_rows, questions, totals

from gpudojo.cli.options import FILE, writing

# A text and not a function of this module, because the ledger ignores frames of gpudojo itself.
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
NAME: Final = "training_loop.py"


@click.command()
@click.option("--trace", type=FILE, help="Save a trace for ui.perfetto.dev.")
@click.option("--picture", type=FILE, help="Save the table as an SVG picture.")
@click.option("--memory", default="8 GiB", show_default=True, help="Memory of the virtual device.")
def bench(trace: Path | None, picture: Path | None, memory: str) -> None:
    """Train on a virtual CUDA device and show what each line moved."""
    linecache.cache[NAME] = (len(TRAINING_LOOP), None, TRAINING_LOOP.splitlines(True), NAME)
    with virtual_cuda(memory=memory) as gpu:
        exec(compile(TRAINING_LOOP, NAME, "exec"), {"__name__": "__main__"})
    console = Console(highlight=False)
    show(by_line(gpu.ledger), gpu.ledger, console)
    for path, kind, save, advice in (
        (trace, "Trace", gpu.ledger.save_trace, " (open it at ui.perfetto.dev)"),
        (picture, "Picture", partial(save_picture, gpu.ledger), ""),
    ):
        if path is not None:
            with writing(path):
                save(path)
            console.print(f"{kind}: {path}{advice}", markup=False, soft_wrap=True)


def show(table: Table, ledger: Ledger, console: Console) -> None:
    """Prints the table, and below it the lines at which the host waited more than once."""
    console.print(table)
    for (_, line), count in questions.hot_lines(ledger.syncs(), at_least=2).items():
        console.print(f"Line {line} made the host wait for the device {count} times.")
    needed = whole_width(table)
    if console.width < needed:
        console.print(f"The code is cut off; a terminal with {needed} columns shows all of it.", style="dim")


def whole_width(table: Table) -> int:
    """The columns that the table takes when nothing is cut off."""
    return Console(width=1000).measure(table).maximum


def save_picture(ledger: Ledger, path: Path) -> None:
    """Saves what `show` prints as an SVG that is wide enough for the longest line."""
    table = by_line(ledger)
    table.box = box.SIMPLE  # no vertical lines: in most fonts of a browser they would not meet
    coloured = partial(Console, record=True, file=StringIO(), force_terminal=True, color_system="truecolor")
    console = coloured(width=whole_width(table), highlight=False)
    show(table, ledger, console)
    # Without the web font of rich: a picture in a page may not load it, and the reader has a font.
    layout = re.sub(r"@font-face {{.*?}}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace("Fira Code, ", "")
    picture = console.export_svg(title="dojo bench", code_format=layout, unique_id="dojo-bench")
    path.write_text(picture, encoding="utf-8")


def by_line(ledger: Ledger) -> Table:
    """A table with the training loop, and beside each line what it caused."""
    colours = Syntax("", "python", background_color="default")
    table = Table(title="Copies, waits and operations, by source line", title_justify="left", show_footer=True)
    table.add_column("", justify="right", style="dim", no_wrap=True)
    table.add_column(NAME, footer="total")
    for heading, sum_ in zip(COLUMNS, totals(ledger.records), strict=True):
        table.add_column(heading, justify="right", no_wrap=True, footer=sum_)
    for row in line_rows(ledger.records, NAME, TRAINING_LOOP.splitlines()):
        shown = colours.highlight(row.code)
        shown.rstrip()
        # On a narrow terminal the code is cut off, so that a line of it stays a line of the table.
        shown.no_wrap, shown.overflow = True, "ellipsis"
        table.add_row(str(row.number), shown, *row.cells)
    return table
