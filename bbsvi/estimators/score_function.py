"""The score-function estimator: values of log p only, for latents of every kind."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from bbsvi.control_variates import ControlVariate, LeaveOneOut, NoControlVariate
from bbsvi.errors import InvalidTypeError, InvalidValueError
from bbsvi.estimators.base import GradientEstimate
from bbsvi.families import Draws, Family
from bbsvi.scores import Scores
from bbsvi.targets import Target
from bbsvi.typing import Seed, Tensor


class ScoreFunction:
    """grad ELBO = E_q[(log p - log q) grad log q], averaged over draws with a control variate.

    Glynn 1990; Ranganath, Gerrish and Blei 2014, "Black box variational inference", eq. 2-3.

    Args:
      control_variate: a `bbsvi.control_variates` object, "auto" (`LeaveOneOut`), or None for the
        plain estimator.
    """

    def __init__(self, *, control_variate: ControlVariate | str | None = "auto"):
        if control_variate is None:
            control_variate = NoControlVariate()
        elif control_variate == "auto":
            control_variate = LeaveOneOut()
        wanted = "control_variate must be 'auto', None or a bbsvi.control_variates object"
        if isinstance(control_variate, str):
            raise InvalidValueError(f"{wanted}, got {control_variate!r}.")
        methods = ("init", "apply", "variance", "update")
        if isinstance(control_variate, type) or not all(hasattr(control_variate, method) for method in methods):
            hint = f" (write {control_variate.__name__}())" if isinstance(control_variate, type) else ""
            raise InvalidTypeError(f"{wanted}, got {control_variate!r}{hint}.")
        self.control_variate: ControlVariate = control_variate

    @property
    def minimum_sample_size(self) -> int:
        return self.control_variate.minimum_sample_size

    def init(self, target: Target, family: Family, *, sample_size: int, seed: Seed) -> Any:
        # One batch of its own, never used for a gradient: a running baseline has a past from the start.
        f, scores, is_usable, _ = self._evaluate(target, family, family.sample(sample_size, seed))
        fresh = self.control_variate.init()
        return _where(is_usable, self.control_variate.update(fresh, f, scores), fresh)

    def estimate(
        self, state: Any, target: Target, family: Family, *, sample_size: int, seed: Seed
    ) -> tuple[GradientEstimate, Any]:
        return self.estimate_at(state, target, family, family.sample(sample_size, seed))

    def estimate_at(self, state: Any, target: Target, family: Family, draws: Draws) -> tuple[GradientEstimate, Any]:
        """The estimate from given draws, which have to be independent draws of q."""
        f, scores, is_usable, num_dropped = self._evaluate(target, family, draws)
        num_used = tf.cast(f.shape[0] - num_dropped, tf.float64)
        mean = tf.reduce_mean(f)
        # Dropped draws sit at the mean and add nothing to the sum of squares.
        spread = tf.reduce_sum(tf.square(f - mean)) / (tf.maximum(num_used - 1, 1) * tf.maximum(num_used, 1))
        variance = tf.where(num_used > 1, spread, tf.constant(float("nan"), tf.float64))  # one draw has none
        estimate = GradientEstimate(
            gradient=self.control_variate.apply(state, f, scores),
            gradient_variance=self.control_variate.variance(state, f, scores),
            elbo=mean,
            elbo_variance=variance,
            num_dropped=num_dropped,
            is_usable=is_usable,
        )
        return estimate, _where(is_usable, self.control_variate.update(state, f, scores), state)

    def _evaluate(self, target: Target, family: Family, draws: Draws) -> tuple[Tensor, Scores, Tensor, Tensor]:
        """f = log p - log q [S] in float64, scores, whether they are usable, and how many draws were dropped.

        A draw with f = -inf (outside the support of p) is dropped by giving it the mean of the
        others: a baseline that uses them leaves it with no weight at all, any other with a weight
        whose expectation is zero. A NaN or +inf makes the step unusable, as do fewer finite draws
        than half, or than the control variate needs.
        """
        draws = tf.nest.map_structure(tf.stop_gradient, draws)
        f = tf.stop_gradient(target.log_prob(draws.value) - tf.cast(family.log_prob(draws), tf.float64))
        finite = tf.math.is_finite(f)
        num_finite = tf.reduce_sum(tf.cast(finite, tf.int32))
        num_draws = f.shape[0]
        needed = max(self.minimum_sample_size, (num_draws + 1) // 2)
        outside = tf.equal(f, float("-inf"))
        legal = tf.reduce_all(finite | outside)
        total = tf.reduce_sum(tf.where(finite, f, tf.zeros_like(f)))
        mean = total / tf.cast(tf.maximum(num_finite, 1), tf.float64)
        f = tf.where(finite, f, mean)
        return f, family.scores(draws), legal & (num_finite >= needed), tf.reduce_sum(tf.cast(outside, tf.int32))


def _where(condition: Tensor, new: Any, old: Any) -> Any:
    return tf.nest.map_structure(lambda a, b: tf.where(condition, a, b), new, old)
