"""08: fewer transfers. What came back to the host and how often, what was made where, and what was pinned."""

from graders.day8.minimizing_transfers import checks_loops, checks_tensors, probes_loops, probes_tensors
from graders.day8.minimizing_transfers.functions import exercise

__all__ = ["checks_loops", "checks_tensors", "exercise", "probes_loops", "probes_tensors"]
