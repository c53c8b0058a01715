"""Which device an operator's arguments must be on, and who complains: the tables of placement.json.

They are made from what `probe.py` recorded on a real GPU.
"""

from __future__ import annotations

import re
from typing import Any, Final

Table = dict[str, Any]
# What a device check of CUDA says: an argument, its device, and the method that complains.
WRAPPER: Final = re.compile(
    r"but got (\w+) is on (\S+), different from .* in method (wrapper_CUDA_\w+)\)"
)
# An argument in an example of the probe: its name and its shape.
ARGUMENT: Final = re.compile(r"(\w+)=\w+\[([\d,]*)\]")


def delegated_check(moved: Table) -> list[Any] | None:
    """The method that complains, and pairs of an argument and its name in the message.

    Made from what was said when each argument alone was on the CPU. None if another check
    complained, or several methods did.
    """
    methods: set[str] = set()
    names: dict[str, str] = {}  # in messages, by argument
    first = ""
    # Each message names the method, and one argument with its device.
    for argument, kinds in moved.items():
        own_name = argument.partition("[")[0]
        for message in kinds.get("one_cpu", {}):
            found = WRAPPER.search(message)
            if found is None:
                return None
            name, device, method = found.groups()
            methods.add(method)
            if device != "cpu" and own_name == argument:
                first = own_name  # the others differ from this one
                names.setdefault(own_name, own_name)
            else:
                names[own_name] = name
    if len(methods) != 1:
        return None
    # The argument that the others are compared with comes first.
    others = [name for name in names if name != first]
    if len(moved) == len(names):
        others.sort(key=list(moved).index)
    else:
        others.sort()
    order = [first, *others] if first else others
    return [methods.pop(), [[own_name, names[own_name]] for own_name in order]]


def strict_arguments(moved: Table) -> list[str]:
    """Arguments refused on the CPU even where they had no dimension."""
    strict = []
    for argument, kinds in moved.items():
        examples = []
        for message, of_message in kinds.get("one_cpu", {}).items():
            if "at least two devices" in message:
                examples += of_message
        shapes = [dict(ARGUMENT.findall(example)).get(argument) for example in examples]
        if "" in shapes:
            strict.append(argument)
    return sorted(strict)


def placement_tables(probe: Table, checked: Table) -> Table:
    """The tables of placement.json: what is not in `checked`, which torch's own tables give."""
    delegated = {}
    strict = {}
    for overload, moved in probe["mixed"].items():
        if overload in checked or "_foreach_" in overload:
            continue
        check = delegated_check(moved)
        if check is not None:
            delegated[overload] = check
            continue
        changes_in_place = overload.rpartition(".")[0].endswith("_")
        arguments = strict_arguments(moved)
        if arguments and not changes_in_place:
            strict[overload] = arguments
    return {"delegated": delegated, "strict": strict}
