"""Distributions over one latent by their parameters: draws, densities and scores, whoever gives the parameters.

Mean field has variables for them, an amortised family has an encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp

from bbsvi.randomness import normal, uniform
from bbsvi.targets import Latent
from bbsvi.typing import Seed, Tensor

tfd = tfp.distributions

# A scale is exp(log_scale) plus this, so that no step of an optimizer can make it exactly zero.
SCALE_FLOOR = {tf.float32: 1e-12, tf.float64: 1e-30}


def positive_scale(log_scale: Tensor) -> Tensor:
    return tf.exp(log_scale) + tf.constant(SCALE_FLOOR[log_scale.dtype.base_dtype], log_scale.dtype)


class Form:
    """A distribution of independent elements, given by tensors of parameters.

    Attributes:
      parameters: their names, in the order of all methods.
    """

    parameters: tuple[str, ...]

    def parameter_shapes(self, latent: Latent) -> dict[str, tuple[int, ...]]:
        """{parameter: shape}."""
        return {name: latent.base_shape for name in self.parameters}

    def distribution(self, parameters: Sequence[Tensor]) -> Any:
        """A TFP distribution, its batch shape that of the latent's base value."""
        raise NotImplementedError

    def sample(self, num_draws: int, seed: Seed, parameters: Sequence[Tensor]) -> Tensor:
        """[num_draws, *base_shape]."""
        return self.distribution(parameters).sample(num_draws, seed=seed)

    def scores(self, value: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Scores of base values [S, *base_shape] by each parameter, [S, *parameter_shape]."""
        raise NotImplementedError


class _Normal(Form):
    parameters = ("loc", "log_scale")

    def distribution(self, parameters: Sequence[Tensor]) -> Any:
        loc, log_scale = parameters
        return tfd.Normal(loc, positive_scale(log_scale))

    def sample(self, num_draws: int, seed: Seed, parameters: Sequence[Tensor]) -> Tensor:
        loc, log_scale = parameters
        return loc + positive_scale(log_scale) * normal([num_draws, *loc.shape], seed, loc.dtype)

    def scores(self, value: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
        loc, log_scale = parameters
        inverse = 1 / positive_scale(log_scale)
        noise = (value - loc) * inverse
        # d scale / d log_scale is exp(log_scale), less than the scale by its floor.
        return [noise * inverse, (tf.square(noise) - 1) * (tf.exp(log_scale) * inverse)]


class _Bernoulli(Form):
    parameters = ("logits",)

    def distribution(self, parameters: Sequence[Tensor]) -> Any:
        (logits,) = parameters
        return tfd.Bernoulli(logits=logits)

    def sample(self, num_draws: int, seed: Seed, parameters: Sequence[Tensor]) -> Tensor:
        (logits,) = parameters
        u = uniform([num_draws, *logits.shape], seed, logits.dtype)
        return tf.cast(u < tf.sigmoid(logits), tf.int32)

    def scores(self, value: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
        (logits,) = parameters
        return [tf.cast(value, logits.dtype) - tf.sigmoid(logits)]


class _Categorical(Form):
    parameters = ("logits",)

    def parameter_shapes(self, latent: Latent) -> dict[str, tuple[int, ...]]:
        return {"logits": (*latent.base_shape, latent.support.num_categories or 0)}

    def distribution(self, parameters: Sequence[Tensor]) -> Any:
        (logits,) = parameters
        return tfd.Categorical(logits=logits)

    def sample(self, num_draws: int, seed: Seed, parameters: Sequence[Tensor]) -> Tensor:
        (logits,) = parameters
        # The Gumbel-max trick.
        u = uniform([num_draws, *logits.shape], seed, logits.dtype)
        return tf.argmax(logits - tf.math.log(-tf.math.log(u)), axis=-1, output_type=tf.int32)

    def scores(self, value: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
        (logits,) = parameters
        return [tf.one_hot(value, logits.shape[-1], dtype=logits.dtype) - tf.nn.softmax(logits)]


class _Poisson(Form):
    parameters = ("log_rate",)

    def distribution(self, parameters: Sequence[Tensor]) -> Any:
        (log_rate,) = parameters
        return tfd.Poisson(log_rate=log_rate)

    def scores(self, value: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
        (log_rate,) = parameters
        return [tf.cast(value, log_rate.dtype) - tf.exp(log_rate)]


NORMAL, BERNOULLI, CATEGORICAL, POISSON = _Normal(), _Bernoulli(), _Categorical(), _Poisson()


def form_of(latent: Latent) -> Form:
    """The form for a latent's support."""
    if not latent.is_discrete:
        return NORMAL
    if latent.support.name == "binary":
        return BERNOULLI
    return POISSON if latent.support.num_categories is None else CATEGORICAL
