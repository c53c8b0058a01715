"""What does a function do in two processes at once? Both join one gloo group, call it, and report plain JSON.

Where the system can fork, the two are children of this process and torch is there already (0.1 s instead of 3 s).
Nothing that comes back is unpickled: it was written by the student's process.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from graders.evidence import Raised
from graders.probes.calling import StudentRaised
from graders.probes.late import nn, torch
from graders.probes.loading import load, raised

RANKS: Final = 2
SECONDS: Final = 4.0
ALONE: Final = "one process waited here for the other, which never came: both have to make the same calls"


def _way() -> str:
    # A Mac can fork too, but its system libraries do not survive it.
    return "fork" if sys.platform == "linux" else "spawn"


def two_ranks(path: Path, function: str) -> list[dict[str, Any]]:
    """What each rank found; raises what the student's function raised in either."""
    context = multiprocessing.get_context(_way())
    processes, ends = [], []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads: the children keep to one
        try:
            for rank in range(RANKS):
                here, there = context.Pipe(duplex=False)
                process = context.Process(  # type: ignore[attr-defined]
                    target=_rank, args=(there, rank, str(path), function, os.path.join(folder, "meeting")), daemon=True
                )
                process.start()
                there.close()
                processes.append(process)
                ends.append(here)
            found = _answers(ends, SECONDS if _way() == "fork" else 6 * SECONDS)
        finally:
            for process in processes:
                process.kill()
                process.join()
    # A rank that raised leaves the other one waiting, so the first one to say something of its own says it all.
    for answer in sorted(found, key=lambda answer: answer.get("at", 0.0)):
        if "raised" in answer:
            raise StudentRaised(Raised(answer["raised"], answer["text"], answer["line"]))
    return found


def _answers(ends: list[Any], seconds: float) -> list[dict[str, Any]]:
    until = time.monotonic() + seconds
    found: list[dict[str, Any]] = []
    for end in ends:
        nothing = {"raised": "TimeoutError", "text": f"the processes still waited for each other after {seconds:g} s"}
        answer: dict[str, Any] = {**nothing, "line": None, "at": float("inf")}
        if end.poll(max(0.0, until - time.monotonic())):
            with contextlib.suppress(EOFError, ValueError):
                answer = json.loads(end.recv_bytes(1 << 20))
        found.append(answer)
    return found


def _rank(end: Any, rank: int, path: str, function: str, meeting: str) -> None:
    """One of the processes."""
    torch.set_num_threads(1)  # threads do not survive a fork, and waiting for them takes for ever
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed: Any = torch.distributed
    student = load(Path(path)).names[function]
    facts: dict[str, Any] = {}
    try:
        wait = timedelta(seconds=SECONDS - 1.5)
        distributed.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=RANKS, timeout=wait)
        for name, model in (("some", _model(rank, 1)), ("none", _model(rank, None))):
            facts[name] = _averaged(student, model, path)
        distributed.barrier()  # nobody leaves while the other one still reads
        distributed.destroy_process_group()
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        facts["alone"] = _averaged(student, _model(rank, 1), path)
    except StudentRaised as error:
        told = error.evidence
        said = ALONE if "Timed out" in told.message or "closed by peer" in told.message else told.message
        facts = {"raised": told.type, "text": said, "line": told.line, "at": time.monotonic()}
    except RuntimeError:  # the group broke while this rank waited in our own barrier: the other one knows why
        facts = {"raised": "RuntimeError", "text": ALONE, "line": None, "at": time.monotonic() + SECONDS}
    end.send_bytes(json.dumps(facts).encode())
    end.close()
    os._exit(0)  # no cleaning up: what was inherited from the parent is the parent's


def _averaged(student: Any, model: Any, path: str) -> dict[str, Any]:
    weights = [p.detach().clone() for p in model.parameters()]
    try:
        student(model)
    except (Exception, SystemExit) as error:
        raise StudentRaised(raised(error, Path(path))) from None
    pairs = zip(model.parameters(), weights, strict=True)
    return {
        "gradients": [None if p.grad is None else p.grad.flatten().tolist() for p in model.parameters()],
        "weights_kept": all(bool(torch.equal(p.detach(), before)) for p, before in pairs),
    }


def _model(rank: int, gradients: int | None) -> Any:
    """Two layers, the same on every rank, and gradients that are the rank's own; one bias has none."""
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.fill_(0.25 * (number + 1) + rank)  # different weights would show if they were averaged
            if gradients is not None and number != 1:
                values = torch.arange(parameter.numel(), dtype=torch.float32).reshape(parameter.shape)
                parameter.grad = values * (1 + 4 * rank) + number + 2 * rank
    return model
