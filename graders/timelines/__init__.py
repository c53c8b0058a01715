"""How does one look at a timeline where there is only text? Two lanes, walls, arrows, and the memory below."""

from graders.timelines.columns import Column, columns
from graders.timelines.drawing import LEGEND, Piece, compared, drawn, plain

__all__ = ["LEGEND", "Column", "Piece", "columns", "compared", "drawn", "plain"]
