"""Scores of S draws, seen through contractions over the draws.

The score of draw z_s is h_s = grad_lambda log q(z_s; lambda). Everything an estimator wants is a
contraction of the scores, so they are an object with contractions rather than an array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from bbsvi.errors import InvalidTypeError, InvalidValueError
from bbsvi.typing import Tensor
from bbsvi.validation import positive_integer

CHUNK_NUMBERS = 2**22  # how many scores are held at once where all of them need not be


class Scores(Protocol):
    """Scores of S draws: a list of variables, seen through contractions over the draws.

    w is [S]; a list holds one tensor a variable, in the order of the family's
    `trainable_variables`.
    """

    @property
    def num_draws(self) -> int:
        """S."""

    @property
    def shapes(self) -> list[tf.TensorShape]:
        """Of the variables."""

    @property
    def kind(self) -> tuple[str, ...]:
        """A word for each variable: "dense" (held as an array), "factored" (an activation and a delta a draw),
        "shared" (several of both, of a layer used more than once), "embedding", "streamed" (formed a few draws at
        a time, by vectorized_map), "encoder" (by way of what an encoder puts out), or "zero" (log q does not depend
        on the variable)."""

    def weighted_sum(self, w: Tensor) -> list[Tensor]:
        """sum_s w_s h_s, shaped like the variables."""

    def weighted_square_sum(self, w: Tensor) -> list[Tensor]:
        """sum_s w_s h_s^2 (elementwise), shaped like the variables."""

    def weighted_power_sum(self, w: Tensor, power: int) -> list[Tensor]:
        """sum_s w_s h_s^power (elementwise), shaped like the variables; power >= 1."""

    def squared_norms(self) -> Tensor:
        """||h_s||^2 over all variables together, [S]."""

    def gram(self) -> Tensor:
        """h_s . h_t over all variables together, [S, S]."""

    def matvec(self, v: Sequence[Tensor]) -> Tensor:
        """h_s . v over all variables together, [S]; v is a list shaped like the variables."""

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


def checked_direction(v: Sequence[Tensor], shapes: Sequence[tf.TensorShape]) -> list[Tensor]:
    """v as a list of tensors shaped like the variables."""
    wanted = [tf.TensorShape(shape).as_list() for shape in shapes]
    if not isinstance(v, (list, tuple)):
        raise InvalidTypeError(f"v must be a list of arrays shaped like the variables, {wanted}, got {v!r}.")
    arrays = [tf.convert_to_tensor(array) for array in v]
    if [array.shape.as_list() for array in arrays] != wanted:
        raise InvalidValueError(f"v has shapes {[a.shape.as_list() for a in arrays]}, the variables have {wanted}.")
    return arrays


def power_of(x: Tensor, power: int) -> Tensor:
    """x^power, elementwise."""
    return x if power == 1 else tf.square(x) if power == 2 else tf.pow(x, tf.cast(power, x.dtype))


class Contractions:
    """What follows from the other contractions, for classes of scores to inherit."""

    def weighted_sum(self: Any, w: Tensor) -> list[Tensor]:
        return self.weighted_power_sum(w, 1)

    def weighted_square_sum(self: Any, w: Tensor) -> list[Tensor]:
        return self.weighted_power_sum(w, 2)

    def gram(self: Any) -> Tensor:
        return DenseScores(self.dense()).gram()


class DenseScores(Contractions):
    """Scores held as arrays, [S, *variable.shape] each; `kind` has a word for each array, "dense" by default."""

    def __init__(self, arrays: Sequence[Tensor], kind: Sequence[str] | None = None):
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
        self._kind = ("dense",) * len(arrays) if kind is None else tuple(kind)

    @property
    def num_draws(self) -> int:
        return self._arrays[0].shape[0]

    @property
    def shapes(self) -> list[tf.TensorShape]:
        return [array.shape[1:] for array in self._arrays]

    @property
    def kind(self) -> tuple[str, ...]:
        return self._kind

    def by_variable(self) -> list[DenseScores]:
        """One object for each variable."""
        return [DenseScores([array], [word]) for array, word in zip(self._arrays, self._kind)]

    def _flat(self) -> list[Tensor]:
        return [tf.reshape(array, [self.num_draws, -1]) for array in self._arrays]

    def weighted_power_sum(self, w: Tensor, power: int) -> list[Tensor]:
        w = checked_weights(w, self.num_draws, self._arrays[0].dtype)
        power = positive_integer("power", power)
        return [tf.tensordot(w, power_of(array, power), 1) for array in self._arrays]

    def squared_norms(self) -> Tensor:
        return tf.add_n([tf.reduce_sum(tf.square(flat), axis=1) for flat in self._flat()])

    def gram(self) -> Tensor:
        return tf.add_n([tf.matmul(flat, flat, transpose_b=True) for flat in self._flat()])

    def matvec(self, v: Sequence[Tensor]) -> Tensor:
        v = [tf.cast(tf.reshape(x, [-1]), self._arrays[0].dtype) for x in checked_direction(v, self.shapes)]
        return tf.add_n([tf.linalg.matvec(flat, x) for flat, x in zip(self._flat(), v)])

    def dense(self) -> list[Tensor]:
        return list(self._arrays)


class StreamedScores(Contractions):
    """Scores formed a few draws at a time, so that all of them are never held at once unless asked for.

    Args:
      rows: maps positions of draws, int32 [n], to their scores, [n, *variable.shape] each.
      backward: maps weights [S] to sum_s w_s h_s, which one ordinary backward pass gives.
      num_draws: S.
      shapes, dtype: of the variables.
      kind: a word for all of them.
    """

    def __init__(
        self,
        rows: Callable[[Tensor], list[Tensor]],
        backward: Callable[[Tensor], list[Tensor]],
        *,
        num_draws: int,
        shapes: Sequence[tf.TensorShape],
        dtype: tf.DType,
        kind: str = "streamed",
    ):
        self._rows, self._backward, self._num_draws = rows, backward, num_draws
        self._shapes, self._dtype, self._kind = [tf.TensorShape(shape) for shape in shapes], dtype, kind
        numbers = max(1, sum(shape.num_elements() for shape in self._shapes))
        self._size = min(num_draws, max(1, CHUNK_NUMBERS // numbers))  # draws to a chunk
        self._num_chunks = -(-num_draws // self._size)

    @property
    def num_draws(self) -> int:
        return self._num_draws

    @property
    def shapes(self) -> list[tf.TensorShape]:
        return self._shapes

    @property
    def kind(self) -> tuple[str, ...]:
        return (self._kind,) * len(self._shapes)

    def by_variable(self) -> list[StreamedScores]:
        """One object for each variable."""
        return [
            StreamedScores(
                lambda positions, index=index: [self._rows(positions)[index]],  # type: ignore[misc]
                lambda w, index=index: [self._backward(w)[index]],  # type: ignore[misc]
                num_draws=self._num_draws,
                shapes=[shape],
                dtype=self._dtype,
                kind=self._kind,
            )
            for index, shape in enumerate(self._shapes)
        ]

    def weighted_power_sum(self, w: Tensor, power: int) -> list[Tensor]:
        w = checked_weights(w, self._num_draws, self._dtype)
        if positive_integer("power", power) == 1:
            return self._backward(w)
        padded = tf.pad(w, [[0, self._num_chunks * self._size - self._num_draws]])  # repeated draws weigh nothing

        def add(chunk: Tensor, total: list[Tensor]) -> list[Tensor]:
            part = tf.slice(padded, [chunk * self._size], [self._size])
            return [t + m for t, m in zip(total, self._chunk(chunk).weighted_power_sum(part, power))]

        total = [tf.zeros(shape, self._dtype) for shape in self._shapes]
        if self._num_chunks == 1:
            return add(tf.constant(0), total)
        return tf.while_loop(
            lambda chunk, _: chunk < self._num_chunks,
            lambda chunk, total: (chunk + 1, add(chunk, total)),
            (tf.constant(0), total),
        )[1]

    def squared_norms(self) -> Tensor:
        return self._of_draws(lambda scores: scores.squared_norms())

    def matvec(self, v: Sequence[Tensor]) -> Tensor:
        v = checked_direction(v, self._shapes)
        return self._of_draws(lambda scores: scores.matvec(v))

    def dense(self) -> list[Tensor]:
        return self._rows(tf.range(self._num_draws))

    def _chunk(self, chunk: Tensor) -> DenseScores:
        """Scores of one chunk's draws; what the last one lacks is made up by repeating the last draw."""
        return DenseScores(self._rows(tf.minimum(chunk * self._size + tf.range(self._size), self._num_draws - 1)))

    def _of_draws(self, fn: Callable[[DenseScores], Tensor]) -> Tensor:
        """A number for each draw, [S], chunk by chunk."""
        if self._num_chunks == 1:
            return fn(self._chunk(tf.constant(0)))
        array = tf.TensorArray(self._dtype, self._num_chunks, element_shape=[self._size])
        _, array = tf.while_loop(
            lambda chunk, _: chunk < self._num_chunks,
            lambda chunk, array: (chunk + 1, array.write(chunk, fn(self._chunk(chunk)))),
            (tf.constant(0), array),
        )
        return tf.reshape(array.stack(), [-1])[: self._num_draws]


