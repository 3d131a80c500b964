"""A Gaussian over all continuous latents whose covariance is a diagonal plus a low-rank part."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from bbsvi.families.base import Factor, Family
from bbsvi.families.continuous import ContinuousBlock, with_continuous
from bbsvi.families.factors import default_factor
from bbsvi.families.forms import positive_scale
from bbsvi.randomness import as_seed, fold_in, normal
from bbsvi.scores import Contractions, checked_direction, checked_weights, power_of
from bbsvi.targets import Latent, Target
from bbsvi.typing import Seed, Tensor
from bbsvi.validation import positive_integer

tfd = tfp.distributions

_LARGEST_FOR_XLA = 100
_INITIAL_FACTOR = 0.1  # spread of the first F's elements: at F = 0 its score is zero at every draw


class _Woodbury(NamedTuple):
    """What Sigma = diag(d^2) + F F^T is inverted by; no matrix here is larger than D x R.

    With G = F / d (by rows) and M = I + G^T G, v = (z - loc) / d has p = M^-1 G^T v = F^T Sigma^-1 (z - loc)
    and a = v - G p = d Sigma^-1 (z - loc), and (z - loc)^T Sigma^-1 (z - loc) = |a|^2 + |p|^2,
    a sum in which nothing cancels.
    """

    scale: Tensor  # d, [D]
    white: Tensor  # G, [D, R]
    root: Tensor  # the Cholesky factor of M, [R, R]
    half: Tensor  # root^-1 G^T, [R, D]
    gain: Tensor  # M^-1 G^T, [R, D]

    def solve(self, difference: Tensor) -> tuple[Tensor, Tensor]:
        """a [S, D] and p [S, R] at z - loc [S, D]."""
        v = difference / self.scale
        p = tf.matmul(v, self.gain, transpose_b=True)
        return v - tf.matmul(p, self.white, transpose_b=True), p


class LowRankFactor(ContinuousBlock):
    """N(loc, diag(d^2) + F F^T) over D reals: `loc` [D], `log_diag` [D] and `factor` F [D, R].

    d = exp(log_diag). Ong, Nott and Smith 2018, "Gaussian variational approximation with a factor
    covariance structure", arXiv:1701.03208.
    """

    def __init__(self, latents: Sequence[Latent], dtype: tf.DType, rank: int, seed: Seed):
        super().__init__(latents)
        self.loc = tf.Variable(tf.zeros([self.dim], dtype), name="loc")
        self.log_diag = tf.Variable(tf.zeros([self.dim], dtype), name="log_diag")
        self.factor = tf.Variable(_INITIAL_FACTOR * normal([self.dim, rank], seed, dtype), name="factor")

    @property
    def trainable_variables(self) -> tuple[tf.Variable, ...]:
        return self.loc, self.log_diag, self.factor

    @property
    def suits_xla(self) -> bool:
        # Measured at 64 draws and rank 10 or less on a CPU: draws, log q and scores take half the plain graph's
        # time at D = 10, as much at D = 100 and more than twice at D = 1000.
        return self.dim <= _LARGEST_FOR_XLA

    @property
    def distribution(self) -> Any:
        variance = tf.square(positive_scale(self.log_diag))
        return tfd.MultivariateNormalDiagPlusLowRankCovariance(self.loc, variance, self.factor)

    def sample(self, num_draws: int, seed: Seed) -> dict[str, Tensor]:
        dim, rank = self.factor.shape
        noise = normal([num_draws, dim], fold_in(seed, 0), self.loc.dtype)
        common = normal([num_draws, rank], fold_in(seed, 1), self.loc.dtype)
        flat = self.loc + positive_scale(self.log_diag) * noise + tf.matmul(common, self.factor, transpose_b=True)
        return self.by_latent(flat)

    def log_prob(self, base: Mapping[str, Tensor]) -> Tensor:
        z = self.flat(base)
        inverse = self._woodbury()
        a, p = inverse.solve(tf.reshape(z, [-1, self.dim]) - self.loc)
        square = tf.reduce_sum(tf.square(a), axis=1) + tf.reduce_sum(tf.square(p), axis=1)
        log_root = tf.reduce_sum(tf.math.log(inverse.scale)) + tf.reduce_sum(
            tf.math.log(tf.linalg.diag_part(inverse.root))
        )
        log_q = -0.5 * square - log_root - 0.5 * self.dim * np.log(2 * np.pi)
        return log_q if z.shape.rank == 2 else log_q[0]

    def scores(self, base: Mapping[str, Tensor]) -> LowRankScores:
        inverse = self._woodbury()
        a, p = inverse.solve(self.flat(base) - self.loc)
        # (Sigma^-1)_ii d_i^2 = 1 - sum_r half_ri^2, and d d_i / d log_diag_i is exp(log_diag_i), less than d_i.
        precision = 1 - tf.reduce_sum(tf.square(inverse.half), axis=0)
        log_diag = tf.exp(self.log_diag) / inverse.scale * (tf.square(a) - precision)
        constant = tf.transpose(inverse.gain / inverse.scale)
        return LowRankScores(a / inverse.scale, p, log_diag, constant)

    def _woodbury(self) -> _Woodbury:
        scale = positive_scale(self.log_diag)
        white = self.factor / scale[:, None]
        gram = tf.matmul(white, white, transpose_a=True)
        root = tf.linalg.cholesky(gram + tf.eye(gram.shape[0], dtype=gram.dtype))
        half = tf.linalg.triangular_solve(root, tf.transpose(white))
        return _Woodbury(scale, white, root, half, tf.linalg.triangular_solve(root, half, adjoint=True))


class LowRankScores(Contractions):
    """Scores of N(loc, diag(d^2) + F F^T) by `loc`, `log_diag` and `factor`, the last never formed unless asked for.

    With u = Sigma^-1 (z - loc) and p = F^T u the score is u by loc, d_i^2 (u_i^2 - (Sigma^-1)_ii) by log_diag_i
    and u p^T - Sigma^-1 F by F: an outer product less a matrix that all draws share, so that its moments, norms
    and inner products are matrix products.

    Args:
      u: [S, D].
      p: [S, R].
      log_diag: the score by log_diag, [S, D].
      constant: Sigma^-1 F, [D, R].
    """

    def __init__(self, u: Tensor, p: Tensor, log_diag: Tensor, constant: Tensor):
        self._u, self._p, self._log_diag, self._constant = u, p, log_diag, constant

    @property
    def num_draws(self) -> int:
        return self._u.shape[0]

    @property
    def shapes(self) -> list[tf.TensorShape]:
        return [self._u.shape[1:], self._log_diag.shape[1:], self._constant.shape]

    @property
    def kind(self) -> tuple[str, ...]:
        return ("dense", "dense", "factored")

    def weighted_power_sum(self, w: Tensor, power: int) -> list[Tensor]:
        w = checked_weights(w, self.num_draws, self._u.dtype)
        power = positive_integer("power", power)
        # (u p^T - C)^power by the binomial theorem: each power of u p^T is an outer product.
        factor = (-self._constant) ** power * tf.reduce_sum(w)
        for k in range(1, power + 1):
            product = _outer_sum(w, power_of(self._u, k), power_of(self._p, k))
            factor += math.comb(power, k) * product * (-self._constant) ** (power - k)
        return [tf.tensordot(w, power_of(x, power), 1) for x in (self._u, self._log_diag)] + [factor]

    def matvec(self, v: Sequence[Tensor]) -> Tensor:
        loc, log_diag, factor = (tf.cast(x, self._u.dtype) for x in checked_direction(v, self.shapes))
        product = tf.linalg.matvec(self._u, loc) + tf.linalg.matvec(self._log_diag, log_diag)
        outer = tf.reduce_sum(tf.matmul(self._u, factor) * self._p, axis=1)
        return product + outer - tf.reduce_sum(self._constant * factor)

    def squared_norms(self) -> Tensor:
        loc = tf.reduce_sum(tf.square(self._u), axis=1)
        log_diag = tf.reduce_sum(tf.square(self._log_diag), axis=1)
        factor = loc * tf.reduce_sum(tf.square(self._p), axis=1) - 2 * self._crossed() + self._constant_norm()
        return loc + log_diag + factor

    def gram(self) -> Tensor:
        loc, log_diag, p = (tf.matmul(x, x, transpose_b=True) for x in (self._u, self._log_diag, self._p))
        crossed = self._crossed()
        return loc + log_diag + loc * p - crossed[:, None] - crossed[None, :] + self._constant_norm()

    def dense(self) -> list[Tensor]:
        return [self._u, self._log_diag, self._u[:, :, None] * self._p[:, None, :] - self._constant]

    def _crossed(self) -> Tensor:
        """<u_s p_s^T, Sigma^-1 F>, [S]."""
        return tf.reduce_sum(tf.matmul(self._u, self._constant) * self._p, axis=1)

    def _constant_norm(self) -> Tensor:
        return tf.reduce_sum(tf.square(self._constant))


def _outer_sum(w: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """sum_s w_s left_s right_s^T, [D, R]."""
    return tf.matmul(left, w[:, None] * right, transpose_a=True)


class LowRank(Family):
    """One Gaussian over all continuous latents in unconstrained space, with covariance diag(d^2) + F F^T.

    Discrete latents keep the factors of `MeanField` beside it. Begins close to N(0, I). A draw costs
    O(D R) where `FullRank` takes O(D^2), and there are D (R + 2) parameters.

    Args:
      target: whose latents are to be covered; at least one is continuous.
      rank: R, columns of F. No more than D are kept, for D say every covariance.
      seed: for the initial F, which is small and random.

    Raises:
      InvalidValueError: no continuous latent, or `rank` below 1.
      InvalidTypeError: `target` is no `bbsvi.Target`, or `rank` or `seed` no int.
    """

    def __init__(self, target: Target, *, rank: int = 10, seed: int = 0):
        continuous, discrete = with_continuous("LowRank", target)
        root, dim = as_seed(seed), sum(math.prod(latent.base_shape) for latent in continuous)
        rank = min(positive_integer("rank", rank), dim)
        self._options = {"rank": rank, "seed": int(seed)}
        blocks: list[Factor] = [LowRankFactor(continuous, target.dtype, rank, root)]
        blocks += [default_factor(latent, target.dtype) for latent in discrete]
        super().__init__(target.latents, blocks, target.dtype)

    def config(self) -> dict[str, Any]:
        return {"family": "LowRank", **self._options}
