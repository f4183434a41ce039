"""A linear model of the arrival delay, by least squares in closed form. Pure: numpy only.

Numbers are features as they are; each category ("dest=IAH") has a weight in a slot chosen by its hash, so the model
needs no list of categories and no second pass over the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from zlib import crc32

import numpy as np

CATEGORIES: Final = ("carrier", "origin", "dest", "hour")
NUMBERS: Final = ("dep_delay", "distance")
SLOTS: Final = 256
WIDTH: Final = SLOTS + len(NUMBERS) + 1
RIDGE: Final = 10.0
"""Penalty of the squared weights: categories with few flights stay near the mean."""
MILES: Final = 1_000.0
"""Distances are scaled to about one, so that the penalty treats them like the other features."""

Array = np.ndarray[Any, np.dtype[Any]]
Columns = Mapping[str, Array]


def features(columns: Columns) -> Array:
    """Return a row of WIDTH numbers for each flight."""
    count = len(columns["dep_delay"])
    matrix = np.zeros((count, WIDTH))
    rows = np.arange(count)
    for name in CATEGORIES:
        values, which = np.unique(np.asarray(columns[name]).astype(str), return_inverse=True)
        slots = np.array([crc32(f"{name}={value}".encode()) % SLOTS for value in values], dtype=np.int64)
        matrix[rows, slots[which]] += 1.0
    matrix[:, SLOTS] = columns["dep_delay"]
    matrix[:, SLOTS + 1] = columns["distance"] / MILES
    matrix[:, -1] = 1.0
    return matrix


@dataclass(slots=True)
class LeastSquares:
    """Sums over the flights seen so far; batches may come in any order and be of any size."""

    squares: Array = field(default_factory=lambda: np.zeros((WIDTH, WIDTH)))
    products: Array = field(default_factory=lambda: np.zeros(WIDTH))
    count: int = 0
    arrivals: float = 0.0

    def add(self, columns: Columns) -> None:
        """Add flights with their known ``arr_delay``."""
        matrix, arrived = features(columns), np.asarray(columns["arr_delay"], dtype=float)
        self.squares += matrix.T @ matrix
        self.products += matrix.T @ arrived
        self.count += len(arrived)
        self.arrivals += float(arrived.sum())

    def mean(self) -> float:
        """Mean arrival delay in minutes."""
        return self.arrivals / self.count

    def weights(self) -> Array:
        """Return the weights of the features; the constant is not penalised."""
        penalty = np.full(WIDTH, RIDGE)
        penalty[-1] = 1e-9
        solved: Array = np.linalg.solve(self.squares + np.diag(penalty), self.products)
        return solved


def predict(weights: Array, columns: Columns) -> Array:
    """Return the predicted arrival delay of each flight, in minutes."""
    predicted: Array = features(columns) @ weights
    return predicted


def rmse(predicted: Array | float, actual: Array) -> float:
    """Root of the mean squared error, in minutes."""
    return float(np.sqrt(np.mean((np.asarray(predicted) - actual) ** 2)))
