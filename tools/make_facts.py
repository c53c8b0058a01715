"""Makes the data under `facts/` from torch's own tables and from a probe of a real GPU.

python -m tools.make_facts                  operators.json
python -m tools.make_facts probe.json       and, from what `probe.py` recorded, the other two
"""

from __future__ import annotations

import argparse
import json
import pathlib
from typing import Any, Final

from tools.operator_facts import operator_tables
from tools.placement_facts import placement_tables
from tools.refusal_facts import refusal_tables

FACTS: Final = pathlib.Path(__file__).parents[1] / "graders" / "virtual_cuda" / "ops" / "facts"
Table = dict[str, Any]


def json_of_tables(tables: Table) -> str:
    """JSON with one operator a line, so that a change is seen as one."""
    parts = []
    for title, table in tables.items():
        value = json.dumps(table)
        if isinstance(table, dict):
            value = _json_by_line(table)
        parts.append(f" {json.dumps(title)}: {value}")
    all_parts = ",\n".join(parts)
    return f"{{\n{all_parts}\n}}\n"


def _json_by_line(table: Table) -> str:
    """A table as JSON, with an entry a line, in the order of their keys."""
    lines = []
    for key in sorted(table):
        fact = json.dumps(table[key], sort_keys=True)
        lines.append(f"  {json.dumps(key)}: {fact}")
    all_lines = ",\n".join(lines)
    return f"{{\n{all_lines}\n }}"


def merge_facts(known: Table, new: Table) -> Table:
    """The facts of both; where they differ, the new ones."""
    both: Table = dict(new)
    for key, fact in known.items():
        if isinstance(fact, dict):
            both[key] = merge_facts(fact, both.get(key, {}))
        elif isinstance(fact, list) and key == "absent":
            both[key] = sorted({*fact, *both.get(key, ())})
        else:
            both.setdefault(key, fact)
    return both


def main(arguments: list[str] | None = None) -> None:
    """Write the facts about operators anew.

    What a probe found is added to what earlier ones have found.
    """
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "probe", nargs="?", type=pathlib.Path, help="what probe.py has recorded on a GPU"
    )
    parser.add_argument(
        "--out", type=pathlib.Path, default=FACTS, help="a folder; the package's own unless given"
    )
    parser.add_argument(
        "--fresh", action="store_true", help="forget what earlier probes have found"
    )
    options = parser.parse_args(arguments)
    # torch's own tables, and what the probe adds to them.
    tables = {"operators": operator_tables()}
    if options.probe is not None:
        probe = json.loads(options.probe.read_text())
        tables["refusals"] = refusal_tables(probe)
        tables["placement"] = placement_tables(probe, tables["operators"]["checks"])
        if not options.fresh:
            for name in ("refusals", "placement"):
                known = json.loads((FACTS / f"{name}.json").read_text())
                tables[name] = merge_facts(known, tables[name])
    for name, table in tables.items():
        (options.out / f"{name}.json").write_text(json_of_tables(table))


if __name__ == "__main__":
    main()
