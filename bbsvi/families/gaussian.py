"""Gaussians over all continuous latents together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from bbsvi.families.base import Factor, Family, check_target, split_latents
from bbsvi.families.continuous import ContinuousBlock
from bbsvi.families.factors import default_factor
from bbsvi.families.forms import positive_scale
from bbsvi.randomness import normal
from bbsvi.scores import Contractions, checked_direction, checked_weights, power_of
from bbsvi.targets import Latent, Target
from bbsvi.typing import Seed, Tensor
from bbsvi.validation import positive_integer

tfd = tfp.distributions

_LARGEST_FOR_XLA = 30


class FullRankFactor(ContinuousBlock):
    """N(loc, L L^T) over D reals: `loc` [D], `log_diag` [D] and `lower` [D (D - 1) / 2].

    L has exp(log_diag) on its diagonal and `lower`, row by row, below it.
    """

    def __init__(self, latents: Sequence[Latent], dtype: tf.DType):
        super().__init__(latents)
        dim = self.dim
        self.loc = tf.Variable(tf.zeros([dim], dtype), name="loc")
        self.log_diag = tf.Variable(tf.zeros([dim], dtype), name="log_diag")
        self.lower = tf.Variable(tf.zeros([dim * (dim - 1) // 2], dtype), name="lower")

    @property
    def trainable_variables(self) -> tuple[tf.Variable, ...]:
        return (self.loc, self.log_diag, self.lower) if self.lower.shape[0] else (self.loc, self.log_diag)

    @property
    def suits_xla(self) -> bool:
        # XLA's triangular solves on a CPU are slow: measured at 64 draws, a step takes half the plain
        # graph's time at D = 30, as much at D = 40 and four times as much at D = 200.
        return self.loc.shape[0] <= _LARGEST_FOR_XLA

    @property
    def scale_tril(self) -> Tensor:
        """L, [D, D]."""
        dim = self.loc.shape[0]
        positions = np.stack(np.tril_indices(dim, -1), axis=-1)  # row by row
        lower = tf.scatter_nd(tf.constant(positions, tf.int32), self.lower, [dim, dim])
        return tf.linalg.set_diag(lower, positive_scale(self.log_diag))

    @property
    def distribution(self) -> Any:
        return tfd.MultivariateNormalTriL(self.loc, self.scale_tril)

    def sample(self, num_draws: int, seed: Seed) -> dict[str, Tensor]:
        noise = normal([num_draws, self.loc.shape[0]], seed, self.loc.dtype)
        flat = self.loc + tf.matmul(noise, self.scale_tril, transpose_b=True)
        return self.by_latent(flat)

    def log_prob(self, base: Mapping[str, Tensor]) -> Tensor:
        return self.distribution.log_prob(self.flat(base))

    def scores(self, base: Mapping[str, Tensor]) -> FullRankScores:
        scale = self.scale_tril
        noise = tf.linalg.triangular_solve(scale, tf.transpose(self.flat(base) - self.loc))
        delta = tf.linalg.triangular_solve(scale, noise, adjoint=True)
        return FullRankScores(
            tf.transpose(noise), tf.transpose(delta), tf.exp(self.log_diag), tf.linalg.diag_part(scale)
        )


class FullRankScores(Contractions):
    """Scores of N(loc, L L^T) by `loc`, `log_diag` and `lower`, never formed unless asked for.

    With noise e = L^-1 (z - loc) and delta u = L^-T e, the score is u by loc, u_i e_j by L_ij below
    the diagonal and u_i e_i - 1 / L_ii on it: an outer product, whose weighted sums are matrix
    products, as in Goodfellow 2015, "Efficient per-example gradient computations", arXiv:1510.01799.

    Args:
      noise, delta: e and u, [S, D].
      slope: d L_ii / d log_diag_i, [D].
      diagonal: L_ii, [D].
    """

    def __init__(self, noise: Tensor, delta: Tensor, slope: Tensor, diagonal: Tensor):
        self._noise, self._delta = noise, delta
        self._log_diag = slope * (noise * delta - 1 / diagonal)  # [S, D]
        self._below = np.stack(np.tril_indices(noise.shape[1], -1), axis=-1)

    @property
    def num_draws(self) -> int:
        return self._noise.shape[0]

    @property
    def shapes(self) -> list[tf.TensorShape]:
        dim = self._noise.shape[1]
        return [tf.TensorShape([n]) for n in ([dim, dim, len(self._below)] if len(self._below) else [dim, dim])]

    @property
    def kind(self) -> tuple[str, ...]:
        return ("dense", "dense", "factored")[: len(self.shapes)]

    def _by_variable(self, loc: Tensor, log_diag: Tensor, outer: Tensor) -> list[Tensor]:
        """`outer` [..., D, D] gives `lower` its elements below the diagonal, row by row."""
        if not len(self._below):
            return [loc, log_diag]
        last = outer.shape[-1] * outer.shape[-1]
        flat = tf.reshape(outer, [*outer.shape[:-2], last])
        return [loc, log_diag, tf.gather(flat, self._below @ [outer.shape[-1], 1], axis=-1)]

    def weighted_power_sum(self, w: Tensor, power: int) -> list[Tensor]:
        w = checked_weights(w, self.num_draws, self._noise.dtype)
        power = positive_integer("power", power)
        noise, delta, log_diag = (power_of(x, power) for x in (self._noise, self._delta, self._log_diag))
        outer = tf.matmul(w[:, None] * delta, noise, transpose_a=True)
        return self._by_variable(tf.tensordot(w, delta, 1), tf.tensordot(w, log_diag, 1), outer)

    def squared_norms(self) -> Tensor:
        # sum_{j < i} u_i^2 e_j^2, from running sums of e_j^2.
        before = tf.cumsum(tf.square(self._noise), axis=1, exclusive=True)
        return tf.reduce_sum(tf.square(self._delta) * (1 + before) + tf.square(self._log_diag), axis=1)

    def matvec(self, v: Sequence[Tensor]) -> Tensor:
        loc, log_diag, *lower = (tf.cast(x, self._delta.dtype) for x in checked_direction(v, self.shapes))
        product = tf.linalg.matvec(self._delta, loc) + tf.linalg.matvec(self._log_diag, log_diag)
        if not lower:
            return product
        dim = self._noise.shape[1]
        below = tf.scatter_nd(tf.constant(self._below, tf.int32), lower[0], [dim, dim])
        return product + tf.reduce_sum(self._delta * tf.matmul(self._noise, below, transpose_b=True), axis=1)

    def dense(self) -> list[Tensor]:
        outer = self._delta[:, :, None] * self._noise[:, None, :]
        return self._by_variable(self._delta, self._log_diag, outer)


class FullRank(Family):
    """One Gaussian with a full covariance over all continuous latents, in unconstrained space.

    Discrete latents keep the factors of `MeanField` beside it. Begins as N(0, I).

    Args:
      target: whose latents are to be covered.

    Raises:
      InvalidTypeError: `target` is no `bbsvi.Target`.
    """

    def __init__(self, target: Target):
        check_target(target)
        continuous, discrete = split_latents(target.latents)
        blocks: list[Factor] = [FullRankFactor(continuous, target.dtype)] if continuous else []
        blocks += [default_factor(latent, target.dtype) for latent in discrete]
        super().__init__(target.latents, blocks, target.dtype)

    def config(self) -> dict[str, Any]:
        return {"family": "FullRank"}
