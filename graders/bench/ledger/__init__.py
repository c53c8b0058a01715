"""The ledger: what happened on a bench, where in the student's code, and the questions one may ask about it."""

from graders.bench.ledger.ledger import Ledger, records_of
from graders.bench.ledger.records import (
    Allocation,
    Backward,
    Direction,
    Forward,
    Operation,
    OptimizerStep,
    Record,
    ScalerCall,
    Site,
    Span,
    Sync,
    Transfer,
)
from graders.bench.ledger.rows import Row
from graders.bench.ledger.trace import trace_of

__all__ = [
    "Allocation",
    "Backward",
    "Direction",
    "Forward",
    "Ledger",
    "Operation",
    "OptimizerStep",
    "Record",
    "Row",
    "ScalerCall",
    "Site",
    "Span",
    "Sync",
    "Transfer",
    "records_of",
    "trace_of",
]
