"""How is a thing that came back called in a sentence? By its class with an article, and None by its name."""

from __future__ import annotations


def called(kind: str) -> str:
    """In words: "a list", "an int", "an ndarray", and "None" for a NoneType."""
    if kind == "NoneType":
        return "None"
    vowel = kind[:1].lower() in tuple("aeiou") or kind == "ndarray"  # spoken "en-dee-array"
    return f"{'an' if vowel else 'a'} {kind}"
