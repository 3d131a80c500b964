"""A mixture of Gaussians over all continuous latents together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from bbsvi.families.base import Factor, Family
from bbsvi.families.continuous import ContinuousBlock, with_continuous
from bbsvi.families.factors import default_factor
from bbsvi.families.forms import positive_scale
from bbsvi.randomness import as_seed, fold_in, normal, uniform
from bbsvi.scores import DenseScores
from bbsvi.targets import Latent, Target
from bbsvi.typing import Seed, Tensor
from bbsvi.validation import positive_integer

tfd = tfp.distributions

_LARGEST_FOR_XLA = 100


class MixtureFactor(ContinuousBlock):
    """sum_c pi_c N(loc_c, diag(s_c^2)) over D reals: `logits` [C], `loc` [C, D] and `log_scale` [C, D].

    pi = softmax(logits) and s = exp(log_scale). One component has no logits to train.
    """

    def __init__(self, latents: Sequence[Latent], dtype: tf.DType, components: int, seed: Seed):
        super().__init__(latents)
        # Around their common mean at an average distance of one a dimension: two components of a scalar begin at
        # -1 and 1, whatever the seed, and do not fall into the same mode because they began beside each other.
        loc = normal([components, self.dim], seed, dtype)
        loc -= tf.reduce_mean(loc, axis=0)
        loc = tf.math.divide_no_nan(loc, tf.sqrt(tf.reduce_mean(tf.square(loc))))
        self.logits = tf.Variable(tf.zeros([components], dtype), name="logits")
        self.loc = tf.Variable(loc, name="loc")
        self.log_scale = tf.Variable(tf.zeros_like(loc), name="log_scale")

    @property
    def trainable_variables(self) -> tuple[tf.Variable, ...]:
        return (self.logits, self.loc, self.log_scale) if self.logits.shape[0] > 1 else (self.loc, self.log_scale)

    @property
    def suits_xla(self) -> bool:
        # Measured at 64 draws and 4 components on a CPU: draws, log q and scores take as long as in the plain graph
        # at D = 100, and 1.6 times that at D = 500.
        return self.dim <= _LARGEST_FOR_XLA

    @property
    def distribution(self) -> Any:
        components = tfd.MultivariateNormalDiag(self.loc, positive_scale(self.log_scale))
        return tfd.MixtureSameFamily(tfd.Categorical(logits=self.logits), components)

    def sample(self, num_draws: int, seed: Seed) -> dict[str, Tensor]:
        """Base values, {name: [S, *base_shape]}: a component, then its normal. Gradients flow through the normal
        and not through the choice, so that they are no reparameterisation of the draw."""
        u = uniform([num_draws, *self.logits.shape], fold_in(seed, 0), self.loc.dtype)
        chosen = tf.argmax(self.logits - tf.math.log(-tf.math.log(u)), axis=1)  # the Gumbel-max trick
        noise = normal([num_draws, self.dim], fold_in(seed, 1), self.loc.dtype)
        scale = positive_scale(self.log_scale)
        return self.by_latent(tf.gather(self.loc, chosen) + tf.gather(scale, chosen) * noise)

    def log_prob(self, base: Mapping[str, Tensor]) -> Tensor:
        scale = positive_scale(self.log_scale)
        return tf.reduce_logsumexp(self._log_joint(self._noise(self.flat(base), scale), scale), axis=-1)

    def scores(self, base: Mapping[str, Tensor]) -> DenseScores:
        """With responsibilities r_c = q(c | z) and noise e_c = (z - loc_c) / s_c, the score is r - pi by logits,
        r_c e_c / s_c by loc_c and r_c (e_c^2 - 1) by log_scale_c."""
        scale = positive_scale(self.log_scale)
        noise = self._noise(self.flat(base), scale)
        responsibility = tf.nn.softmax(self._log_joint(noise, scale), axis=-1)
        logits = responsibility - tf.nn.softmax(self.logits)
        loc = responsibility[..., None] * noise / scale
        # d s / d log_scale is exp(log_scale), less than s by the floor.
        log_scale = responsibility[..., None] * (tf.square(noise) - 1) * (tf.exp(self.log_scale) / scale)
        return DenseScores([logits, loc, log_scale][-len(self.trainable_variables) :])

    def _noise(self, flat: Tensor, scale: Tensor) -> Tensor:
        """(z - loc_c) / s_c: [D] -> [C, D], or [S, D] -> [S, C, D]."""
        return (flat[..., None, :] - self.loc) / scale

    def _log_joint(self, noise: Tensor, scale: Tensor) -> Tensor:
        """log pi_c + log N(z; loc_c, diag(s_c^2)), [C] or [S, C]."""
        log_normal = -0.5 * tf.square(noise) - tf.math.log(scale) - 0.5 * np.log(2 * np.pi)
        return tf.nn.log_softmax(self.logits) + tf.reduce_sum(log_normal, axis=-1)


class Mixture(Family):
    """A mixture of diagonal Gaussians over all continuous latents in unconstrained space.

    Discrete latents keep the factors of `MeanField` beside it. Components begin with equal weights, at
    scale one, around the origin. The ELBO of a mixture has local optima: fewer modes are found where
    components begin on the same side of a gap, so compare the ELBOs of a few seeds.

    Args:
      target: whose latents are to be covered; at least one is continuous.
      components: C.
      seed: for the initial locations, which are random.

    Raises:
      InvalidValueError: no continuous latent, or `components` below 1.
      InvalidTypeError: `target` is no `bbsvi.Target`, or `components` or `seed` no int.
    """

    def __init__(self, target: Target, *, components: int = 2, seed: int = 0):
        continuous, discrete = with_continuous("Mixture", target)
        root, components = as_seed(seed), positive_integer("components", components)
        self._options = {"components": components, "seed": int(seed)}
        blocks: list[Factor] = [MixtureFactor(continuous, target.dtype, components, root)]
        blocks += [default_factor(latent, target.dtype) for latent in discrete]
        super().__init__(target.latents, blocks, target.dtype)

    def config(self) -> dict[str, Any]:
        return {"family": "Mixture", **self._options}
