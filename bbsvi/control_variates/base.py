"""The protocol of control variates: pure functions of f, the scores and a state.

f is log p - log q at the S draws of one step, [S]; the plain score-function gradient is
sum_s f_s h_s / S. A control variate returns a quieter gradient with the same expectation. `apply`
sees only the state from before the batch and `update` folds the batch in afterwards, so that a
baseline cannot depend on the draws it corrects.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from bbsvi.scores import Scores
from bbsvi.typing import Tensor


class ControlVariate(Protocol):
    """`init() -> state`, `apply(state, f, scores) -> gradient`, `update(state, f, scores) -> state`.

    Attributes:
      minimum_sample_size: the smallest S that it can work with.
    """

    minimum_sample_size: int

    def init(self) -> Any:
        """The state before any batch."""

    def apply(self, state: Any, f: Tensor, scores: Scores) -> list[Tensor]:
        """The gradient, a list shaped like the variables. f: [S]."""

    def variance(self, state: Any, f: Tensor, scores: Scores) -> list[Tensor]:
        """An estimate of the variance of `apply`'s result, a list shaped like the variables."""

    def update(self, state: Any, f: Tensor, scores: Scores) -> Any:
        """The state with this batch folded in."""


class Weights(NamedTuple):
    """Weights w [S] for sum_s w_s h_s, and the exact expectation of what was subtracted (None: zero)."""

    weights: Tensor
    correction: list[Tensor] | None = None


class Reweighting:
    """A control variate that only re-weights the draws: subclasses give `weights`."""

    minimum_sample_size = 1

    def init(self) -> Any:
        return ()

    def weights(self, state: Any, f: Tensor, scores: Scores) -> Weights:
        raise NotImplementedError

    def apply(self, state: Any, f: Tensor, scores: Scores) -> list[Tensor]:
        weights, correction = self.weights(state, f, scores)
        gradient = scores.weighted_sum(weights)
        return gradient if correction is None else [g + c for g, c in zip(gradient, correction, strict=True)]

    def variance(self, state: Any, f: Tensor, scores: Scores) -> list[Tensor]:
        weights, _ = self.weights(state, f, scores)
        mean = scores.weighted_sum(weights)
        second = scores.weighted_square_sum(tf.square(weights))
        return [mean_variance(s, m, scores.num_draws) for s, m in zip(second, mean, strict=True)]

    def update(self, state: Any, f: Tensor, scores: Scores) -> Any:
        return state


def mean_variance(second: Tensor, mean: Tensor, num_draws: int) -> Tensor:
    """Variance of a mean of S contributions c_s / S, from sum_s (c_s / S)^2 and sum_s c_s / S; nan if S = 1."""
    if num_draws == 1:
        return tf.fill(tf.shape(mean), tf.constant(float("nan"), mean.dtype))
    return tf.maximum(second - tf.square(mean) / num_draws, 0) * (num_draws / (num_draws - 1))


def centred(f: Tensor, dtype: tf.DType) -> Tensor:
    """f less its mean, in `dtype`: subtracted in f's own precision, before anything is lost."""
    return tf.cast(f - tf.reduce_mean(f), dtype)
