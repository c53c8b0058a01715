"""Do the files in examples/ work for someone who copies them, and is the picture there today's?"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from graders.cli import main

REPOSITORY = Path(__file__).parents[1]
EXAMPLES = REPOSITORY / "examples"


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("test_*.py")), ids=lambda path: path.stem)
def test_every_test_of_an_example_passes(
    example: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The plugin by hand instead of by its entry point, so that this works in a checkout that is not installed, too.
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY), prepend=os.pathsep)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p graders.plugin --strict-markers -W error -p no:cacheprovider")
    source = example.read_text(encoding="utf-8")
    pytester.makepyfile(**{example.stem: source})
    result = pytester.runpytest_subprocess()
    assert result.parseoutcomes() == {"passed": len(re.findall("^def test_", source, re.MULTILINE))}


def words(picture: Path) -> list[str]:
    return re.findall("<text[^>]*>([^<]*)</text>", picture.read_text(encoding="utf-8"))


def test_the_picture_is_what_dojo_bench_shows_today(tmp_path: Path) -> None:
    """If not: `dojo bench --picture examples/dojo-bench.svg`."""
    anew = tmp_path / "anew.svg"
    assert CliRunner().invoke(main, ["bench", "--picture", str(anew)]).exit_code == 0
    stored = EXAMPLES / "dojo-bench.svg"
    assert "loss.backward" in "".join(words(anew)).replace("&#160;", " "), "or the comparison compares nothing"
    assert words(stored) == words(anew)
    assert stored.stat().st_size < 200_000
