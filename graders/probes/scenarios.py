"""How are several scenarios looked at under one bench? One after the other; an error in one does not hide the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graders.errors import DeviceClosed
from graders.probes.calling import Call, StudentRaised


def tried(look: Callable[..., dict[str, Any]], call: Call, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """What `look` sees, or the error the student's function raised: which check it belongs to, the checks know."""
    try:
        return look(call, *args, **kwargs)
    except StudentRaised as error:
        return {"raised": described(error)}


def described(error: StudentRaised) -> dict[str, Any]:
    """An error of the student's; one about a device that is closed goes on, because a fresh start may mend it.

    So does one about memory, which is a matter of the whole submission: an instructor is told of it.
    """
    evidence = error.evidence
    if evidence.type == DeviceClosed.__name__ or evidence.out_of_memory:
        raise error
    return {"type": evidence.type, "message": evidence.message[:500], "line": evidence.line}
