"""The agreement that is pinned, and the reasons for the differences that remain.

They are in agreement.json and differences.toml.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.virtual_cuda.conformance.compare import ASPECTS, Difference, Tally

AGREEMENT = Path(__file__).with_name("agreement.json")
DIFFERENCES = Path(__file__).with_name("differences.toml")


def read_agreement(path: Path = AGREEMENT) -> dict[str, Any]:
    """What agreement.json says."""
    pinned: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return pinned


def pinned_tallies(corpus: str, path: Path = AGREEMENT) -> dict[str, Tally]:
    """The pinned counts of one corpus; empty for one that was never pinned."""
    counts = read_agreement(path)["reached"].get(corpus, {})
    return {aspect: Tally(*pair) for aspect, pair in counts.items()}


def pin_tallies(corpus: str, tallies: dict[str, Tally], path: Path = AGREEMENT) -> None:
    """Write the counts of one corpus to agreement.json, with the release of torch."""
    import torch

    pinned = read_agreement(path)
    pinned["torch"] = torch.__version__.partition("+")[0]
    pinned["reached"][corpus] = {
        aspect: [tally.agree, tally.of] for aspect, tally in tallies.items()
    }
    path.write_text(_json_of_agreement(pinned), encoding="utf-8")


def describe_changes(pinned: dict[str, Tally], found: dict[str, Tally]) -> list[str]:
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
            change = f"pinned {_share(was)}, found {_share(now)}: pin the corpus anew"
        elif now.agree < was.agree:
            change = f"fell from {_share(was)} to {_share(now)}"
        else:
            change = f"rose from {_share(was)} to {_share(now)}: raise the pin"
        sentences.append(f"{aspect}: {change}")
    return sentences


class Place(NamedTuple):
    """Where a difference is."""

    snippet: str
    aspect: str

    def __str__(self) -> str:
        return f"{self.snippet} [{self.aspect}]"


def known_differences(path: Path = DIFFERENCES) -> dict[Place, str]:
    """The reasons for known differences. Raises ValueError for an entry that is not valid."""
    known: dict[Place, str] = {}
    for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("difference", []):
        if entry.keys() != {"reason", "aspects", "snippets"} or not entry["reason"].strip():
            wanted = "a difference has a reason, aspects and snippets"
            raise ValueError(f"{path.name}: {wanted}, not {sorted(entry)}")
        for aspect in entry["aspects"]:
            if aspect not in ASPECTS:
                aspects = ", ".join(ASPECTS)
                raise ValueError(f"{path.name}: no aspect {aspect!r}; there are {aspects}")
            for snippet in entry["snippets"]:
                place = Place(snippet, aspect)
                if place in known:
                    raise ValueError(f"{path.name}: {place} is listed twice")
                known[place] = entry["reason"]
    return known


def differences_without_reason(
    found: Iterable[Difference], known: Mapping[tuple[str, str], str]
) -> list[str]:
    """Places of differences that nobody has explained."""
    return sorted(map(str, _places_of(found) - known.keys()))


def reasons_without_difference(
    found: Iterable[Difference], known: Mapping[tuple[str, str], str]
) -> list[str]:
    """Places of reasons that explain nothing: the device is better, or the snippet is gone."""
    return sorted(str(Place(*place)) for place in known.keys() - _places_of(found))


def _places_of(differences: Iterable[Difference]) -> set[Place]:
    return {Place(difference.id, difference.aspect) for difference in differences}


def _share(tally: Tally | None) -> str:
    return "nothing" if tally is None else f"{tally.agree}/{tally.of}"


def _json_of_agreement(pinned: dict[str, Any]) -> str:
    """JSON with a corpus a line, so that a change is seen as one."""
    corpora = []
    for name, counts in pinned["reached"].items():
        corpora.append(f"  {json.dumps(name)}: {json.dumps(counts)}")
    lines = ""
    for key, value in pinned.items():
        if key != "reached":
            lines += f" {json.dumps(key)}: {json.dumps(value)},\n"
    tables = ",\n".join(corpora)
    return f'{{\n{lines} "reached": {{\n{tables}\n }}\n}}\n'
