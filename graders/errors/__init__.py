"""What can go wrong in gpudojo itself, as opposed to in a student's code.

An error keeps its data as attributes (and in `args`, so that it survives pickling); its text is made last, in
`__str__`, so that a caller can reword it and a test can pin it. There is a room for each layer that raises them.
"""

from __future__ import annotations

from graders.errors.authoring import BadName, CannotBegin, NameTaken
from graders.errors.base import DojoError
from graders.errors.bench import (
    AlreadyOpen,
    BadDeviceCount,
    BadSize,
    BenchError,
    DeviceClosed,
    NoSuchDevice,
    RealDeviceInUse,
    SelectionOnly,
    TorchUnsupported,
)
from graders.errors.grading import BadClass, BadParcel, BadWorker, NoCluster, NoNursery
from graders.errors.judging import BadEvidence, NoReference, NoSuchSeed, NotRecorded, NotSprites, ReferenceFails
from graders.errors.publishing import BadMarkers, BadResults, CannotExport, CannotRelease, CannotReport

__all__ = [
    "AlreadyOpen",
    "BadClass",
    "BadDeviceCount",
    "BadEvidence",
    "BadMarkers",
    "BadName",
    "BadParcel",
    "BadResults",
    "BadSize",
    "BadWorker",
    "BenchError",
    "CannotBegin",
    "CannotExport",
    "CannotRelease",
    "CannotReport",
    "DeviceClosed",
    "DojoError",
    "NameTaken",
    "NoCluster",
    "NoNursery",
    "NoReference",
    "NoSuchDevice",
    "NoSuchSeed",
    "NotRecorded",
    "NotSprites",
    "RealDeviceInUse",
    "ReferenceFails",
    "SelectionOnly",
    "TorchUnsupported",
]
