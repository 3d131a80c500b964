"""Timing on a machine that others share: warm-up, interleaved repeats, medians."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any


def medians(functions: Mapping[Any, Callable[[], Any]], repeats: int) -> dict[Any, float]:
    """Median seconds of one call of each function.

    Each is called once before the clock runs, to compile; then all take turns, so that a busy
    moment of the machine falls on all of them and the ratios of the medians hold.

    Args:
      functions: {name: function that returns only when its work is done}.
      repeats: timed calls of each.
    """
    for function in functions.values():
        function()
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            begin = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(times) for name, times in seconds.items()}
