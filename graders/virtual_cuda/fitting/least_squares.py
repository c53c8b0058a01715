"""Finds figures by least squares over relative errors.

What fits badly counts less and less, and what the equations say little about is pulled towards its
usual value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

USUAL_PULL: Final = 0.02
_ROUNDS: Final = 30
_STEPS: Final = 200  # of each round
_SMALL_ERROR: Final = 0.08  # below it, all errors weigh the same


class Equation(NamedTuple):
    """A time in seconds, and how often each figure is in it, by the figure's name."""

    coefficients: Mapping[Any, float]
    seconds: float
    weight: float


class UsualFigure(NamedTuple):
    """What a figure usually is, and the least share of that which may be found."""

    value: float
    least_share: float


def solve_equations(
    equations: Sequence[Equation], usual: Mapping[Any, UsualFigure], pull: float = USUAL_PULL
) -> dict[Any, float]:
    """The figures with which the sums come close to the seconds, relatively; in three digits.

    Only the figures of `usual` are found. One that no equation has is left out. `pull` is how much
    the usual figures count.
    """
    names = [name for name in usual if _is_in_any(name, equations)]
    if not names:
        return {}
    # Everything relative: to the seconds, and to the usual figures.
    of_names = [usual[name] for name in names]
    scale = np.array([figure.value for figure in of_names])
    least = [figure.least_share for figure in of_names]
    matrix = _relative_coefficients(equations, names) * scale
    # Again and again, so that what fits badly counts less.
    first_weights = np.array([equation.weight for equation in equations])
    weights = first_weights
    found = np.ones(len(names))
    for _ in range(_ROUNDS):
        _improve(found, matrix, weights, least, pull)
        ratios = matrix @ found
        weights = first_weights * _weights_by_error(ratios)
    figures = {}
    for name, value in zip(names, found * scale, strict=True):
        three_digits = f"{value:.3g}"
        figures[name] = float(three_digits)
    return figures


def _is_in_any(name: Any, equations: Sequence[Equation]) -> bool:
    """True if a figure is in an equation."""
    return any(equation.coefficients.get(name) for equation in equations)


def _relative_coefficients(equations: Sequence[Equation], names: Sequence[Any]) -> np.ndarray:
    """A row for each equation, a column for each name, divided by the seconds of the equation."""
    rows = []
    for equation in equations:
        row = [equation.coefficients.get(name, 0.0) for name in names]
        rows.append(np.array(row) / equation.seconds)
    return np.array(rows)


def _improve(
    found: np.ndarray,
    matrix: np.ndarray,
    weights: np.ndarray,
    least: Sequence[float],
    pull: float,
) -> None:
    """Change `found` towards the least squares: one coefficient after the other, many times.

    `matrix` and `weights` are the equations, whose right sides are 1. No coefficient gets below its
    share in `least`; `pull` is how much it counts that each is usually 1.
    """
    weighted = matrix * weights[:, None]
    square = weighted.T @ matrix + pull * np.eye(len(found))
    right = weighted.sum(axis=0) + pull
    for _ in range(_STEPS):
        for index in range(len(found)):
            row = square[index]
            rest = right[index] - row @ found
            value = found[index] + rest / row[index]
            found[index] = max(least[index], value)


def _weights_by_error(ratios: np.ndarray) -> np.ndarray:
    """The weights of equations, by the ratios of what is found to what is wanted.

    Twice as long and half as long weigh the same; what is far from 1 weighs less.
    """
    ratios = np.maximum(ratios, 1e-9)
    error = np.log(ratios)
    difference = ratios - 1
    # Where both are 0, their quotient is 1.
    slope = np.where(error, error, 1) / np.where(error, difference, 1)
    divisor = np.maximum(abs(error), _SMALL_ERROR)
    weights: np.ndarray = slope**2 / divisor
    return weights
