"""The claims in docs/isolation.md name tests that exist, and `dojo doctor` says what holds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from gpudojo.cli import main
from gpudojo.sandbox import layers

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "isolation.md").read_text(encoding="utf-8")


def rows(head: str) -> list[list[str]]:
    """The cells of the table that begins with this line."""
    lines = PAGE.split(f"{head}\n", 1)[1].splitlines()[1:]
    table = lines[: next(n for n, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_every_claim_names_its_tests() -> None:
    sources = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")
    )
    existing = set(re.findall(r"^def (test_\w+)", sources, re.M))
    claims = rows("| claim | tested by |")
    assert claims
    for claim, tested_by in claims:
        named = set(re.findall(r"`(test_\w+)`", tested_by))
        assert named, claim
        assert named <= existing, claim


def test_every_layer_is_on_the_page_and_has_a_purpose() -> None:
    named = [row[0] for row in rows("| layer | by | prevents |")]
    assert named == [name for name in layers.PURPOSE if name != layers.DEVICE]
    assert set(layers.ADVICE) == set(layers.PURPOSE) - {layers.LIMITS}


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"files": "", "user": ""}, "  every layer holds\n"),
        (
            {"files": "no Landlock", "user": ""},
            "  --require-isolation would refuse to grade here: files\n",
        ),
    ],
)
def test_the_doctor_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, str], told: str
) -> None:
    monkeypatch.setattr("gpudojo.sandbox.layers.examine_layers", lambda: found)
    output = CliRunner().invoke(main, ["doctor"]).output
    assert told in output
    assert ("missing: no Landlock" in output) == bool(found["files"])


@pytest.mark.skipif(sys.platform != "linux", reason="these layers are Linux's")
def test_a_layer_that_is_open_does_not_hold() -> None:
    """The examination tries what a layer prevents: here seccomp allows everything, and the user
    stays root.
    """
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'graders')!r})\n"
    code += "from gpudojo.sandbox import isolation, kernel\n"
    code += "kernel.DENIED, kernel.FAMILIES = (), range(60)\n"
    code += "isolation.print_layers()"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/"
    )
    if '"system calls": "pyseccomp' in run.stdout or '"system calls": "libseccomp' in run.stdout:
        pytest.skip(run.stdout)
    assert (
        '"system calls": "it was set up, but opening a socket of any family is possible"'
        in run.stdout
    )


def test_what_the_doctor_needs_can_be_imported_without_modules_of_linux() -> None:
    code = "import sys; sys.modules.update(dict.fromkeys(['resource', 'fcntl']))\n"
    code += f"sys.path.insert(0, {str(ROOT / 'graders')!r})\nimport gpudojo.cli.watch"
    subprocess.run([sys.executable, "-c", code], check=True, cwd="/")
