"""Factors over one latent: a Gaussian through the support's bijector, or a discrete distribution."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from bbsvi import supports
from bbsvi.errors import InvalidTypeError, InvalidValueError
from bbsvi.families.base import Factor
from bbsvi.families.forms import BERNOULLI, CATEGORICAL, NORMAL, POISSON, Form, form_of
from bbsvi.randomness import normal
from bbsvi.scores import Scores
from bbsvi.supports import Support
from bbsvi.targets import Latent
from bbsvi.typing import Seed, Tensor
from bbsvi.validation import one_line

tfd = tfp.distributions

_LARGEST_FOR_XLA = 1_000


def event_shaped(distribution: Any, ndims: int) -> Any:
    """The distribution with its last `ndims` batch axes as event axes."""
    return tfd.Independent(distribution, reinterpreted_batch_ndims=ndims) if ndims else distribution


class ParametricFactor(Factor):
    """Independent distributions of one form, with a variable for each of its parameters, all zero at first.

    Attributes:
      parameters: {name: variable}.
    """

    def __init__(self, latent: Latent, form: Form, dtype: tf.DType):
        super().__init__()
        self.latents, self.form = (latent,), form
        self.parameters = {
            name: tf.Variable(tf.zeros(shape, dtype), name=name)
            for name, shape in form.parameter_shapes(latent).items()
        }

    @property
    def trainable_variables(self) -> tuple[tf.Variable, ...]:
        return tuple(self.parameters[name] for name in self.form.parameters)

    @property
    def suits_xla(self) -> bool:
        return sum(variable.shape.num_elements() for variable in self.trainable_variables) <= _LARGEST_FOR_XLA

    @property
    def distribution(self) -> Any:
        return event_shaped(self.form.distribution(self.trainable_variables), len(self.latents[0].base_shape))

    def sample(self, num_draws: int, seed: Seed) -> dict[str, Tensor]:
        return {self.latents[0].name: self.form.sample(num_draws, seed, self.trainable_variables)}

    def scores(self, base: Mapping[str, Tensor]) -> Scores:
        return self.form.scores(base[self.latents[0].name], self.trainable_variables)


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
    return ParametricFactor(latent, form_of(latent), dtype)


_FORMS = {tfd.Normal: NORMAL, tfd.Bernoulli: BERNOULLI, tfd.Categorical: CATEGORICAL, tfd.Poisson: POISSON}


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
    if cls in _FORMS:
        if form_of(latent) is _FORMS[cls] or (cls is tfd.Categorical and latent.support.num_categories is not None):
            return ParametricFactor(latent, _FORMS[cls], dtype)
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
