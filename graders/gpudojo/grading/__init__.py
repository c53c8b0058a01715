"""Grades one file: load, observe, judge, explain."""

from __future__ import annotations

import os

# torch's profiler writes a line to stderr whenever it starts and stops. It reads this when torch
# is imported.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
