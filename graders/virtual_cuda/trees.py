"""Walks through lists, tuples and dicts of values, as arguments and results of operators are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """A copy of a tree, with `function` applied to all that is no list, tuple or dict.

    A tree is a value, or a list, tuple or dict of trees. Raises what `function` raises.
    """
    if isinstance(tree, dict):
        return {key: map_leaves(function, value) for key, value in tree.items()}
    if not isinstance(tree, (list, tuple)):
        return function(tree)
    mapped = [map_leaves(function, value) for value in tree]
    if isinstance(tree, list):
        return mapped
    if hasattr(tree, "_make"):  # a named tuple
        return tree._make(mapped)
    return type(tree)(mapped)  # a tuple, or one of torch.return_types


def map_only(kind: type, function: Callable[[Any], Any], tree: Any) -> Any:
    """A copy of a tree, with `function` applied to the leaves of one class."""

    def map_leaf(leaf: Any) -> Any:
        if isinstance(leaf, kind):
            return function(leaf)
        return leaf

    return map_leaves(map_leaf, tree)


def leaves_of(tree: Any) -> Iterator[Any]:
    """Everything in a tree that is no list, tuple or dict."""
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (list, tuple)):
        yield tree
        return
    for value in tree:
        yield from leaves_of(value)
