"""Which seeds do scenarios get? Numbers drawn from the instructor's secret, one for each scenario.

A child is given the numbers it needs. They do not lead back to the secret, nor to those of another class.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from graders.curriculum.exercise import Exercise

BITS = 31  # what every generator takes


def seeds(secret: str, exercises: Iterable[Exercise]) -> dict[str, int]:
    """By "exercise::function::probe"."""
    keys = [f"{e.stem}::{f.name}::{p.name}" for e in exercises for f in e.functions for p in f.probes]
    return {key: number(secret, key) for key in keys}


def number(secret: str, key: str) -> int:
    """One number, which does not lead back to the secret."""
    digest = hmac.digest(secret.encode(), key.encode(), hashlib.sha256)
    return int.from_bytes(digest[:8], "big") % (1 << BITS)


def name_of(secret: str) -> str:
    """A name by which a secret can be recognised and not guessed."""
    return hashlib.sha256(f"gpudojo seed {secret}".encode()).hexdigest()[:16]
