"""A coefficient of its own for every parameter, never fitted to the draw that it corrects."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from bbsvi.control_variates.base import centred, mean_variance
from bbsvi.errors import InvalidValueError
from bbsvi.scores import Scores
from bbsvi.typing import Tensor
from bbsvi.validation import positive_integer


class OptimalCoefficients:
    """sum_s (f_s - a_j) h_sj / S with a_j near its optimum E[f h_j^2] / E[h_j^2].

    Ranganath, Gerrish and Blei 2014, "Black box variational inference", eq. 8-9, estimate a_j from
    the draws it then corrects, which biases the gradient; here the draws that fit a_j are never the
    ones it corrects, and the estimator is unbiased.

    Args:
      folds: None leaves out one draw at a time (S >= 2; needs the S x P scores); K >= 2 fits each of
        K folds' coefficients on the other folds (S >= K; needs only weighted sums).
    """

    def __init__(self, *, folds: int | None = None):
        self.folds = None if folds is None else positive_integer("folds", folds, minimum=2)

    @property
    def minimum_sample_size(self) -> int:
        return self.folds or 2

    def init(self) -> tuple[()]:
        return ()

    def update(self, state: tuple[()], f: Tensor, scores: Scores) -> tuple[()]:
        return state

    def apply(self, state: tuple[()], f: Tensor, scores: Scores) -> list[Tensor]:
        return self._moments(f, scores)[0]

    def variance(self, state: tuple[()], f: Tensor, scores: Scores) -> list[Tensor]:
        mean, second = self._moments(f, scores)
        return [mean_variance(s, m, scores.num_draws) for s, m in zip(second, mean, strict=True)]

    def _moments(self, f: Tensor, scores: Scores) -> tuple[list[Tensor], list[Tensor]]:
        """sum_s c_s / S and sum_s (c_s / S)^2 of the contributions c_s = (f_s - a) h_s."""
        if scores.num_draws < self.minimum_sample_size:
            raise InvalidValueError(
                f"OptimalCoefficients(folds={self.folds}) wants at least {self.minimum_sample_size} draws, "
                f"got {scores.num_draws}."
            )
        return self._leave_one_out(f, scores) if self.folds is None else self._cross_fitted(f, scores)

    @staticmethod
    def _leave_one_out(f: Tensor, scores: Scores) -> tuple[list[Tensor], list[Tensor]]:
        num_draws = scores.num_draws
        first, second = [], []
        for h in scores.dense():
            # Shifting f by a constant shifts every a_j by as much: centring changes only rounding.
            column = tf.reshape(centred(f, h.dtype), [num_draws] + [1] * (h.shape.rank - 1))
            square = tf.square(h)
            mean_of_others = -column / (num_draws - 1)  # as the column sums to zero
            coefficient = _ratio(_sum_of_others(column * square), _sum_of_others(square), mean_of_others)
            contribution = (column - coefficient) * h / num_draws
            first.append(tf.reduce_sum(contribution, axis=0))
            second.append(tf.reduce_sum(tf.square(contribution), axis=0))
        return first, second

    def _cross_fitted(self, f: Tensor, scores: Scores) -> tuple[list[Tensor], list[Tensor]]:
        num_draws = scores.num_draws
        fold = tf.range(num_draws) % self.folds
        ones = tf.ones([num_draws], f.dtype)
        c = f - tf.reduce_mean(f)
        first: list[Tensor] = []
        second: list[Tensor] = []
        for k in range(self.folds or 1):
            own = tf.cast(fold == k, f.dtype)
            rest = ones - own
            fallback = tf.reduce_sum(c * rest) / tf.reduce_sum(rest)
            products, squares = scores.weighted_square_sum(c * rest), scores.weighted_square_sum(rest)
            a = [_ratio(p, s, tf.cast(fallback, s.dtype)) for p, s in zip(products, squares, strict=True)]
            weighted, plain = scores.weighted_sum(c * own), scores.weighted_sum(own)
            first = _add(first, [(w - x * p) / num_draws for w, x, p in zip(weighted, a, plain, strict=True)])
            moments = [scores.weighted_square_sum(own * tf.pow(c, power)) for power in (2, 1, 0)]
            second = _add(
                second,
                [(m2 - 2 * x * m1 + x * x * m0) / num_draws**2 for m2, m1, m0, x in zip(*moments, a, strict=True)],
            )
        return first, second


def _sum_of_others(x: Tensor) -> Tensor:
    """sum_{t != s} x_t for every s, [S, ...], without subtracting: what is zero stays exactly zero."""
    before = tf.cumsum(x, axis=0, exclusive=True)
    return before + tf.cumsum(x, axis=0, exclusive=True, reverse=True)


def _ratio(numerator: Tensor, denominator: Tensor, fallback: Tensor) -> Tensor:
    """numerator / denominator, or the held-out mean of f where the held-out scores are all zero.

    Which of the two is decided by the held-out draws alone, or the choice itself would bias.
    """
    usable = denominator > np.finfo(denominator.dtype.as_numpy_dtype).tiny
    return tf.where(usable, numerator / tf.where(usable, denominator, tf.ones_like(denominator)), fallback)


def _add(total: list[Tensor], terms: list[Tensor]) -> list[Tensor]:
    return [t + u for t, u in zip(total, terms, strict=True)] if total else terms
