"""What every test of this repository may use.

Nothing here ignores a folder: the files under exercises/ and reference/ are collected by the plugin, as students' are.
"""

import os

import pytest

# A process that has used a real GPU cannot open a virtual one. The tests that want the real one are run by naming it:
# CUDA_VISIBLE_DEVICES=0 python -m pytest tests/bench/test_real.py
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

pytest_plugins = ["pytester"]

pytest.register_assert_rewrite("tests.solutions")

# Files that take longest, though some have few tests: begun last, one process would run them while the others wait.
LONGEST = ("exploits/test_exploits.py", "cluster/", "day8/test_solutions.py", "conformance/", "plugin/", "release/")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config.option, "loadscopereorder"):  # pytest-xdist's own order is that of the number of tests
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def order(item: pytest.Item) -> int:
        return next((i for i, part in enumerate(LONGEST) if item.nodeid.startswith(f"tests/{part}")), len(LONGEST))

    items.sort(key=order)
