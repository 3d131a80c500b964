"""TFP joint distributions as log densities of their unobserved sites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from bbsvi import supports
from bbsvi.errors import InvalidTypeError, InvalidValueError
from bbsvi.targets.base import Latent, Terms
from bbsvi.tracing import Traced
from bbsvi.typing import Tensor, Values
from bbsvi.validation import known_name, observed_array

tfd = tfp.distributions
Pinned = tfp.experimental.distributions.JointDistributionPinned

_SEED = (0, 1)  # for the samples that shapes, supports and dependences are read from


def is_joint(target: Any) -> bool:
    return isinstance(target, (tfd.JointDistribution, Pinned))


def split(joint: Any, data: Mapping[str, Any] | None) -> tuple[dict[str, Latent], Terms, dict[str, np.ndarray]]:
    """The latents, the terms (one a site) and the observed values of a joint distribution.

    Args:
      joint: any `tfd.JointDistribution*`, or one with sites already pinned.
      data: {site: array}; sites neither here nor pinned are latent. {} says that nothing is observed.

    Raises:
      InvalidValueError: unknown or missing sites, wrong shapes, latents whose support is not known.
      InvalidTypeError: data of a dtype the site cannot take.
    """
    pins: dict[str, Any] = {}
    if isinstance(joint, Pinned):
        pins, joint = dict(joint.pins), joint.distribution
    names = list(joint._flat_resolve_names())
    dtypes = _by_name(joint, joint.dtype)
    for name, dtype in dtypes.items():
        if not isinstance(dtype, tf.DType):
            raise InvalidTypeError(f"site {name!r} is itself a joint distribution; flatten the model to one level.")
    shapes = _by_name(joint, joint.event_shape)
    _check_unbatched(joint)
    for site in data or {}:
        if site in pins:
            raise InvalidValueError(f"data[{site!r}] is given but the joint distribution already pins {site!r}.")
        known_name("data", site, names)
    observed = {
        site: observed_array(site, value, dtypes[site], shapes[site])
        for site, value in {**pins, **(data or {})}.items()
    }
    free = [name for name in names if name not in observed]
    if not free:
        raise InvalidValueError(f"every site is observed ({names}): there is no latent to fit.")
    if not isinstance(data, Mapping) or data:  # data={} says outright that nothing more is observed
        _check_nothing_forgotten(joint, names, observed, pinned=bool(pins))
    return _latents(joint, free, shapes, dtypes, observed), _terms(joint, observed, dtypes), observed


def float_dtype(latents: Mapping[str, Latent]) -> tf.DType:
    """The one float dtype of the latents (float32 where all are discrete)."""
    dtypes = {latent.dtype.name for latent in latents.values() if latent.dtype.is_floating}
    if len(dtypes) > 1:
        per_site = {latent.name: latent.dtype.name for latent in latents.values()}
        raise InvalidTypeError(f"the latents have different float dtypes {per_site}; build the model in one.")
    return tf.as_dtype(dtypes.pop()) if dtypes else tf.float32


def _by_name(joint: Any, structure: Any) -> dict[str, Any]:
    """{site: part} of a structure shaped like the joint's values."""
    if isinstance(structure, Mapping):
        return dict(structure)
    if hasattr(structure, "_asdict"):
        return dict(structure._asdict())
    return dict(zip(joint._flat_resolve_names(), structure))


