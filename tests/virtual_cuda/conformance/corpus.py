"""The snippets, and what a real GPU did with each.

A corpus is a pair of files, ``NAME.snippets.json`` (the code) and ``NAME.h200.json`` (the record).
Adding a pair adds a corpus.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "corpus"
DEFAULT_TOLERANCE = 1e-4

Record = dict[str, Any]
"""What happened to one snippet, as plain JSON data."""


@dataclass(frozen=True)
class Snippet:
    id: str
    code: str
    random: bool
    """Values of the device's own generator are neither recorded nor compared."""
    tolerance: float


@dataclass(frozen=True)
class Corpus:
    name: str
    snippets: dict[str, Snippet]
    golden: dict[str, Record]

    def containing(self, text: str) -> Corpus:
        """Only the snippets whose id contains ``text``; several texts are separated by commas."""
        kept = {
            id_: s
            for id_, s in self.snippets.items()
            if any(part in id_ for part in text.split(","))
        }
        return Corpus(self.name, kept, {id_: self.golden[id_] for id_ in kept})


def load(name: str, folder: Path = HERE) -> Corpus:
    rows = json.loads((folder / f"{name}.snippets.json").read_text(encoding="utf-8"))
    golden = json.loads((folder / f"{name}.h200.json").read_text(encoding="utf-8"))["results"]
    snippets = {
        row["id"]: Snippet(row["id"], row["code"], row["random"], row.get("tol", DEFAULT_TOLERANCE))
        for row in rows
    }
    if len(snippets) != len(rows) or snippets.keys() != golden.keys():
        odd = sorted(snippets.keys() ^ golden.keys())
        raise ValueError(
            f"corpus {name!r}: {len(rows)} snippets, {len(golden)} records, without a partner: "
            f"{odd}"
        )
    return Corpus(name, snippets, golden)


def names(folder: Path = HERE) -> list[str]:
    return sorted(
        path.name.removesuffix(".snippets.json") for path in folder.glob("*.snippets.json")
    )


def load_all(folder: Path = HERE) -> list[Corpus]:
    corpora = [load(name, folder) for name in names(folder)]
    # differences.toml and --show speak of a snippet by its id alone.
    seen: set[str] = set()
    for corpus in corpora:
        if twice := seen & corpus.snippets.keys():
            raise ValueError(
                f"corpus {corpus.name!r} repeats ids of an earlier one: {sorted(twice)}"
            )
        seen |= corpus.snippets.keys()
    return corpora