class BlockScores:
    """Scores by several groups of variables, each of its own kind, one after the other.

    `weighted_sum` and its like take w [S], or [S, F] with a column for each of the F parts.
    """

    def __init__(self, parts: Sequence[Scores]):
        self._parts = list(parts)

    @property
    def num_draws(self) -> int:
        return self._parts[0].num_draws

    @property
    def shapes(self) -> list[tf.TensorShape]:
        return [shape for part in self._parts for shape in part.shapes]

    @property
    def kind(self) -> tuple[str, ...]:
        return tuple(word for part in self._parts for word in part.kind)

    def _by_part(self, w: Tensor) -> list[Tensor]:
        w, count = tf.convert_to_tensor(w), len(self._parts)
        if w.shape.rank != 2:
            return [w] * count
        if w.shape[1] != count:
            raise InvalidValueError(
                f"weights have shape {w.shape.as_list()}, wanted [{self.num_draws}] or [{self.num_draws}, {count}], a "
                f"column for each of {count} parts."
            )
        return tf.unstack(w, axis=1)

    def weighted_sum(self, w: Tensor) -> list[Tensor]:
        return [x for part, own in zip(self._parts, self._by_part(w)) for x in part.weighted_sum(own)]

    def weighted_square_sum(self, w: Tensor) -> list[Tensor]:
        return [x for part, own in zip(self._parts, self._by_part(w)) for x in part.weighted_square_sum(own)]

    def weighted_power_sum(self, w: Tensor, power: int) -> list[Tensor]:
        return [x for part, own in zip(self._parts, self._by_part(w)) for x in part.weighted_power_sum(own, power)]

    def squared_norms(self) -> Tensor:
        return tf.add_n([part.squared_norms() for part in self._parts])

    def gram(self) -> Tensor:
        return tf.add_n([part.gram() for part in self._parts])

    def matvec(self, v: Sequence[Tensor]) -> Tensor:
        v, products = checked_direction(v, self.shapes), []
        for part in self._parts:
            own, v = v[: len(part.shapes)], v[len(part.shapes) :]
            products.append(part.matvec(own))
        return tf.add_n(products)

    def dense(self) -> list[Tensor]:
        return [array for part in self._parts for array in part.dense()]
