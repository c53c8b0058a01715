"""What did a real GPU say when one argument was elsewhere? Run it on a probe.json to write `placement.json`.

`delegated`: operators that hand their arguments to another one, whose generated wrapper then complains:
[method, [[argument, the name it has there], ...]], the argument that gives the device first.
`strict`: arguments of elementwise operators that may not be 0-dimensional CPU tensors, though inputs usually may.
"""

from __future__ import annotations

import json
import pathlib
import re
import sys
from typing import Any

HERE = pathlib.Path(__file__).parent
WRAPPER = re.compile(r"but got (\w+) is on (\S+), different from .* in method (wrapper_CUDA_\w+)\)")
ARGUMENT = re.compile(r"(\w+)=\w+\[([\d,]*)\]")


def delegation(moved: dict[str, Any]) -> list[Any] | None:
    """Who complains, and under which names, from what was said when each argument alone was on the CPU."""
    methods: set[str] = set()
    said: dict[str, str] = {}
    first = ""
    for argument, kinds in moved.items():
        for text in kinds.get("one_cpu", {}):
            found = WRAPPER.search(text)
            if found is None:
                return None
            name, where, method = found.groups()
            methods.add(method)
            own = argument.partition("[")[0]
            if where != "cpu" and own == argument:
                first = own  # the others differ from this one
                said.setdefault(own, own)
            else:
                said[own] = name
    if len(methods) != 1:
        return None
    order = [first] if first else []
    order += sorted((name for name in said if name != first), key=list(moved).index if len(moved) == len(said) else str)
    return [methods.pop(), [[own, said[own]] for own in order]]


def strict_arguments(moved: dict[str, Any]) -> list[str]:
    """Arguments refused on the CPU even where they had no dimension."""
    refused = set()
    for argument, kinds in moved.items():
        for text, examples in kinds.get("one_cpu", {}).items():
            shapes = [dict(ARGUMENT.findall(example)) for example in examples]
            if "at least two devices" in text and any(shape.get(argument) == "" for shape in shapes):
                refused.add(argument)
    return sorted(refused)


def main() -> None:
    mixed = json.loads(pathlib.Path(sys.argv[1]).read_text())["mixed"]
    checked = json.loads((HERE / "operators.json").read_text())["checks"]
    delegated, strict = {}, {}
    for overload, moved in sorted(mixed.items()):
        if overload in checked or "_foreach_" in overload:
            continue
        if (found := delegation(moved)) is not None:
            delegated[overload] = found
        elif not overload.rpartition(".")[0].endswith("_") and (names := strict_arguments(moved)):
            strict[overload] = names
    parts = [
        f" {json.dumps(title)}: {{\n"
        + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in table.items())
        + "\n }"
        for title, table in (("delegated", delegated), ("strict", strict))
    ]
    (HERE / "placement.json").write_text("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    main()
