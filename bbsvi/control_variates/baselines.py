"""Baselines: one number subtracted from f."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from bbsvi.control_variates.base import Reweighting, Weights
from bbsvi.errors import InvalidTypeError, InvalidValueError
from bbsvi.scores import Scores
from bbsvi.typing import Tensor


class NoControlVariate(Reweighting):
    """The plain score-function estimator, sum_s f_s h_s / S, for reference.

    Unbiased; its variance grows with the square of any constant in log p.
    Paisley, Blei and Jordan 2012, "Variational Bayesian inference with stochastic search", eq. 4.
    """

    def weights(self, state: tuple[()], f: Tensor, scores: Scores) -> Weights:
        return Weights(f / scores.num_draws)


class LeaveOneOut(Reweighting):
    """Each draw's baseline is the mean of f over the other draws.

    sum_s (f_s - mean_{t != s} f_t) h_s / S = sum_s (f_s - mean f) h_s / (S - 1): unbiased for
    independent draws, S >= 2, and without variance at q = p.
    Salimans and Knowles 2014, arXiv:1401.1022; Kool, van Hoof and Welling 2019, "Buy 4 REINFORCE
    samples, get a baseline for free!".
    """

    minimum_sample_size = 2

    def weights(self, state: tuple[()], f: Tensor, scores: Scores) -> Weights:
        return Weights((f - tf.reduce_mean(f)) / (scores.num_draws - 1))


class MovingAverageState(NamedTuple):
    total: Tensor  # [], decayed sum of batch means of f
    weight: Tensor  # [], decayed number of batches


class MovingAverage(Reweighting):
    """The baseline is an exponentially weighted mean of f over past steps.

    Unbiased for any S, S = 1 included, since the step's own draws enter only afterwards. Before the
    first step it has seen one batch drawn for the purpose.
    Mnih and Gregor 2014, "Neural variational inference and learning in belief networks", section 2.3.

    Args:
      decay: in [0, 1): the weight of the past against one new step.
    """

    def __init__(self, *, decay: float = 0.9):
        if isinstance(decay, bool) or not isinstance(decay, (int, float)):
            raise InvalidTypeError(f"decay must be a number, got {decay!r}.")
        if not 0.0 <= decay < 1.0:
            raise InvalidValueError(f"decay must lie in [0, 1), got {decay!r}.")
        self.decay = decay

    def init(self) -> MovingAverageState:
        return MovingAverageState(tf.zeros([], tf.float64), tf.zeros([], tf.float64))

    def weights(self, state: MovingAverageState, f: Tensor, scores: Scores) -> Weights:
        # Divided by its own weight: without that the mean would begin biased towards zero.
        baseline = tf.math.divide_no_nan(state.total, state.weight)
        return Weights((f - tf.cast(baseline, f.dtype)) / scores.num_draws)

    def update(self, state: MovingAverageState, f: Tensor, scores: Scores) -> MovingAverageState:
        mean = tf.cast(tf.reduce_mean(f), tf.float64)
        return MovingAverageState(
            self.decay * state.total + (1 - self.decay) * mean, self.decay * state.weight + (1 - self.decay)
        )
