"""The record of iterates, bounded in size."""

from __future__ import annotations

import numpy as np

_MAX_ROWS, _MIN_ROWS = 512, 128
_MAX_NUMBERS = 2**24  # 128 MB of float64


class Iterates:
    """Parameters averaged over consecutive blocks of steps, oldest first.

    When the record is full, neighbours are merged and a row covers twice as many steps, so that
    memory is bounded however long the run and however many the parameters.
    """

    def __init__(self, num_parameters: int) -> None:
        self._capacity = min(_MAX_ROWS, max(_MIN_ROWS, _MAX_NUMBERS // max(num_parameters, 1) // 2 * 2))
        self._rows = np.empty((self._capacity, num_parameters))
        self._count = 0
        self._pending = np.zeros(num_parameters)
        self._num_pending = 0
        self._merged = 1  # recorded blocks in one row

    def extend(self, blocks: np.ndarray) -> None:
        """blocks: [n, P], in order."""
        for block in blocks:
            self._pending += block
            self._num_pending += 1
            if self._num_pending < self._merged:
                continue
            self._rows[self._count] = self._pending / self._merged
            self._count += 1
            self._pending[:], self._num_pending = 0, 0
            if self._count == self._capacity:
                self._count //= 2
                self._rows[: self._count] = (self._rows[::2] + self._rows[1::2]) / 2
                self._merged *= 2

    def __len__(self) -> int:
        return self._count

    def last(self, count: int) -> np.ndarray:
        """A view of the newest `count` rows, [count, P]."""
        return self._rows[self._count - count : self._count]
