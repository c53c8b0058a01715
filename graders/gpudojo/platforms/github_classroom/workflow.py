"""The GitHub workflow of a student's repository: it installs the released grader by its hash and grades every push.

Its text follows from the manifest of the release alone, so the grader, which contains this module, can tell whether the
workflow in a checkout is still the released one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gpudojo.model.catalogue import day as exercises_of
from gpudojo.release.manifest import WORKFLOW, Manifest, dumped, hashed, manifest

PYTHON: Final = "3.12"

TEMPLATE: Final = """\
# Grades every push with the grader of this release. Changes to this file are reported to your teacher.
name: Autograding
on:
  push:
    branches: ["**"]
  repository_dispatch:
  workflow_dispatch:
permissions:
  contents: read
concurrency:
  group: autograding-${{ github.ref }}
  cancel-in-progress: true
jobs:
  autograding:
    runs-on: ubuntu-24.04
    timeout-minutes: 20
    if: github.actor != 'github-classroom[bot]' && vars.GPUDOJO_CLASSROOM != 'off'
    steps:
      - name: Check out the submission
        uses: actions/checkout@v5
        with:
          fetch-depth: 0
          persist-credentials: false
      - name: Set up Python
        uses: actions/setup-python@v6
        with:
          python-version: "@PYTHON@"
      - name: Allow user namespaces, which isolation needs
        run: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 || true
      - name: Install the pinned grader
        working-directory: ${{ runner.temp }}
        env:
          PINNED: "@HASH@"
          WHEEL: "@WHEEL@"
          WHEEL_URL: ${{ vars.GPUDOJO_WHEEL_URL }}
          PIP_EXTRA_INDEX_URL: ${{ vars.GPUDOJO_TORCH_INDEX }}
          REQUIREMENTS: |
@REQUIREMENTS@
        run: |
@INSTALL@
      - name: Grade
        id: grade
        working-directory: ${{ runner.temp }}
        env:
          DOJO_RELEASE: '@MANIFEST@'
        run: '"$RUNNER_TEMP/dojo/bin/python" -I -m gpudojo classroom "$GITHUB_WORKSPACE" --day @DAY@ --for github'
      - name: Report
        uses: classroom-resources/autograding-grading-reporter@v1
        env:
@RESULTS@
        with:
          runners: @RUNNERS@
"""

# Nothing of the checkout is trusted: the wheel may come from anywhere, because its hash is written here.
INSTALL: Final = """\
set -euo pipefail
wheel="$RUNNER_TEMP/${WHEEL##*/}"
pinned() { [ -f "$wheel" ] && [ "$(sha256sum < "$wheel" | cut -d ' ' -f 1)" = "$PINNED" ]; }
if [ -f "$GITHUB_WORKSPACE/$WHEEL" ]; then cp -- "$GITHUB_WORKSPACE/$WHEEL" "$wheel"; fi
if ! pinned; then
  for commit in $(git -C "$GITHUB_WORKSPACE" rev-list --all -- "$WHEEL"); do
    if git -C "$GITHUB_WORKSPACE" cat-file blob "$commit:$WHEEL" > "$wheel" 2> /dev/null && pinned; then break; fi
  done
fi
if ! pinned && [ -n "$WHEEL_URL" ]; then curl -fsSL --retry 3 -o "$wheel" -- "$WHEEL_URL" || true; fi
if ! pinned; then
  echo "::error title=The grader is missing::Neither vendor/ nor the history has the released wheel."
  exit 1
fi
python -I -m venv "$RUNNER_TEMP/dojo"
pip() { "$RUNNER_TEMP/dojo/bin/python" -I -m pip --disable-pip-version-check "$@"; }
printf '%s' "$REQUIREMENTS" > requirements-pinned.txt
printf '%s --hash=sha256:%s\\n' "$wheel" "$PINNED" > grader-pinned.txt
pip install --quiet -r requirements-pinned.txt
pip install --quiet --no-deps --require-hashes -r grader-pinned.txt
"""


def seal(files: Mapping[str, bytes], day: str) -> dict[str, bytes]:
    """The workflow, for a repository that is otherwise complete."""
    return {WORKFLOW: workflow(manifest(files, day)).encode()}


def workflow(released: Manifest) -> str:
    """The text of the workflow that grades a release."""
    runners = runner_ids(released.day)
    results = [f"{runner.upper()}_RESULTS: ${{{{ steps.grade.outputs.{runner} }}}}" for runner in runners]
    # It cannot contain its own hash; whoever reads the manifest makes the text again and compares.
    rest = Manifest(
        released.day,
        released.wheel,
        {path: hash_ for path, hash_ in released.files.items() if path != WORKFLOW},
        released.requirements,
    )
    filled = {
        "@DAY@": released.day,
        "@PYTHON@": PYTHON,
        "@HASH@": released.files[released.wheel],
        "@WHEEL@": released.wheel,
        "@REQUIREMENTS@": _indented("\n".join(released.requirements), 12),
        "@INSTALL@": _indented(INSTALL.rstrip("\n"), 10),
        "@MANIFEST@": dumped(rest).replace("'", "''"),
        "@RESULTS@": _indented("\n".join(results), 10),
        "@RUNNERS@": ",".join(runners),
    }
    return re.sub("@[A-Z]+@", lambda found: filled[found[0]], TEMPLATE)


def with_workflow(released: Manifest) -> Manifest:
    """The manifest with the hash of the workflow it stands in."""
    files = dict(released.files) | {WORKFLOW: hashed(workflow(released).encode())}
    return Manifest(released.day, released.wheel, files, released.requirements)


def runner_ids(day: str) -> list[str]:
    """The ids under which the exporter hands each exercise to GitHub Classroom's reporter."""
    return [f"exercise{exercise.stem.partition('_')[0]}" for exercise in exercises_of(day)]


def _indented(text: str, width: int) -> str:
    return "\n".join(" " * width + line for line in text.splitlines())
