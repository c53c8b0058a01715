"""How do results look? One page for the class and one for each student, made from what is stored; no torch."""

from graders.report.writing import Wanted, write_report

__all__ = ["Wanted", "write_report"]
