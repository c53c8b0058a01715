"""The ledger of a device: its records, questions about them, and pictures of them.

A ledger is the list of everything that a virtual device did. This package is public, and free of
torch.
"""

from __future__ import annotations

from virtual_cuda.ledger import questions, records, rows
from virtual_cuda.ledger.ledger import Ledger, records_of
from virtual_cuda.ledger.line_table import (
    COLUMNS,
    LineRow,
    ModelledSeconds,
    columns_of,
    draw_table,
    file_rows,
    line_rows,
    totals,
)
from virtual_cuda.ledger.records import (
    Allocation,
    Backward,
    Collective,
    Forward,
    Operation,
    OptimizerStep,
    Record,
    ScalerCall,
    Site,
    Sync,
    Transfer,
)
from virtual_cuda.ledger.texts import count_phrase, duration, write_similar
from virtual_cuda.ledger.timeline import (
    MOST_CALLS,
    Lane,
    Scaled,
    Timeline,
    TimelineEvent,
    check_timeline,
    decode_timeline,
    same_call,
    timeline_of,
)
from virtual_cuda.ledger.timeline_text import (
    MARKS,
    draw_timeline,
    mark_of,
    plain_lines,
    timeline_legend,
)
from virtual_cuda.ledger.trace import trace_of

__all__ = [
    "COLUMNS",
    "MARKS",
    "MOST_CALLS",
    "Allocation",
    "Backward",
    "Collective",
    "Forward",
    "Lane",
    "Ledger",
    "LineRow",
    "ModelledSeconds",
    "Operation",
    "OptimizerStep",
    "Record",
    "Scaled",
    "ScalerCall",
    "Site",
    "Sync",
    "Timeline",
    "TimelineEvent",
    "Transfer",
    "check_timeline",
    "columns_of",
    "count_phrase",
    "decode_timeline",
    "draw_table",
    "draw_timeline",
    "duration",
    "file_rows",
    "line_rows",
    "mark_of",
    "plain_lines",
    "questions",
    "records",
    "records_of",
    "rows",
    "same_call",
    "timeline_legend",
    "timeline_of",
    "totals",
    "trace_of",
    "write_similar",
]
