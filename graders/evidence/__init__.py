"""What did a student's function do? Plain, typed, versioned data: it comes from untrusted code."""

from graders.evidence.coding import decode, encode, validated
from graders.evidence.structs import VERSION, Array, Evidence, Fact, Observation, Raised, Status

__all__ = ["VERSION", "Array", "Evidence", "Fact", "Observation", "Raised", "Status", "decode", "encode", "validated"]
