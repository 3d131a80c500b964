"""The trace of a fit, step by step."""

from __future__ import annotations

import time

import numpy as np

from bbsvi.optimization.loop import CHUNK, Record

_NAMES = ("elbo", "elbo_standard_error", "gradient_norm", "gradient_snr", "dropped_draws", "seconds")


class History:
    """Records of runs of steps, joined; `seconds` are counted from its creation."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._records: list[Record] = []
        self._seconds: list[np.ndarray] = []

    def seconds(self) -> float:
        """Since the fit began."""
        return time.perf_counter() - self._begin

    def keep(self, record: Record) -> None:
        """Add what a call left; time is spread evenly over the steps of one compiled call."""
        before = float(self._seconds[-1][-1]) if self._seconds else 0.0
        count = len(record.elbo)
        self._seconds.append(before + (self.seconds() - before) * np.arange(1, count + 1) / count)
        self._records.append(record)

    def recent_elbo(self) -> tuple[float, float]:
        """Mean ELBO over about the last chunk and its standard error, from the steps' own variances."""
        elbo, variance = self._recent("elbo"), self._recent("elbo_variance")
        taken = np.isfinite(elbo)
        if not taken.any():
            return np.nan, np.nan
        elbo, variance = elbo[taken], variance[taken]
        if np.isnan(variance).any():  # one draw a step has no variance of its own
            variance = np.full(len(elbo), elbo.var())
        return float(elbo.mean()), float(np.sqrt(variance.sum()) / len(elbo))

    def recently_taken(self) -> np.ndarray:
        """Which of the last chunk's steps were taken, bool."""
        return self._recent("was_taken")

    def _recent(self, field: str) -> np.ndarray:
        parts: list[np.ndarray] = []
        for record in reversed(self._records):
            parts.insert(0, getattr(record, field))
            if sum(map(len, parts)) >= CHUNK:
                break
        return np.concatenate(parts)[-CHUNK:]

    def arrays(self) -> dict[str, np.ndarray]:
        """{"step", "elbo", ...}, one entry a step."""
        if not self._records:
            return {"step": np.zeros(0, int)} | {name: np.zeros(0) for name in _NAMES}
        joined = {
            field: np.concatenate([getattr(record, field) for record in self._records])
            for field in Record._fields
            if field != "iterates"
        }
        values = (
            joined["elbo"],
            np.sqrt(joined["elbo_variance"]),
            joined["gradient_norm"],
            joined["gradient_snr"],
            joined["num_dropped"],
            np.concatenate(self._seconds),
        )
        return {"step": np.arange(1, len(joined["elbo"]) + 1)} | dict(zip(_NAMES, values, strict=True))
