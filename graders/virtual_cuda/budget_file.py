"""The file of `--virtual-cuda-budget`: what each test needed when the file was made."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from virtual_cuda.budgets import Counts, Excess
from virtual_cuda.errors import BadBudgetFile

_FORMAT: Final = 1


class BudgetFile:
    """What tests needed, by the name that pytest has for them."""

    def __init__(self, path: Path, versions: Mapping[str, str]) -> None:
        """Begin without a test; `versions` are those of torch and of gpudojo here."""
        self.path = path
        self.versions = dict(versions)
        self.made_with: dict[str, str] = dict(versions)
        self.tests: dict[str, Counts] = {}

    def read(self) -> None:
        """Read the file: its tests, and the versions it was made with.

        Raises BadBudgetFile where it is missing, or is none.
        """
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise BadBudgetFile(str(self.path), "there is none") from None
        except (OSError, ValueError) as error:
            raise BadBudgetFile(str(self.path), str(error)) from None
        try:
            self._take(found)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise BadBudgetFile(str(self.path), f"it is of another form ({error!r})") from None

    def _take(self, found: Any) -> None:
        """Take over what was read.

        Raises KeyError, TypeError, AttributeError or ValueError for other forms.
        """
        if found["format"] != _FORMAT:
            raise KeyError(found["format"])
        self.made_with = {name: str(version) for name, version in found["made_with"].items()}
        for test, figures in found["tests"].items():
            for value in figures.values():
                if type(value) is not int or value < 0:
                    raise ValueError(value)
            self.tests[test] = Counts(**figures)

    def write(self, counts: Mapping[str, Counts]) -> None:
        """Write the file anew: these tests as they are now, all others as they were.

        Its folder is made if there is none, and the file is replaced as a whole. Raises OSError.
        """
        tests = self.tests | dict(counts)
        content = {
            "format": _FORMAT,
            "made_with": self.versions,
            "tests": {name: tests[name]._asdict() for name in sorted(tests)},
        }
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(self.path)

    def excesses_of(self, test: str, counts: Counts) -> list[Excess]:
        """The figures of a test that are larger than in the file; none for a test not in it."""
        recorded = self.tests.get(test)
        if recorded is None:
            return []
        found = []
        for figure, needed in counts._asdict().items():
            allowed = getattr(recorded, figure)
            if needed > allowed:
                found.append(Excess(figure, needed, allowed, f"as in {self.path.name}"))
        return found

    def shrunk(self, test: str, counts: Counts) -> bool:
        """True if a test needs less of something than in the file, and more of nothing."""
        recorded = self.tests.get(test)
        if recorded is None:
            return False
        return counts != recorded and not self.excesses_of(test, counts)

    def advice(self) -> str:
        """What to do where a figure has grown on purpose, or for another reason than the code."""
        other = []
        for name, version in self.made_with.items():
            here = self.versions.get(name, "")
            if here != version:
                other.append(f"{name} {version}, here is {here}")
        advice = "If that is meant: run again with --virtual-cuda-budget-update."
        if other:
            advice += f" {self.path.name} was made with {'; '.join(other)}: figures may differ."
        return advice
