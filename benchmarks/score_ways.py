"""The ways in TensorFlow to the same three contractions of the scores: sum w h, sum w h^2 and ||h||^2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import bbsvi
from bbsvi.families.base import Draws
from bbsvi.scores import DenseScores, Scores
from benchmarks.score_problems import Problem, broadcast_log_prob, closed_form

BACKWARD, OURS = "one backward pass", "bbsvi"
VECTORIZED, BROADCAST, CLOSED = "vectorized_map of the gradient", "parameter broadcast", "closed form"
JACOBIAN, ONE_CALL = "tape.jacobian", "one call a sample"

# (draws, w) -> sum w h of each variable, sum w h^2 of each variable, ||h||^2; the backward pass has the first alone.
Contractions = tuple[list[Any], list[Any], Any]
Way = Callable[[], tuple]


def contractions(scores: Scores, w: Any) -> Contractions:
    return scores.weighted_sum(w), scores.weighted_square_sum(w), scores.squared_norms()


def ways(of: Problem, *, jit_compile: bool, slow: bool) -> dict[str, Way]:
    """{name: run}, compiled functions of the draws and weights; `slow` adds those for small sizes only."""

    def backward(draws: Any, w: Any) -> tuple:
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(w * of.log_prob(draws))
        return (tape.gradient(total, of.variables),)

    def ours(draws: Any, w: Any) -> Contractions:
        nothing = {"z": tf.zeros(draws.shape[:1])}
        return contractions(of.family.scores(Draws({"z": draws}, {"z": draws}, nothing)), w)

    def vectorized(draws: Any, w: Any) -> Contractions:
        return contractions(DenseScores(bbsvi.per_sample_gradients(of.log_prob, draws, of.variables)), w)

    def broadcast(draws: Any, w: Any) -> Contractions:
        tiled = [tf.repeat(variable[None], of.num_draws, axis=0) for variable in of.variables]
        with tf.GradientTape() as tape:
            tape.watch(tiled)
            total = tf.reduce_sum(log_prob_of_tiled(tiled, draws))
        return contractions(DenseScores(tape.gradient(total, tiled)), w)

    def closed(draws: Any, w: Any) -> Contractions:
        return contractions(DenseScores(formula(draws)), w)

    def jacobian(draws: Any, w: Any) -> Contractions:
        with tf.GradientTape() as tape:
            log_q = of.log_prob(draws)
        return contractions(DenseScores(tape.jacobian(log_q, of.variables)), w)

    functions: dict[str, Callable[..., tuple]] = {BACKWARD: backward, OURS: ours, VECTORIZED: vectorized}
    if (log_prob_of_tiled := broadcast_log_prob(of)) is not None:
        functions[BROADCAST] = broadcast
    if (formula := closed_form(of)) is not None:
        functions[CLOSED] = closed
    if slow:
        functions[JACOBIAN] = jacobian
    compiled = {name: tf.function(fn, jit_compile=jit_compile, autograph=False) for name, fn in functions.items()}
    runs: dict[str, Way] = {name: lambda fn=fn: fn(of.draws, of.w) for name, fn in compiled.items()}
    if slow:
        runs[ONE_CALL] = _one_call_a_sample(of, jit_compile)
    return runs


def _one_call_a_sample(of: Problem, jit_compile: bool) -> Way:
    @tf.function(jit_compile=jit_compile, autograph=False)
    def gradient(draw: Any) -> Any:
        with tf.GradientTape() as tape:
            log_q = of.log_prob(draw)
        return tape.gradient(log_q, of.variables)

    @tf.function(jit_compile=jit_compile, autograph=False)
    def moments(w: Any, *arrays: Any) -> Contractions:
        return contractions(DenseScores(arrays), w)

    singles = tf.unstack(of.draws)
    return lambda: moments(of.w, *[tf.stack(arrays) for arrays in zip(*map(gradient, singles))])


def check_same(runs: dict[Any, Way], wanted: Any, tolerance: float = 1e-4) -> None:
    """That every run gives what `runs[wanted]` does, by the length of the difference of each array."""
    arrays = [np.asarray(array) for array in tf.nest.flatten(runs[wanted]())]
    for name, run in runs.items():
        for index, (got, right) in enumerate(zip(tf.nest.flatten(run()), arrays)):
            error = np.linalg.norm(np.asarray(got) - right) / np.linalg.norm(right)
            if not error < tolerance:
                raise AssertionError(f"{name} differs from {wanted} in array {index}, by {error:.1e} of its length.")
