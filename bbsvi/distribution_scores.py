"""Per-sample scores of any TFP distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from bbsvi import supports
from bbsvi.errors import InvalidTypeError, InvalidValueError
from bbsvi.recording import recorded_scores
from bbsvi.scores import Scores

tfd = tfp.distributions


def per_sample_scores(distribution: Any, samples: Any) -> Scores:
    """The scores of S samples under any TFP distribution with trainable variables.

    Args:
      distribution: has `log_prob` and `trainable_variables`.
      samples: [S, *event], or a structure of these for a joint distribution. Held fixed: no
        gradient flows through how they were drawn.

    Returns:
      `Scores`, with an entry for each of `distribution.trainable_variables`. Factored where the variables are
      weights of layers, otherwise by vectorized_map of the gradient; `Scores.kind` tells.

    Raises:
      InvalidValueError: the distribution has no trainable variables, or a batch shape; the samples lack
        the sample axis or, looked at eagerly, lie outside the support.
      InvalidTypeError: not a distribution.
    """
    if not hasattr(distribution, "log_prob") or not hasattr(distribution, "trainable_variables"):
        raise InvalidTypeError(f"distribution must be a tfd.Distribution, got {type(distribution).__name__}.")
    variables = list(distribution.trainable_variables)
    if not variables:
        raise InvalidValueError(f"{distribution!r} has no trainable variables, so it has no scores.")
    if isinstance(distribution.batch_shape, tf.TensorShape) and distribution.batch_shape.rank:
        raise InvalidValueError(
            f"distribution has batch shape {distribution.batch_shape.as_list()}, wanted []: wrap it in tfd.Independent."
        )
    samples = tf.nest.map_structure(lambda x: tf.stop_gradient(tf.convert_to_tensor(x)), samples)
    _check_shapes(distribution, samples)
    if tf.executing_eagerly():
        _check_supports(distribution, samples)
    return recorded_scores(distribution.log_prob, samples, variables)


def _check_shapes(distribution: Any, samples: Any) -> None:
    """That every sample is [S, *event], with one S."""
    events = [tf.TensorShape(shape) for shape in tf.nest.flatten(distribution.event_shape)] or [tf.TensorShape([])]
    flat = tf.nest.flatten(samples)
    wanted = [f"[S{''.join(f', {n}' for n in event.as_list())}]" for event in events if event.rank is not None]
    found = [sample.shape.as_list() for sample in flat]
    sizes = {tuple(shape[:1]) for shape in found}
    fits = len(flat) == len(events) and all(
        sample.shape.rank and sample.shape[1:].is_compatible_with(event) for sample, event in zip(flat, events)
    )
    if not fits or len(sizes) != 1:
        raise InvalidValueError(f"samples must be {', '.join(wanted)} under {distribution.name}, got shapes {found}.")


def _check_supports(distribution: Any, samples: Any) -> None:
    for name, part, values in _parts(distribution, samples):
        try:
            support = supports.of_distribution(part, part.dtype, name)
        except (InvalidValueError, NotImplementedError):
            continue  # none that is known; its log density may still tell
        inside = np.asarray(support.contains(values, values.shape.rank - 1))
        if not inside.all():
            at = int(np.argmin(inside))
            raise InvalidValueError(
                f"{np.sum(~inside)} of {len(inside)} samples of {name} lie outside the support {support.name!r}, the "
                f"first at {at}: {np.asarray(values)[at]}."
            )
    log_q = np.asarray(distribution.log_prob(samples))
    if not np.isfinite(log_q).all():
        at = int(np.argmin(np.isfinite(log_q)))
        raise InvalidValueError(
            f"log q is {log_q[at]} at sample {at} of {len(log_q)}: it lies outside the support of {distribution.name}."
        )


def _parts(distribution: Any, samples: Any) -> list[tuple[str, Any, Any]]:
    """(name, distribution, samples [S, *event]) for each part of a joint distribution, or for the one there is."""
    if not isinstance(distribution, tfd.JointDistribution):
        return [(distribution.name, distribution, samples)]
    parts, _ = distribution.sample_distributions(value=samples)
    named = zip(distribution._flat_resolve_names(), tf.nest.flatten(parts), tf.nest.flatten(samples))
    return [(repr(name), part, values) for name, part, values in named]
