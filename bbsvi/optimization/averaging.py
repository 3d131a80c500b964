"""The record of iterates, bounded in size, and their averages over a window."""

from __future__ import annotations

import numpy as np

_MAX_ROWS = 512


class Iterates:
    """Parameters averaged over consecutive blocks of steps, oldest first.

    Past `_MAX_ROWS` rows neighbours are merged and a block covers twice as many steps, so that
    memory is bounded however long the run.
    """

    def __init__(self) -> None:
        self._rows: list[np.ndarray] = []
        self._pending: list[np.ndarray] = []
        self._merged = 1  # recorded blocks in one row

    def extend(self, blocks: np.ndarray) -> None:
        """blocks: [n, P], in order."""
        for block in blocks:
            self._pending.append(np.asarray(block, np.float64))
            if len(self._pending) == self._merged:
                self._rows.append(np.mean(self._pending, axis=0))
                self._pending = []
            if len(self._rows) == _MAX_ROWS:
                self._rows = [(a + b) / 2 for a, b in zip(self._rows[::2], self._rows[1::2], strict=True)]
                self._merged *= 2

    def __len__(self) -> int:
        return len(self._rows)

    def last(self, count: int) -> np.ndarray:
        """The newest `count` rows, [count, P]."""
        return np.stack(self._rows[len(self._rows) - count :])
