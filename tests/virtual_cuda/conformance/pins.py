"""The agreement reached, and the reasons for the differences that remain: agreement.json and
differences.toml.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.virtual_cuda.conformance.compare import ASPECTS, Difference, Tally

AGREEMENT = Path(__file__).with_name("agreement.json")
DIFFERENCES = Path(__file__).with_name("differences.toml")


def read(path: Path = AGREEMENT) -> dict[str, Any]:
    pinned: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return pinned


def reached(corpus: str, path: Path = AGREEMENT) -> dict[str, Tally]:
    """The pinned counts of one corpus; empty for one that was never pinned."""
    counts = read(path)["reached"].get(corpus, {})
    return {aspect: Tally(*pair) for aspect, pair in counts.items()}


def write(corpus: str, tallies: dict[str, Tally], path: Path = AGREEMENT) -> None:
    import torch

    pinned = read(path)
    pinned["torch"] = torch.__version__.partition("+")[0]
    pinned["reached"][corpus] = {
        aspect: [tally.agree, tally.of] for aspect, tally in tallies.items()
    }
    path.write_text(_one_line_each(pinned), encoding="utf-8")


def changed(pinned: dict[str, Tally], found: dict[str, Tally]) -> list[str]:
    """One sentence for each aspect whose count is not the pinned one.

    Better counts too, lest they be lost again.
    """
    sentences = []
    for aspect in ASPECTS:
        was = pinned.get(aspect)
        now = found.get(aspect)
        if was == now:
            continue
        if was is None or now is None or was.of != now.of:
            sentences.append(
                f"{aspect}: pinned {_text(was)}, found {_text(now)}: pin the corpus anew"
            )
        elif now.agree < was.agree:
            sentences.append(f"{aspect}: fell from {_text(was)} to {_text(now)}")
        else:
            sentences.append(f"{aspect}: rose from {_text(was)} to {_text(now)}: raise the pin")
    return sentences


def listed(path: Path = DIFFERENCES) -> dict[tuple[str, str], str]:
    """The known differences, as (snippet, aspect) to the reason."""
    known: dict[tuple[str, str], str] = {}
    for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("difference", []):
        if entry.keys() != {"reason", "aspects", "snippets"} or not entry["reason"].strip():
            raise ValueError(
                f"{path.name}: a difference has a reason, aspects and snippets, not {sorted(entry)}"
            )
        for aspect in entry["aspects"]:
            if aspect not in ASPECTS:
                raise ValueError(
                    f"{path.name}: no aspect {aspect!r}; there are {', '.join(ASPECTS)}"
                )
            for snippet in entry["snippets"]:
                if (snippet, aspect) in known:
                    raise ValueError(f"{path.name}: {snippet} [{aspect}] is listed twice")
                known[snippet, aspect] = entry["reason"]
    return known


def unexplained(found: Iterable[Difference], known: Mapping[tuple[str, str], str]) -> list[str]:
    """Differences without a reason."""
    return sorted(f"{d.id} [{d.aspect}]" for d in found if (d.id, d.aspect) not in known)


def outdated(found: Iterable[Difference], known: Mapping[tuple[str, str], str]) -> list[str]:
    """Reasons without a difference: the device has become better, or the snippet is gone."""
    real = {(d.id, d.aspect) for d in found}
    return sorted(f"{id_} [{aspect}]" for id_, aspect in known.keys() - real)


def _text(tally: Tally | None) -> str:
    return "nothing" if tally is None else f"{tally.agree}/{tally.of}"


def _one_line_each(pinned: dict[str, Any]) -> str:
    corpora = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(counts)}" for name, counts in pinned["reached"].items()
    )
    head = {key: value for key, value in pinned.items() if key != "reached"}
    lines = "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items())
    return f'{{\n{lines} "reached": {{\n{corpora}\n }}\n}}\n'
