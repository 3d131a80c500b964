"""Per-sample gradients and per-sample scores, from one batched pass.

The score of draw z_s is h_s = grad_lambda log q(z_s; lambda). Everything an estimator wants is a
contraction of the scores, so they are an object with contractions rather than an array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from bbsvi.errors import InvalidTypeError, InvalidValueError
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


class DenseScores:
    """Scores held as arrays, [S, *variable.shape] each."""

    def __init__(self, arrays: Sequence[Tensor]):
        arrays = [tf.convert_to_tensor(array) for array in arrays]
        if not arrays or any(array.shape.rank == 0 for array in arrays):
            raise InvalidValueError("scores want at least one array, each [S, *variable.shape].")
        sizes = {array.shape[0] for array in arrays}
        if len(sizes) > 1:
            raise InvalidValueError(f"scores of different numbers of draws: {sorted(map(str, sizes))}.")
        self._arrays = arrays

    @property
    def num_draws(self) -> int:
        return self._arrays[0].shape[0]

    def _weights(self, w: Tensor) -> Tensor:
        w = tf.cast(w, self._arrays[0].dtype)
        if not w.shape.is_compatible_with([self.num_draws]):
            raise InvalidValueError(f"weights have shape {w.shape.as_list()}, wanted [{self.num_draws}].")
        return w

    def _flat(self) -> list[Tensor]:
        return [tf.reshape(array, [self.num_draws, -1]) for array in self._arrays]

    def weighted_sum(self, w: Tensor) -> list[Tensor]:
        w = self._weights(w)
        return [tf.tensordot(w, array, 1) for array in self._arrays]

    def weighted_square_sum(self, w: Tensor) -> list[Tensor]:
        w = self._weights(w)
        return [tf.tensordot(w, tf.square(array), 1) for array in self._arrays]

    def squared_norms(self) -> Tensor:
        return tf.add_n([tf.reduce_sum(tf.square(flat), axis=1) for flat in self._flat()])

    def gram(self) -> Tensor:
        return tf.add_n([tf.matmul(flat, flat, transpose_b=True) for flat in self._flat()])

    def dense(self) -> list[Tensor]:
        return list(self._arrays)


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
    if any(sample.shape.rank == 0 for sample in flat) or len({sample.shape[0] for sample in flat}) != 1:
        shapes = [sample.shape.as_list() for sample in flat]
        raise InvalidValueError(f"samples must all begin with one sample axis, [S, *event]; got shapes {shapes}.")

    def scalar(sample: Any) -> Tensor:
        result = tf.convert_to_tensor(fn(sample))
        if result.shape.rank != 0:
            raise InvalidValueError(f"fn of one sample must be a scalar, got shape {result.shape.as_list()}.")
        return result

    if variables is None:
        if not all(sample.dtype.is_floating for sample in flat):
            raise InvalidTypeError(f"samples must be floats to differentiate by, got {[s.dtype.name for s in flat]}.")
        # fn(x_s) depends on x_s alone, so the gradient of the sum is the gradient of each.
        with tf.GradientTape() as tape:
            tape.watch(samples)
            total = tf.reduce_sum(tf.vectorized_map(scalar, samples))
        return tape.gradient(total, samples, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    variables = list(variables)

    def gradient(sample: Any) -> list[Tensor]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            value = scalar(sample)
        return tape.gradient(value, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    return tf.vectorized_map(gradient, samples)


def per_sample_scores(distribution: Any, samples: Any) -> DenseScores:
    """The scores of S samples under any TFP distribution with trainable variables.

    Args:
      distribution: has `log_prob` and `trainable_variables`.
      samples: [S, *event], or a structure of these for a joint distribution. Held fixed: no
        gradient flows through how they were drawn.

    Raises:
      InvalidValueError: the distribution has no trainable variables.
    """
    variables = list(distribution.trainable_variables)
    if not variables:
        raise InvalidValueError(f"{distribution!r} has no trainable variables, so it has no scores.")
    samples = tf.nest.map_structure(tf.stop_gradient, tf.nest.map_structure(tf.convert_to_tensor, samples))
    return DenseScores(per_sample_gradients(distribution.log_prob, samples, variables))
