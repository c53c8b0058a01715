"""Fixtures and options of every test run in this repository.

Nothing here ignores a folder: the files under exercises/ and reference/ are collected by the plugin, as students' are.
"""

import os

import pytest
from gpudojo.pytest_plugin import short_options as pytest_addoption  # noqa: F401 - `--hints` for `--dojo-hints`

# A process that has used a real GPU cannot open a virtual one. The tests that want the real one are run by naming it:
# CUDA_VISIBLE_DEVICES=0 python -m pytest tests/virtual_cuda/test_real.py
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

pytest_plugins = ["pytester"]

pytest.register_assert_rewrite("tests.solutions")
