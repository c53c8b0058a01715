"""How does one look at a timeline where there is only text? Two lanes, walls, arrows, and the memory below."""

from graders.timelines.columns import Column, columns
from graders.timelines.drawing import Piece, compared, drawn, legend, plain

__all__ = ["Column", "Piece", "columns", "compared", "drawn", "legend", "plain"]
