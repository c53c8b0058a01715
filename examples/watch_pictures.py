"""Takes the README's picture of `dojo watch`: a student at the training loop, in the real app.

python examples/watch_pictures.py              examples/dojo-watch.svg
python examples/watch_pictures.py --all DIR    every page in every width and theme
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gpudojo.watch.app import WatchApp
from gpudojo.watch.course import Course
from textual.pilot import Pilot

ROOT = Path(__file__).resolve().parents[1]
SOLVED, FILE = ("01", "02", "03"), "04_modifying_training_loop_gpu.py"
BODY = """\
model.to(device)
    model.train()
    total, count = 0.0, 0
    for inputs, targets in loader:
        print(len(targets), "targets")
        inputs.to(device)
        targets = targets.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(targets)
        count += len(targets)
    return total / count if count else 0.0
"""


async def until(pilot: Pilot[None], what: Callable[[], object]) -> None:
    end = time.monotonic() + 300
    while not what():
        if time.monotonic() > end:
            raise SystemExit("the app did not get there in five minutes")
        await pilot.pause(0.1)
    await pilot.pause(0.7)  # for the line with the state, which is drawn twice a second


async def pictures(
    size: tuple[int, int], dark: bool, save: Callable[[str, str], None], every: bool
) -> None:
    """Calls `save` with a name and an SVG for each page."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "exercises", "day8")
        shutil.copytree(ROOT / "exercises" / "day8", folder)
        for number in SOLVED:
            shutil.copy(next((ROOT / "reference" / "day8").glob(f"{number}_*.py")), folder)
        path, stub = folder / FILE, (folder / FILE).read_text(encoding="utf-8")
        course = Course(folder)
        course.dark = dark
        app = WatchApp(course)

        def keep(name: str) -> None:
            # Without textual's web font: a picture in a page may not load it, and the reader has a
            # font.
            picture = re.sub(r"@font-face {.*?}\s*", "", app.export_screenshot(), flags=re.DOTALL)
            save(name, picture.replace("Fira Code, ", "").replace("Fira Code,", ""))

        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: not course.pending and app.session.ready)
            keep("begin")
            path.write_text(stub.replace("raise NotImplementedError\n", BODY, 1), encoding="utf-8")
            await until(pilot, lambda: course.current.state == "begun")
            await pilot.press("h")
            await until(pilot, lambda: app.session.took and app.session.ready)
            keep("failing")
            if every:
                for key, name in (("t", "timeline"), ("l", "lesson")):
                    await pilot.press(key)
                    await pilot.pause(0.5)
                    keep(name)
                path.write_text(
                    stub.replace("raise NotImplementedError\n", "return (\n", 1), encoding="utf-8"
                )
                await until(pilot, lambda: course.current.broken)
                keep("syntax-error")
                shutil.copy(ROOT / "reference" / "day8" / FILE, path)
                await until(pilot, lambda: course.finished)
                keep("green")
                for work in course.works[4:]:
                    shutil.copy(ROOT / "reference" / "day8" / work.path.name, work.path)
                await until(pilot, lambda: course.done)
                keep("finished")
        app.thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", type=Path, metavar="DIR")
    target = parser.parse_args().all

    def save(name: str, picture: str) -> None:
        if target is not None:
            (target / f"{look}-{name}.svg").write_text(picture, encoding="utf-8")
        elif name == "failing":
            (ROOT / "examples" / "dojo-watch.svg").write_text(picture, encoding="utf-8")

    look = "wide-dark"
    if target is None:
        asyncio.run(pictures((110, 32), True, save, every=False))
        return
    target.mkdir(parents=True, exist_ok=True)
    for width, height in ((140, 40), (120, 36), (80, 24)):
        for look in (f"{width}-dark", f"{width}-light", f"{width}-plain"):
            os.environ.update({"NO_COLOR": "1"} if look.endswith("plain") else {})
            asyncio.run(pictures((width, height), look.endswith("dark"), save, every=True))
            os.environ.pop("NO_COLOR", None)


if __name__ == "__main__":
    main()
