"""Factors over one latent: a Gaussian through the support's bijector, or a discrete distribution."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from bbsvi import supports
from bbsvi.errors import InvalidTypeError, InvalidValueError
from bbsvi.families.base import Factor
from bbsvi.randomness import normal, uniform
from bbsvi.supports import Support
from bbsvi.targets import Latent
from bbsvi.typing import Seed, Tensor
from bbsvi.validation import one_line

tfd = tfp.distributions

# A scale is exp(log_scale) plus this, so that no step of an optimizer can make it exactly zero.
SCALE_FLOOR = {tf.float32: 1e-12, tf.float64: 1e-30}


def positive_scale(log_scale: Tensor) -> Tensor:
    return tf.exp(log_scale) + tf.constant(SCALE_FLOOR[log_scale.dtype.base_dtype], log_scale.dtype)


def event_shaped(distribution: Any, ndims: int) -> Any:
    """The distribution with its last `ndims` batch axes as event axes."""
    return tfd.Independent(distribution, reinterpreted_batch_ndims=ndims) if ndims else distribution


class NormalFactor(Factor):
    """Independent normals in the base space: `loc` and `log_scale`, each [*base_shape]."""

    def __init__(self, latent: Latent, dtype: tf.DType):
        super().__init__()
        self.latents = (latent,)
        self.loc = tf.Variable(tf.zeros(latent.base_shape, dtype), name="loc")
        self.log_scale = tf.Variable(tf.zeros(latent.base_shape, dtype), name="log_scale")

    @property
    def trainable_variables(self) -> tuple[tf.Variable, ...]:
        return self.loc, self.log_scale

    @property
    def distribution(self) -> Any:
        scale = positive_scale(self.log_scale)
        return event_shaped(tfd.Normal(self.loc, scale), len(self.latents[0].base_shape))

    def sample(self, num_draws: int, seed: Seed) -> dict[str, Tensor]:
        noise = normal([num_draws, *self.loc.shape], seed, self.loc.dtype)
        return {self.latents[0].name: self.loc + positive_scale(self.log_scale) * noise}


class BernoulliFactor(Factor):
    """Independent Bernoullis: `logits` [*event_shape]."""

    def __init__(self, latent: Latent, dtype: tf.DType):
        super().__init__()
        self.latents = (latent,)
        self.logits = tf.Variable(tf.zeros(latent.event_shape, dtype), name="logits")

    @property
    def distribution(self) -> Any:
        return event_shaped(tfd.Bernoulli(logits=self.logits), len(self.latents[0].event_shape))

    def sample(self, num_draws: int, seed: Seed) -> dict[str, Tensor]:
        u = uniform([num_draws, *self.logits.shape], seed, self.logits.dtype)
        return {self.latents[0].name: tf.cast(u < tf.sigmoid(self.logits), tf.int32)}


class CategoricalFactor(Factor):
    """Independent categoricals: `logits` [*event_shape, K]."""

    def __init__(self, latent: Latent, dtype: tf.DType):
        super().__init__()
        self.latents = (latent,)
        shape = [*latent.event_shape, latent.support.num_categories]
        self.logits = tf.Variable(tf.zeros(shape, dtype), name="logits")

    @property
    def distribution(self) -> Any:
        return event_shaped(tfd.Categorical(logits=self.logits), len(self.latents[0].event_shape))

    def sample(self, num_draws: int, seed: Seed) -> dict[str, Tensor]:
        # The Gumbel-max trick.
        u = uniform([num_draws, *self.logits.shape], seed, self.logits.dtype)
        draws = tf.argmax(self.logits - tf.math.log(-tf.math.log(u)), axis=-1, output_type=tf.int32)
        return {self.latents[0].name: draws}


class PoissonFactor(Factor):
    """Independent Poissons: `log_rate` [*event_shape]."""

    def __init__(self, latent: Latent, dtype: tf.DType):
        super().__init__()
        self.latents = (latent,)
        self.log_rate = tf.Variable(tf.zeros(latent.event_shape, dtype), name="log_rate")

    @property
    def distribution(self) -> Any:
        return event_shaped(tfd.Poisson(log_rate=self.log_rate), len(self.latents[0].event_shape))


class TFPFactor(Factor):
    """A TFP class chosen by the user for one latent, its parameters made trainable.

    Args:
      through_bijector: whether the class is over unconstrained reals, [*base_shape]; otherwise it is
        over the latent's own support (Gamma for a positive latent), [*event_shape].
    """

    def __init__(self, latent: Latent, cls: type, dtype: tf.DType, seed: Seed, *, through_bijector: bool):
        super().__init__()
        self.latents = (latent,)
        self.through_bijector = through_bijector
        shape = latent.base_shape if through_bijector else latent.event_shape
        try:
            self._distribution = tfp.experimental.util.make_trainable(
                cls, batch_and_event_shape=shape, parameter_dtype=dtype, seed=seed
            )
        except Exception as error:
            raise InvalidValueError(
                f"factors[{latent.name!r}]: {cls.__name__} could not be made trainable with shape {shape}: "
                f"{one_line(error)}."
            ) from error

    @property
    def trainable_variables(self) -> tuple[tf.Variable, ...]:
        return self._distribution.trainable_variables

    @property
    def instance(self) -> Any:
        """The distribution with its parameters as they are now: of the class itself, where
        `make_trainable` gives a stand-in for one."""
        return self._distribution.copy()

    @property
    def distribution(self) -> Any:
        return event_shaped(self._distribution, self._distribution.batch_shape.rank)


def default_factor(latent: Latent, dtype: tf.DType) -> Factor:
    """The factor for a latent's support."""
    if not latent.is_discrete:
        return NormalFactor(latent, dtype)
    if latent.support.name == "binary":
        return BernoulliFactor(latent, dtype)
    if latent.support.num_categories is not None:
        return CategoricalFactor(latent, dtype)
    return PoissonFactor(latent, dtype)


