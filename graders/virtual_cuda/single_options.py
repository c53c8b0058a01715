"""A parser of command lines that refuses an option given twice where one value would count."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


class StoreOnce(argparse.Action):
    """Stores the value of an option, and refuses a second one.

    argparse itself uses the last value and drops the others in silence.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Store the value. Raises ArgumentError where there is one already."""
        if option_string is not None:
            given: set[str] = vars(namespace).setdefault("given_options", set())
            if self.dest in given:
                raise argparse.ArgumentError(self, "is given twice, and takes one value")
            given.add(self.dest)
        setattr(namespace, self.dest, values)


class SingleOptionsParser(argparse.ArgumentParser):
    """A parser whose options with a value are given once.

    What it returns has `given_options` as well, where there are any.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Make the parser, with the arguments of `ArgumentParser`."""
        super().__init__(*args, **kwargs)
        for action in (None, "store"):
            self.register("action", action, StoreOnce)
