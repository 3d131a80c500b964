"""Gaussians over all continuous latents together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from bbsvi.families.base import Factor, Family, check_target, split_latents
from bbsvi.families.factors import default_factor, positive_scale
from bbsvi.randomness import normal
from bbsvi.targets import Latent, Target
from bbsvi.typing import Seed, Tensor

tfd = tfp.distributions

_LARGEST_FOR_XLA = 30


class FullRankFactor(Factor):
    """N(loc, L L^T) over D reals: `loc` [D], `log_diag` [D] and `lower` [D (D - 1) / 2].

    L has exp(log_diag) on its diagonal and `lower`, row by row, below it.
    """

    def __init__(self, latents: Sequence[Latent], dtype: tf.DType):
        super().__init__()
        self.latents = tuple(latents)
        self._sizes = [math.prod(latent.base_shape) for latent in self.latents]
        dim = sum(self._sizes)
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
        return {
            latent.name: tf.reshape(part, [num_draws, *latent.base_shape])
            for latent, part in zip(self.latents, tf.split(flat, self._sizes, axis=1), strict=True)
        }

    def log_prob(self, base: Mapping[str, Tensor]) -> Tensor:
        parts = []
        for latent in self.latents:
            part = base[latent.name]
            batch = part.shape[: part.shape.rank - len(latent.base_shape)]
            parts.append(tf.reshape(part, [*batch, math.prod(latent.base_shape)]))
        return self.distribution.log_prob(tf.concat(parts, axis=-1))


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