_OURS = {
    tfd.Normal: NormalFactor,
    tfd.Bernoulli: BernoulliFactor,
    tfd.Categorical: CategoricalFactor,
    tfd.Poisson: PoissonFactor,
}


def chosen_factor(latent: Latent, cls: Any, dtype: tf.DType, seed: Seed) -> Factor:
    """The factor of TFP class `cls` for a latent.

    Raises:
      InvalidTypeError: `cls` is no TFP distribution class.
      InvalidValueError: the class does not go with the latent's support and shape.
    """
    if not (inspect.isclass(cls) and issubclass(cls, tfd.Distribution)):
        raise InvalidTypeError(f"factors[{latent.name!r}] must be a TFP distribution class, got {cls!r}.")
    wanted = "a class over that support" + ("" if latent.is_discrete else " or over the reals")
    mismatch = InvalidValueError(
        f"factors[{latent.name!r}]: {cls.__name__} does not go with latent {latent.name!r}, whose support is "
        f"{latent.support.name!r} and event shape {latent.event_shape}; wanted {wanted}."
    )
    default = default_factor(latent, dtype)
    if cls in _OURS:
        if isinstance(default, _OURS[cls]):
            return default
        if cls is tfd.Categorical and latent.support.num_categories is not None:
            return CategoricalFactor(latent, dtype)
        raise mismatch
    factor = TFPFactor(latent, cls, dtype, seed, through_bijector=False)
    try:
        own = supports.of_distribution(factor.instance, dtype, latent.name)
    except InvalidValueError as error:
        raise mismatch from error
    if own.name == "real" and not latent.is_discrete:
        return TFPFactor(latent, cls, dtype, seed, through_bijector=True)
    if not _is_same_support(factor, own, dtype):
        raise mismatch
    return factor


def _is_same_support(factor: TFPFactor, own: Support, dtype: tf.DType) -> bool:
    """Whether a factor's own support is its latent's, as far as 64 draws from either can tell."""
    (latent,) = factor.latents
    ndims, seed = len(latent.event_shape), tf.constant([0, 0])
    if own.is_discrete or latent.is_discrete:
        return own.name == latent.support.name
    if factor.distribution.event_shape != latent.event_shape:
        return False
    draws = factor.sample(64, seed)[latent.name]
    others = latent.support.bijector.forward(normal([64, *latent.base_shape], seed, dtype))
    return bool(np.all(latent.support.contains(draws, ndims)) and np.all(own.contains(others, ndims)))
