"""Distributions over one latent by their parameters: draws, densities and scores, whoever gives the parameters.

Mean field has variables for them, an amortised family has an encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp

from bbsvi.randomness import normal, uniform
from bbsvi.scores import Contractions, DenseScores, Scores, checked_direction, checked_weights, power_of
from bbsvi.targets import Latent
from bbsvi.typing import Seed, Tensor
from bbsvi.validation import positive_integer

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

    def scores(self, value: Tensor, parameters: Sequence[Tensor]) -> Scores:
        """Scores of base values [S, *base_shape] by each parameter."""
        raise NotImplementedError


class NormalScores(Contractions):
    """Scores of independent normals by `loc` and `log_scale`: e / scale and (e^2 - 1) slope, e being the noise.

    Only the noise is held: scale and slope are the same for all draws and come after the sum over them.

    Args:
      noise: e = (z - loc) / scale, [S, *base_shape].
      inverse: 1 / scale, [*base_shape].
      slope: d log scale / d log_scale, [*base_shape].
    """

    def __init__(self, noise: Tensor, inverse: Tensor, slope: Tensor):
        self._shape, self._noise = noise.shape[1:], tf.reshape(noise, [noise.shape[0], -1])
        self._factors = [tf.reshape(inverse, [-1]), tf.reshape(slope, [-1])]

    @property
    def num_draws(self) -> int:
        return self._noise.shape[0]

    @property
    def shapes(self) -> list[tf.TensorShape]:
        return [self._shape, self._shape]

    @property
    def kind(self) -> tuple[str, ...]:
        return ("dense", "dense")

    def weighted_power_sum(self, w: Tensor, power: int) -> list[Tensor]:
        w, power = checked_weights(w, self.num_draws, self._noise.dtype), positive_integer("power", power)
        loc = tf.linalg.matvec(power_of(self._noise, power), w, transpose_a=True)
        if power == 1:
            log_scale = tf.linalg.matvec(tf.square(self._noise), w, transpose_a=True) - tf.reduce_sum(w)
        else:
            log_scale = tf.linalg.matvec(self._excess(power), w, transpose_a=True)
        sums = zip((loc, log_scale), self._factors)
        return [tf.reshape(x * power_of(factor, power), self._shape) for x, factor in sums]

    def _excess(self, power: int = 1) -> Tensor:
        """(e^2 - 1)^power, [S, D]."""
        square = tf.square(self._noise)
        if power == 2:
            return tf.math.squared_difference(square, tf.ones([], square.dtype))  # one pass through memory, not two
        return power_of(square - 1, power)

    def squared_norms(self) -> Tensor:
        inverse, slope = (tf.square(factor) for factor in self._factors)
        return tf.linalg.matvec(tf.square(self._noise), inverse) + tf.linalg.matvec(self._excess(2), slope)

    def matvec(self, v: Sequence[Tensor]) -> Tensor:
        loc, log_scale = (tf.cast(tf.reshape(x, [-1]), self._noise.dtype) for x in checked_direction(v, self.shapes))
        inverse, slope = self._factors
        return tf.linalg.matvec(self._noise, inverse * loc) + tf.linalg.matvec(self._excess(), slope * log_scale)

    def dense(self) -> list[Tensor]:
        bare = zip((self._noise, self._excess()), self._factors)
        return [tf.reshape(x * factor, [self.num_draws, *self._shape]) for x, factor in bare]


class _Normal(Form):
    parameters = ("loc", "log_scale")

    def distribution(self, parameters: Sequence[Tensor]) -> Any:
        loc, log_scale = parameters
        return tfd.Normal(loc, positive_scale(log_scale))

    def sample(self, num_draws: int, seed: Seed, parameters: Sequence[Tensor]) -> Tensor:
        loc, log_scale = parameters
        return loc + positive_scale(log_scale) * normal([num_draws, *loc.shape], seed, loc.dtype)

    def scores(self, value: Tensor, parameters: Sequence[Tensor]) -> Scores:
        loc, log_scale = parameters
        inverse = 1 / positive_scale(log_scale)
        # d scale / d log_scale is exp(log_scale), less than the scale by its floor.
        return NormalScores((value - loc) * inverse, inverse, tf.exp(log_scale) * inverse)


class _Bernoulli(Form):
    parameters = ("logits",)

    def distribution(self, parameters: Sequence[Tensor]) -> Any:
        (logits,) = parameters
        return tfd.Bernoulli(logits=logits)

    def sample(self, num_draws: int, seed: Seed, parameters: Sequence[Tensor]) -> Tensor:
        (logits,) = parameters
        u = uniform([num_draws, *logits.shape], seed, logits.dtype)
        return tf.cast(u < tf.sigmoid(logits), tf.int32)

    def scores(self, value: Tensor, parameters: Sequence[Tensor]) -> Scores:
        (logits,) = parameters
        return DenseScores([tf.cast(value, logits.dtype) - tf.sigmoid(logits)])


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

    def scores(self, value: Tensor, parameters: Sequence[Tensor]) -> Scores:
        (logits,) = parameters
        return DenseScores([tf.one_hot(value, logits.shape[-1], dtype=logits.dtype) - tf.nn.softmax(logits)])


class _Poisson(Form):
    parameters = ("log_rate",)

    def distribution(self, parameters: Sequence[Tensor]) -> Any:
        (log_rate,) = parameters
        return tfd.Poisson(log_rate=log_rate)

    def scores(self, value: Tensor, parameters: Sequence[Tensor]) -> Scores:
        (log_rate,) = parameters
        return DenseScores([tf.cast(value, log_rate.dtype) - tf.exp(log_rate)])


NORMAL, BERNOULLI, CATEGORICAL, POISSON = _Normal(), _Bernoulli(), _Categorical(), _Poisson()


def form_of(latent: Latent) -> Form:
    """The form for a latent's support."""
    if not latent.is_discrete:
        return NORMAL
    if latent.support.name == "binary":
        return BERNOULLI
    return POISSON if latent.support.num_categories is None else CATEGORICAL
