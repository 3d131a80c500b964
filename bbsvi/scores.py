"""Per-sample gradients and per-sample scores, from one batched pass.

The score of draw z_s is h_s = grad_lambda log q(z_s; lambda). Everything an estimator wants is a
contraction of the scores, so they are an object with contractions rather than an array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from bbsvi.errors import InvalidTypeError, InvalidValueError
from bbsvi.tracing import Traced
from bbsvi.typing import Tensor


class Scores(Protocol):
    """Scores of S draws: a list of variables, seen through contractions over the draws.

    w is [S]; a list holds one tensor a variable, in the order of the family's
    `trainable_variables`.
    """

    @property
    def num_draws(self) -> int:
        """S."""

    def weighted_sum(self, w: Tensor) -> list[Tensor]:
        """sum_s w_s h_s, shaped like the variables."""

    def weighted_square_sum(self, w: Tensor) -> list[Tensor]:
        """sum_s w_s h_s^2 (elementwise), shaped like the variables."""

    def squared_norms(self) -> Tensor:
        """||h_s||^2 over all variables together, [S]."""

    def gram(self) -> Tensor:
        """h_s . h_t over all variables together, [S, S]."""

    def dense(self) -> list[Tensor]:
        """The scores themselves, [S, *variable.shape] each."""


def checked_weights(w: Tensor, num_draws: int, dtype: tf.DType) -> Tensor:
    """w as [S] in the scores' dtype."""
    w = tf.convert_to_tensor(w)
    if not (w.dtype.is_floating or w.dtype.is_integer):
        raise InvalidTypeError(f"weights must be numbers, got dtype {w.dtype.name}.")
    if not w.shape.is_compatible_with([num_draws]):
        raise InvalidValueError(f"weights have shape {w.shape.as_list()}, wanted [{num_draws}].")
    return tf.cast(w, dtype)


class DenseScores:
    """Scores held as arrays, [S, *variable.shape] each."""

    def __init__(self, arrays: Sequence[Tensor]):
        arrays = [tf.convert_to_tensor(array) for array in arrays]
        if not arrays or any(array.shape.rank == 0 for array in arrays):
            raise InvalidValueError("scores want at least one array, each [S, *variable.shape].")
        sizes = {array.shape[0] for array in arrays}
        if len(sizes) > 1:
            raise InvalidValueError(f"scores of different numbers of draws: {sorted(map(str, sizes))}.")
        dtypes = {array.dtype.name for array in arrays}
        if len(dtypes) > 1:
            raise InvalidTypeError(f"scores of different dtypes: {sorted(dtypes)}.")
        self._arrays = arrays

    @property
    def num_draws(self) -> int:
        return self._arrays[0].shape[0]

    def _flat(self) -> list[Tensor]:
        return [tf.reshape(array, [self.num_draws, -1]) for array in self._arrays]

    def weighted_sum(self, w: Tensor) -> list[Tensor]:
        w = checked_weights(w, self.num_draws, self._arrays[0].dtype)
        return [tf.tensordot(w, array, 1) for array in self._arrays]

    def weighted_square_sum(self, w: Tensor) -> list[Tensor]:
        w = checked_weights(w, self.num_draws, self._arrays[0].dtype)
        return [tf.tensordot(w, tf.square(array), 1) for array in self._arrays]

    def squared_norms(self) -> Tensor:
        return tf.add_n([tf.reduce_sum(tf.square(flat), axis=1) for flat in self._flat()])

    def gram(self) -> Tensor:
        return tf.add_n([tf.matmul(flat, flat, transpose_b=True) for flat in self._flat()])

    def dense(self) -> list[Tensor]:
        return list(self._arrays)


class BlockScores:
    """Scores of a product: each factor's own, one after the other."""

    def __init__(self, parts: Sequence[Scores]):
        self._parts = list(parts)

    @property
    def num_draws(self) -> int:
        return self._parts[0].num_draws

    def weighted_sum(self, w: Tensor) -> list[Tensor]:
        return [array for part in self._parts for array in part.weighted_sum(w)]

    def weighted_square_sum(self, w: Tensor) -> list[Tensor]:
        return [array for part in self._parts for array in part.weighted_square_sum(w)]

    def squared_norms(self) -> Tensor:
        return tf.add_n([part.squared_norms() for part in self._parts])

    def gram(self) -> Tensor:
        return tf.add_n([part.gram() for part in self._parts])

    def dense(self) -> list[Tensor]:
        return [array for part in self._parts for array in part.dense()]


