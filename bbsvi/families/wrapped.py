"""Any TFP distribution with trainable variables as a family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from bbsvi.errors import InvalidTypeError, InvalidValueError
from bbsvi.families.base import Factor, Family, check_coverage
from bbsvi.supports import Support
from bbsvi.targets import Latent, Target
from bbsvi.typing import Seed, Tensor

tfb, tfd = tfp.bijectors, tfp.distributions


class DistributionFactor(Factor):
    """A distribution whose event is one latent's value, or a dict (or named tuple) of them."""

    through_bijector = False

    def __init__(self, distribution: Any, latents: Mapping[str, Latent]):
        super().__init__()
        self.latents = tuple(latents.values())
        self._distribution = distribution
        self._is_structured = tf.nest.is_nested(distribution.dtype)

    @property
    def trainable_variables(self) -> tuple[tf.Variable, ...]:
        return tuple(self._distribution.trainable_variables)

    @property
    def distribution(self) -> Any:
        return self._distribution

    def sample(self, num_draws: int, seed: Seed) -> dict[str, Tensor]:
        draws = self._distribution.sample(num_draws, seed=seed)
        if not self._is_structured:
            return {self.latents[0].name: draws}
        return _as_dict(draws)

    def log_prob(self, base: Mapping[str, Tensor]) -> Tensor:
        if not self._is_structured:
            return self._distribution.log_prob(base[self.latents[0].name])
        return self._distribution.log_prob(**dict(base))


class Wrapped(Family):
    """A TFP distribution as q, over the latents' own (constrained) values.

    Its `trainable_variables` are trained in place. A joint distribution's parts go by the latents'
    names; any other distribution is for a target with one latent.

    Args:
      distribution: a `tfd.Distribution` with trainable variables.
      target: if given, checked now; otherwise when `fit` is called.

    Raises:
      InvalidTypeError: not a TFP distribution.
      InvalidValueError: no trainable variables, or draws that are not values of the latents: wrong
        names, shapes, or outside a support.
    """

    def __init__(self, distribution: Any, target: Target | None = None):
        if not isinstance(distribution, tfd.Distribution):
            raise InvalidTypeError(f"distribution must be a tfd.Distribution, got {type(distribution).__name__}.")
        self.wrapped = distribution
        latents = _read_latents(distribution) if target is None else _matched_latents(distribution, target)
        dtype = target.dtype if target is not None else _float_dtype(distribution)
        super().__init__(latents, [DistributionFactor(distribution, latents)], dtype)

    def config(self) -> dict[str, Any]:
        return {"family": "Wrapped"}


def _as_dict(structure: Any) -> dict[str, Any]:
    if isinstance(structure, Mapping):
        return dict(structure)
    if hasattr(structure, "_asdict"):
        return dict(structure._asdict())
    raise InvalidValueError(
        "family: the parts of a joint distribution used as q must have names: use JointDistributionNamed, or "
        "Coroutine with named sites."
    )


def _float_dtype(distribution: Any) -> tf.DType:
    floats = [dtype for dtype in tf.nest.flatten(distribution.dtype) if dtype.is_floating]
    return floats[0] if floats else tf.float32


def _parts(distribution: Any) -> dict[str, tuple[tf.TensorShape, tf.DType]]:
    """{name: (event shape, dtype)}; one unnamed part is called "z"."""
    if not tf.nest.is_nested(distribution.dtype):
        _check_unbatched(distribution.name, distribution.batch_shape)
        return {"z": (distribution.event_shape, distribution.dtype)}
    dtypes = _as_dict(distribution.dtype)
    for name, dtype in dtypes.items():
        if not isinstance(dtype, tf.DType):
            raise InvalidTypeError(f"family: part {name!r} is itself a joint distribution; flatten q to one level.")
    batches = distribution.batch_shape  # of automatic batching, one for all parts
    for name, batch in ({"q": batches} if isinstance(batches, tf.TensorShape) else _as_dict(batches)).items():
        _check_unbatched(name, batch)
    shapes = _as_dict(distribution.event_shape)
    return {name: (shapes[name], dtypes[name]) for name in dtypes}


def _check_unbatched(name: str, batch_shape: tf.TensorShape) -> None:
    if batch_shape.rank:
        raise InvalidValueError(
            f"family: {name!r} has batch shape {batch_shape.as_list()}, wanted []: wrap it in tfd.Independent."
        )


def _read_latents(distribution: Any) -> dict[str, Latent]:
    support = Support("unknown", tfb.Identity())
    return {name: Latent(name, tuple(shape), support, dtype) for name, (shape, dtype) in _parts(distribution).items()}


def _matched_latents(distribution: Any, target: Target) -> dict[str, Latent]:
    parts = _parts(distribution)
    if not tf.nest.is_nested(distribution.dtype):
        if len(target.latents) > 1:
            raise InvalidValueError(
                f"family: {distribution.name} is over one value, the target has the latents {list(target.latents)}; "
                "use a tfd.JointDistributionNamed with a part for each."
            )
        parts = {next(iter(target.latents)): parts["z"]}
    check_coverage(list(parts), list(target.latents))
    for name, latent in target.latents.items():
        shape, dtype = parts[name]
        if tuple(shape) != latent.event_shape or dtype != latent.dtype:
            raise InvalidValueError(
                f"family: latent {name!r} is {dtype.name} {list(shape)} in q and {latent.dtype.name} "
                f"{list(latent.event_shape)} in the target."
            )
    if distribution.trainable_variables:
        _check_supports(distribution, target)
    return {name: target.latents[name] for name in parts}


def _check_supports(distribution: Any, target: Target) -> None:
    factor = DistributionFactor(distribution, {name: target.latents[name] for name in target.latents})
    for name, draws in factor.sample(256, tf.constant([0, 0])).items():
        latent = target.latents[name]
        inside = np.asarray(latent.support.contains(draws, len(latent.event_shape)))
        if not inside.all():
            raise InvalidValueError(
                f"family: {np.sum(~inside)} of 256 draws of latent {name!r} fall outside its support "
                f"{latent.support.name!r}, e.g. {np.asarray(draws)[np.argmin(inside)]}. Use a distribution on that "
                "support (tfd.TransformedDistribution carries one there)."
            )
