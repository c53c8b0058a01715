"""The ledger of a device: its records, questions about them, and pictures of them. Public, and free of torch."""

from __future__ import annotations

from virtual_cuda.ledger import questions, records
from virtual_cuda.ledger.drawing import MARKS, draw_timeline, duration, mark_of, plain_lines, timeline_legend
from virtual_cuda.ledger.exports import (
    COLUMNS,
    LineRow,
    columns_of,
    draw_table,
    file_rows,
    line_rows,
    totals,
    trace_of,
)
from virtual_cuda.ledger.ledger import Ledger, records_of
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
from virtual_cuda.ledger.timeline import (
    MOST_CALLS,
    Lane,
    Scaled,
    Timeline,
    TimelineEvent,
    check_timeline,
    same_call,
    timeline_of,
)

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
    "same_call",
    "timeline_legend",
    "timeline_of",
    "totals",
    "trace_of",
]
