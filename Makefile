# The commands a developer needs. `make` lists them.
PYTHON ?= python3

help:  ## list these commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup:  ## make .venv with everything that is needed to work on gpudojo
	$(PYTHON) -m venv .venv
	.venv/bin/pip install -c constraints.txt torch
	.venv/bin/pip install -c constraints.txt -e '.[dev]'

test:  ## run the tests, without the slow ones
	.venv/bin/python -m pytest -n auto --dist worksteal

test-ci:  ## run the tests that CI runs, the slow ones too
	.venv/bin/python -m pytest -n auto --dist worksteal -m "not weekly"

test-all:  ## run all tests, also those that a workflow runs every week
	.venv/bin/python -m pytest -n auto --dist worksteal -m "slow or not slow"

check:  ## lint, format, types and layers
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	printf '%s\n' linux darwin win32 | xargs -P 3 -I{} .venv/bin/mypy --platform {} --cache-dir .mypy_cache/{}
	.venv/bin/lint-imports --no-logo

example:  ## grade the example class and make its report
	.venv/bin/dojo grade examples/class --out results
	.venv/bin/dojo report results

matrix:  ## try releases of torch; TORCH=2.15 PYTHON=3.13 PARTS="class fixture" for some, WRITE=1 for docs/releases.md, KEEP=1
	.venv/bin/nox $(if $(TORCH),-s "matrix-$(or $(filter 3.%,$(PYTHON)),3.11)(torch='$(TORCH)')") -- $(PARTS) $(if $(WRITE),--write) $(if $(KEEP),--keep)

gpu:  ## run all that needs a real GPU, and print a table; PARTS="class watch" for some of it
	$(or $(wildcard .venv/bin/python),$(PYTHON)) -m benchmarks.check_gpu $(PARTS)

.PHONY: help setup test test-ci test-all check example matrix gpu