def per_sample_gradients(
    fn: Callable[[Any], Tensor], samples: Any, variables: Sequence[tf.Variable] | None = None
) -> Any:
    """The gradient of `fn` at every sample, in one batched pass of the graph.

    Wrap the call in a `tf.function` where it is made more than once: traced once, it then runs at
    the price of about one ordinary backward pass.

    Args:
      fn: maps ONE sample to a scalar.
      samples: [S, *event], or a structure of such tensors with one S.
      variables: None for gradients with respect to the samples; else variables that `fn` reads.

    Returns:
      With `variables=None`, f'(x_1)..f'(x_S), shaped like `samples`. Otherwise a list, one
      [S, *variable.shape] for each variable (zeros for one that `fn` does not depend on).

    Raises:
      InvalidValueError: no sample axis, or `fn` of one sample is not a scalar.
      InvalidTypeError: samples without a derivative (integers, with `variables=None`).
    """
    if not callable(fn):
        raise InvalidTypeError(f"fn must be a function of one sample, got {type(fn).__name__}.")
    samples = tf.nest.map_structure(tf.convert_to_tensor, samples)
    flat = tf.nest.flatten(samples)
    if isinstance(variables, (tf.Variable, tf.Tensor)) or not all(isinstance(v, tf.Variable) for v in variables or ()):
        raise InvalidTypeError(f"variables must be None or a list of tf.Variables, got {variables!r}.")
    if any(sample.shape.rank == 0 for sample in flat) or len({sample.shape[0] for sample in flat}) != 1:
        shapes = [sample.shape.as_list() for sample in flat]
        hint = " A list is taken as a structure; for S numbers pass an array." if isinstance(samples, list) else ""
        raise InvalidValueError(f"samples must all begin with one sample axis, [S, *event]; got shapes {shapes}.{hint}")

    def scalar(sample: Any) -> Tensor:
        result = fn(sample)
        if not tf.is_tensor(result):
            raise InvalidTypeError(f"fn of one sample must return a scalar tensor, got {type(result).__name__}.")
        if result.shape.rank != 0 or not result.dtype.is_floating:
            raise InvalidValueError(
                f"fn of one sample must return a scalar float, got {result.dtype.name} of shape {result.shape}."
            )
        return result

    if variables is None and not all(sample.dtype.is_floating for sample in flat):
        raise InvalidTypeError(f"samples must be floats to differentiate by, got {[s.dtype.name for s in flat]}.")

    # The tape lies inside the map: around it, XLA takes the samples for constants and compiles anew for every batch.
    def gradient(sample: Any) -> Any:
        sources = sample if variables is None else list(variables)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            value = scalar(sample)
        return tape.gradient(value, sources, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    return _vectorized_map(gradient, samples)


def _vectorized_map(fn: Callable[[Any], Any], samples: Any) -> Any:
    if not tf.executing_eagerly():
        return tf.vectorized_map(fn, samples)
    # Eagerly it would trace a graph with autograph, which puts errors of its own in place of fn's.
    return Traced(lambda samples: tf.vectorized_map(fn, samples))(samples)


def per_sample_scores(distribution: Any, samples: Any) -> DenseScores:
    """The scores of S samples under any TFP distribution with trainable variables.

    Args:
      distribution: has `log_prob` and `trainable_variables`.
      samples: [S, *event], or a structure of these for a joint distribution. Held fixed: no
        gradient flows through how they were drawn.

    Raises:
      InvalidValueError: the distribution has no trainable variables, or a batch shape.
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
    samples = tf.nest.map_structure(tf.stop_gradient, tf.nest.map_structure(tf.convert_to_tensor, samples))
    return DenseScores(per_sample_gradients(distribution.log_prob, samples, variables))
