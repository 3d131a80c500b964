"""The gradient of a function at every sample, from one batched pass of the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from bbsvi.errors import InvalidTypeError, InvalidValueError
from bbsvi.scores import CHUNK_NUMBERS, DenseScores, StreamedScores
from bbsvi.tracing import Traced
from bbsvi.typing import Tensor


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

    return _gradients(scalar, samples, variables)


def _gradients(
    fn: Callable[[Any], Tensor], samples: Any, variables: Sequence[tf.Variable] | None, missing: set[int] | None = None
) -> Any:
    """The gradients; `missing` is given the positions of those variables that `fn` does not depend on."""

    # The tape lies inside the map: around it, XLA takes the samples for constants and compiles anew for every batch.
    def gradient(sample: Any) -> Any:
        sources = sample if variables is None else list(variables)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            value = fn(sample)
        found = tape.gradient(value, sources)
        flat = zip(tf.nest.flatten(found), tf.nest.flatten(sources))
        filled = [tf.zeros_like(source) if part is None else tf.convert_to_tensor(part) for part, source in flat]
        if missing is not None:
            missing.update(index for index, part in enumerate(tf.nest.flatten(found)) if part is None)
        return tf.nest.pack_sequence_as(sources, filled)

    return _vectorized_map(gradient, samples)


def _vectorized_map(fn: Callable[[Any], Any], samples: Any) -> Any:
    if not tf.executing_eagerly():
        return tf.vectorized_map(fn, samples)
    # Eagerly it would trace a graph with autograph, which puts errors of its own in place of fn's.
    return Traced(lambda samples: tf.vectorized_map(fn, samples))(samples)


def mapped_scores(
    log_prob: Callable[[Any], Tensor], samples: Any, variables: Sequence[tf.Variable]
) -> DenseScores | StreamedScores:
    """Scores by vectorized_map of the gradient: dense, or streamed where there are many.

    Args:
      log_prob: maps samples [S, *event], or a structure of them, to [S], for any S.
      samples: held fixed.
    """
    num_draws = tf.nest.flatten(samples)[0].shape[0]

    def one(sample: Any) -> Tensor:
        log_q = log_prob(tf.nest.map_structure(lambda x: x[None], sample))  # what takes S draws takes one
        if log_q.shape != [1]:
            raise InvalidValueError(f"log q of 1 draw must have shape [1], got {log_q.shape.as_list()}.")
        return log_q[0]

    if num_draws * sum(variable.shape.num_elements() for variable in variables) <= CHUNK_NUMBERS:
        missing: set[int] = set()
        arrays = _gradients(one, samples, variables, missing)
        return DenseScores(arrays, ["zero" if index in missing else "dense" for index in range(len(variables))])

    def rows(positions: Tensor) -> list[Tensor]:
        return _gradients(one, tf.nest.map_structure(lambda x: tf.gather(x, positions), samples), variables)

    def backward(w: Tensor) -> list[Tensor]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            total = tf.reduce_sum(w * log_prob(samples))
        return tape.gradient(total, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    shapes, dtype = [variable.shape for variable in variables], variables[0].dtype
    return StreamedScores(rows, backward, num_draws=num_draws, shapes=shapes, dtype=dtype)
