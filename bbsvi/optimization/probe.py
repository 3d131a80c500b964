"""q at given parameters, seen through fresh draws: what the convergence rule asks of a fit."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bbsvi.families import Family, collapsed_latents
from bbsvi.optimization.convergence import Gain
from bbsvi.randomness import fold_in
from bbsvi.targets import Target
from bbsvi.tracing import Traced
from bbsvi.typing import Seed, Tensor

_SCORE_DRAWS = 256  # whose scores the iterates are seen through
_GAIN_DRAWS = 1024  # that say what is left to gain, once the iterates have come to rest
_TELLING = 0.01  # a parameter's own gain has to be known to about so many nats to count


class Probe:
    """Scores and gradient of a family at parameters [P], which it takes on for as long as the question.

    Args:
      seed: stateless; the draws are the same at every look.
    """

    def __init__(self, target: Target, family: Family, seed: Seed):
        self._target, self._family = target, family
        self._score_seed, self._gain_seed = fold_in(seed, 0), fold_in(seed, 1)

    def scores_at(self, parameters: np.ndarray) -> np.ndarray:
        """Scores of draws of q at `parameters`, float64 [M, P]."""
        with self._parameters_set_to(parameters):
            scores = self._compiled_scores(self._score_seed)
        return np.concatenate([np.reshape(h, [_SCORE_DRAWS, -1]) for h in scores], axis=1).astype(np.float64)

    def gain_at(self, parameters: np.ndarray) -> Gain:
        """What a natural-gradient step from `parameters` would gain, by the diagonal of the Fisher information.

        E[ghat_j^2] = g_j^2 + Var ghat_j, so that the variance is taken off again. Left out are parameters of
        which so many draws say nothing either way, as the logit of a category that hardly comes up.
        """
        with self._parameters_set_to(parameters):
            moments = self._compiled_moments(self._gain_seed)
            collapsed = collapsed_latents(self._family, self._gain_seed)
        gradient, second, fisher = (np.concatenate([np.ravel(m) for m in part]).astype(float) for part in moments)
        variance = np.maximum(second - gradient**2, 0) / (_GAIN_DRAWS - 1)
        telling = (fisher > 0) & ((variance <= _TELLING * fisher) | (gradient**2 > 25 * variance))
        gradient, variance, fisher = gradient[telling], variance[telling], fisher[telling]
        gain = np.sum((gradient**2 - variance) / fisher) / 2
        error = np.sqrt(np.sum((2 * variance**2 + 4 * gradient**2 * variance) / fisher**2)) / 2
        return Gain(float(gain), float(error), has_collapsed=bool(collapsed))

    @functools.cached_property
    def _compiled_scores(self) -> Traced:
        def scores(seed: Seed) -> list[Tensor]:
            return self._family.scores(self._family.sample(_SCORE_DRAWS, seed)).dense()

        return Traced(scores)

    @functools.cached_property
    def _compiled_moments(self) -> Traced:
        def moments(seed: Seed) -> Any:
            draws = self._family.sample(_GAIN_DRAWS, seed)
            f = self._target.log_prob(draws.value) - tf.cast(self._family.log_prob(draws), tf.float64)
            finite = tf.math.is_finite(f)
            f = tf.where(finite, f, tf.reduce_mean(tf.boolean_mask(f, finite)))
            c = (f - tf.reduce_mean(f)) / (_GAIN_DRAWS - 1)
            scores = self._family.scores(draws)
            return (
                scores.weighted_sum(c),
                scores.weighted_square_sum(_GAIN_DRAWS * tf.square(c)),
                scores.weighted_square_sum(tf.ones_like(c) / _GAIN_DRAWS),
            )

        return Traced(moments)

    @contextlib.contextmanager
    def _parameters_set_to(self, parameters: np.ndarray) -> Iterator[None]:
        now = self._family.parameters()
        self._family.assign(unflattened(parameters, now))
        try:
            yield
        finally:
            self._family.assign(now)


def unflattened(flat: np.ndarray, like: Sequence[np.ndarray]) -> list[np.ndarray]:
    """`flat` [P] cut into arrays of the shapes and dtypes of `like`."""
    ends = np.cumsum([array.size for array in like])
    parts = np.split(flat, ends[:-1])
    return [part.reshape(array.shape).astype(array.dtype) for part, array in zip(parts, like, strict=True)]
