"""What do hostile solutions leave behind? Nothing, in any test of this folder: what they replace is put back."""

from tests.solutions import shared_names_put_back

__all__ = ["shared_names_put_back"]