def _sample(joint: Any, observed: Mapping[str, Any], seed: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The sites' distributions and one sample of them, given the observed values."""
    given = {site: tf.constant(value) for site, value in observed.items()}
    distributions, values = joint.sample_distributions(seed=[_SEED[0], seed], **given)
    return _by_name(joint, distributions), _by_name(joint, values)


def _check_unbatched(joint: Any) -> None:
    """That each site's distribution is one event: left as a batch, its terms would be broadcast."""
    if joint.use_vectorized_map:
        return
    for site, distribution in _sample(joint, {}, 1)[0].items():
        if distribution.batch_shape.rank:
            raise InvalidValueError(
                f"site {site!r} has batch shape {distribution.batch_shape.as_list()}, wanted []: wrap it in "
                "tfd.Independent or tfd.Sample, or use a JointDistribution*AutoBatched class."
            )


def _latents(joint: Any, free: list[str], shapes: Any, dtypes: Any, observed: Any) -> dict[str, Latent]:
    first, _ = _sample(joint, observed, 1)
    second, _ = _sample(joint, observed, 2)
    dtype = next((dtypes[name] for name in free if dtypes[name].is_floating), tf.float32)
    latents = {}
    for name in free:
        if not shapes[name].is_fully_defined():
            raise InvalidValueError(f"latent {name!r} has no fully known event shape, got {shapes[name]}.")
        support = supports.of_distribution(first[name], dtype, name)
        event_shape = tuple(shapes[name])
        _check_fixed(name, support, supports.of_distribution(second[name], dtype, name), event_shape, dtype)
        latents[name] = Latent(name, event_shape, support, support.value_dtype(dtypes[name]))
    return latents


def _check_fixed(name: str, one: Any, other: Any, event_shape: tuple[int, ...], dtype: tf.DType) -> None:
    """That a latent's support is the same whatever the other sites are."""
    moves = one.name != other.name or one.num_categories != other.num_categories
    if not moves and not one.is_discrete:
        base = tf.fill(one.bijector.inverse_event_shape(tf.TensorShape(event_shape)), tf.constant(0.5, dtype))
        moves = not np.array_equal(one.bijector.forward(base), other.bijector.forward(base))
    if moves:
        raise InvalidValueError(
            f"latent {name!r}: its support depends on other sites. Write it as a fixed support times or plus a "
            "function of the others, or give the model as a bbsvi.Target."
        )


def _terms(joint: Any, observed: Mapping[str, Any], dtypes: Mapping[str, tf.DType]) -> Terms:
    # A joint without automatic batching lines up sample axes with event axes without a word, so the
    # log density is always that of one draw, vectorised over draws.
    given = {site: tf.constant(value) for site, value in observed.items()}

    def one_draw(values: Values) -> dict[str, Tensor]:
        cast = {name: tf.cast(value, dtypes[name]) for name, value in values.items()}
        parts = _by_name(joint, joint.log_prob_parts(**cast, **given))
        for site, part in parts.items():
            if part.shape.rank != 0:
                raise InvalidValueError(
                    f"the log density of site {site!r} at one draw has shape {part.shape.as_list()}, wanted []."
                )
        return parts

    vectorized = Traced(lambda values: tf.vectorized_map(one_draw, values))

    def terms(values: Values) -> dict[str, Tensor]:
        if tf.executing_eagerly():
            return vectorized(dict(values))
        return tf.vectorized_map(one_draw, dict(values))

    return terms


def _check_nothing_forgotten(joint: Any, names: list[str], observed: Mapping[str, Any], *, pinned: bool) -> None:
    """A site that depends on others, that none depends on, and that has no data was most likely
    meant to be observed: left latent, the posterior would quietly be the prior."""
    if pinned:
        return
    parents = _parents(joint, names)
    forgotten = [
        name
        for name in names
        if name not in observed and parents[name] and not any(name in others for others in parents.values())
    ]
    if forgotten:
        raise InvalidValueError(
            f"no data for site {forgotten[0]!r}, which no other site depends on; the sites are {names} and data has "
            f"{sorted(observed)}. Pass data={{{forgotten[0]!r}: ...}}; if it really is a latent, pin the observed "
            "sites with joint.experimental_pin(...), or pass data={} where nothing is observed."
        )


def _parents(joint: Any, names: list[str]) -> dict[str, set[str]]:
    """Which sites each site's density depends on, found by changing one value at a time."""
    draws = [_sample(joint, {}, seed)[1] for seed in range(1, 9)]
    parents: dict[str, set[str]] = {name: set() for name in names}
    for here in draws[:2]:  # at two points: a density may be flat at one of them
        parts = _by_name(joint, joint.log_prob_parts(**here))
        for changed in names:
            if not tf.size(here[changed]):
                continue
            others = [draw[changed] for draw in draws if not np.array_equal(draw[changed], here[changed])]
            # What never moves may be anyone's parent.
            moved = _by_name(joint, joint.log_prob_parts(**{**here, changed: others[0]})) if others else {}
            for name in names:
                same = name in moved and np.array_equal(parts[name], moved[name], equal_nan=True)
                if name != changed and not same:
                    parents[name].add(changed)
    return parents
