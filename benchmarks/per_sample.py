"""Per-sample gradients in one batched pass, against one call of a compiled gradient a sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import bbsvi
from benchmarks.reporting import report
from benchmarks.timing import medians

TARGET_RATIO = 100  # a Python loop takes at least this many times as long


def square(x: Any) -> Any:
    return x**2


@tf.function(autograph=False)
def batched(x: Any) -> Any:
    return bbsvi.per_sample_gradients(square, x)


@tf.function(autograph=False)
def of_one(x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = square(x)
    return tape.gradient(y, x)


@tf.function(autograph=False)
def by_jacobian(x: Any) -> Any:
    """The [S, S] Jacobian of all values by all samples, of which only the diagonal is wanted."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = square(x)
    return tf.linalg.diag_part(tape.jacobian(y, x))


def main(quick: bool, output: Path) -> None:
    num_points, num_samples, repeats = 100_000, 1000, 5 if quick else 21
    points = tf.constant(np.random.default_rng(0).normal(size=num_points), tf.float32)
    np.testing.assert_allclose(batched(points), 2 * points, rtol=1e-6)

    samples = points[:num_samples]
    singles = tf.unstack(samples)
    ways = {
        "per_sample_gradients": lambda: batched(samples).numpy(),
        "tape.jacobian, its diagonal": lambda: by_jacobian(samples).numpy(),
        "a Python loop over samples": lambda: np.array([of_one(x).numpy() for x in singles]),
    }
    for way in ways.values():
        np.testing.assert_allclose(way(), 2 * samples, rtol=1e-6)
    seconds = medians(ways, repeats)
    ours = seconds["per_sample_gradients"]
    rows = [{"way": way, "milliseconds": 1e3 * s, "times_ours": s / ours} for way, s in seconds.items()]
    ratio = rows[-1]["times_ours"]
    report(
        "per_sample",
        rows,
        output,
        settings={"function": "x ** 2", "samples": num_samples, "repeats": repeats, "points_checked": num_points},
        notes=[
            f"Equal to 2 x at all {num_points:,} points, in one call of the graph.",
            f"One batched call against a loop: {ratio:.0f} times faster, wanted {TARGET_RATIO}: "
            f"{'met' if ratio >= TARGET_RATIO else 'MISSED'}.",
        ],
    )
