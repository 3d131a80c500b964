"""Bench B3: three Bernoullis, every tuple of S draws enumerated, so that mean and variance are exact.

q = prod_i Bernoulli(sigmoid(lambda_i)) and a log p with one-, two- and three-way interactions. An
estimator's expectation is the sum over all 8^S tuples of draws, weighted by their probability: a test
asserts equality instead of a z-score.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import tensorflow as tf

import bbsvi

LOGITS = np.array([0.3, -0.8, 1.1])
STATES = np.array(list(itertools.product([0, 1], repeat=3)), np.int32)  # [8, 3]


def log_p(z: tf.Tensor) -> tf.Tensor:
    z1, z2, z3 = tf.unstack(tf.cast(z, tf.float64), axis=-1)
    linear = 0.5 * z1 - 0.2 * z2 + 0.4 * z3
    return -8 + linear + 1.2 * z1 * z2 - 0.7 * z1 * z3 + 0.9 * z2 * z3 + 0.6 * z1 * z2 * z3


def target() -> bbsvi.Target:
    return bbsvi.Target(log_p, event_shape=(3,), support="binary", dtype="float64")


def family() -> bbsvi.families.MeanField:
    q = bbsvi.families.MeanField(target())
    q.assign([LOGITS])
    return q


def moments(estimate: Callable[[tf.Tensor, bbsvi.DenseScores], tf.Tensor], num_draws: int) -> tuple[np.ndarray, float]:
    """Exact mean [3] and exact total variance of an estimator of the gradient.

    Args:
      estimate: (f [S], scores of S draws) -> gradient [3], for one tuple of draws.
      num_draws: S.
    """
    q, p = family(), target()
    draws = q.draws_at({"z": STATES})
    log_q = q.log_prob(draws)
    f = p.log_prob(draws.value) - log_q  # [8]
    (h,) = q.scores(draws).dense()  # [8, 3]
    tuples = tf.constant(list(itertools.product(range(8), repeat=num_draws)))  # [8^S, S]
    probability = tf.exp(tf.reduce_sum(tf.gather(log_q, tuples), axis=1)).numpy()

    @tf.function
    def all_tuples() -> tf.Tensor:
        return tf.vectorized_map(
            lambda t: estimate(tf.gather(f, t), bbsvi.DenseScores([tf.gather(h, t)])),
            tuples,
            fallback_to_while_loop=False,
        )

    gradients = all_tuples().numpy()
    mean = probability @ gradients
    return mean, float(probability @ np.sum((gradients - mean) ** 2, axis=1))


def exact_gradient() -> np.ndarray:
    """sum_z q(z) f(z) h(z), [3]."""
    return moments(lambda f, scores: scores.weighted_sum(f)[0], 1)[0]
