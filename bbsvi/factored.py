"""Scores of a layer's weights that stay factored: an activation times a delta for every draw.

Goodfellow 2015, "Efficient per-example gradient computations", arXiv:1510.01799: in a layer x W + b the
gradient by W at draw s is the outer product of the layer's input a_s and the gradient delta_s by its
output. An output belongs to one draw, so one backward pass of the sum over draws gives every delta_s,
and all that is wanted of the scores follows without the S x P matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from bbsvi.errors import InvalidTypeError
from bbsvi.scores import Contractions, DenseScores, StreamedScores, checked_direction, checked_weights, power_of
from bbsvi.typing import Tensor
from bbsvi.validation import positive_integer


class KernelScores(Contractions):
    """h_s = sum_t a_st (x) delta_st, times the mask, by one kernel.

    T = 1 where a layer is applied once to each draw, and more where its weights are shared: by several calls,
    by the positions of a sequence or by those of an image.

    Args:
      activation: a, [S, T, inputs].
      delta: [S, T, outputs].
      shape: of the variable, `inputs * outputs` numbers.
      mask: what the kernel is multiplied by, with as many numbers; or None.
    """

    def __init__(
        self, activation: Tensor, delta: Tensor, shape: tf.TensorShape | None = None, mask: Tensor | None = None
    ):
        if activation.dtype != delta.dtype:
            raise InvalidTypeError(f"a layer's input is {activation.dtype.name}, its output {delta.dtype.name}.")
        self.activation, self.delta = activation, delta
        inputs, outputs = activation.shape[2], delta.shape[2]
        self._shape = tf.TensorShape([inputs, outputs] if shape is None else shape)
        self._mask = None if mask is None else tf.cast(tf.reshape(mask, [inputs, outputs]), delta.dtype)

    @property
    def num_draws(self) -> int:
        return self.delta.shape[0]

    @property
    def shapes(self) -> list[tf.TensorShape]:
        return [self._shape]

    @property
    def kind(self) -> tuple[str, ...]:
        return ("shared",) if self._is_shared else ("factored",)

    @property
    def _is_shared(self) -> bool:
        return self.activation.shape[1] > 1

    def _as_variable(self, kernel: Tensor, power: int = 1) -> list[Tensor]:
        """[..., inputs, outputs], times the mask, in the variable's shape."""
        masked = kernel if self._mask is None else kernel * power_of(self._mask, power)
        return [tf.reshape(masked, [*kernel.shape[:-2], *self._shape])]

    def weighted_power_sum(self, w: Tensor, power: int) -> list[Tensor]:
        w = checked_weights(w, self.num_draws, self.delta.dtype)
        if positive_integer("power", power) > 1 and self._is_shared:
            # A power of a sum over positions has cross terms, which do not factor.
            return self._streamed().weighted_power_sum(w, power)
        right = w[:, None, None] * power_of(self.delta, power)
        return self._as_variable(_outer_sum(power_of(self.activation, power), right), power)

    def squared_norms(self) -> Tensor:
        if self._mask is not None:
            if self._is_shared:
                return self._streamed().squared_norms()
            a, d = tf.square(self.activation[:, 0]), tf.square(self.delta[:, 0])
            return tf.reduce_sum(tf.matmul(a, tf.square(self._mask)) * d, axis=1)
        _, positions, inputs = self.activation.shape
        outputs = self.delta.shape[2]
        if positions > 1 and positions * (inputs + outputs) > inputs * outputs:  # cheaper formed than not
            return self._streamed().squared_norms()
        products = tf.matmul(self.activation, self.activation, transpose_b=True)  # [S, T, T]
        return tf.reduce_sum(products * tf.matmul(self.delta, self.delta, transpose_b=True), axis=[1, 2])

    def gram(self) -> Tensor:
        if self._mask is not None or self._is_shared:
            return DenseScores(self.dense()).gram()
        a, d = self.activation[:, 0], self.delta[:, 0]
        return tf.matmul(a, a, transpose_b=True) * tf.matmul(d, d, transpose_b=True)

    def matvec(self, v: Sequence[Tensor]) -> Tensor:
        (kernel,) = checked_direction(v, self.shapes)
        kernel = tf.cast(tf.reshape(kernel, [self.activation.shape[2], self.delta.shape[2]]), self.delta.dtype)
        kernel = kernel if self._mask is None else kernel * self._mask
        return tf.einsum("sti,io,sto->s", self.activation, kernel, self.delta)

    def dense(self) -> list[Tensor]:
        return self._rows(tf.range(self.num_draws))

    def _rows(self, draws: Tensor) -> list[Tensor]:
        a, d = tf.gather(self.activation, draws), tf.gather(self.delta, draws)
        return self._as_variable(tf.matmul(a, d, transpose_a=True))

    def _streamed(self) -> StreamedScores:
        return StreamedScores(
            self._rows,
            self.weighted_sum,
            num_draws=self.num_draws,
            shapes=self.shapes,
            dtype=self.delta.dtype,
        )


class EmbeddingScores(Contractions):
    """Scores by a table whose rows are looked up: row v has the sum of delta_st over the t with id_st = v.

    A row looked up more than once for a draw has to be summed before it is squared. The sum is kept at the first
    of its positions, so that shapes do not depend on the ids.

    Args:
      ids: [S, T], ints.
      delta: the gradient by what was looked up, [S, T, *row].
      num_rows: of the table.
    """

    def __init__(self, ids: Tensor, delta: Tensor, num_rows: int):
        self._ids, self._row, self._num_rows = ids, delta.shape[2:], num_rows
        flat = tf.reshape(delta, [*ids.shape, -1])
        same = tf.equal(ids[:, :, None], ids[:, None, :])  # [S, T, T]
        before = tf.linalg.band_part(tf.ones([ids.shape[1]] * 2, tf.int32), -1, 0) - tf.eye(
            ids.shape[1], dtype=tf.int32
        )
        is_first = tf.equal(tf.reduce_sum(tf.cast(same, tf.int32) * before, axis=2), 0)
        summed = tf.matmul(tf.cast(same, delta.dtype), flat)
        self._delta = tf.where(is_first[:, :, None], summed, tf.zeros_like(summed))  # [S, T, numbers in a row]

    @property
    def num_draws(self) -> int:
        return self._ids.shape[0]

    @property
    def shapes(self) -> list[tf.TensorShape]:
        return [tf.TensorShape([self._num_rows, *self._row])]

    @property
    def kind(self) -> tuple[str, ...]:
        return ("embedding",)

    def weighted_power_sum(self, w: Tensor, power: int) -> list[Tensor]:
        w = checked_weights(w, self.num_draws, self._delta.dtype)
        terms = w[:, None, None] * power_of(self._delta, positive_integer("power", power))
        rows = tf.reshape(terms, [-1, terms.shape[2]])
        table = tf.math.unsorted_segment_sum(rows, tf.reshape(self._ids, [-1]), self._num_rows)
        return [tf.reshape(table, self.shapes[0])]

    def squared_norms(self) -> Tensor:
        return tf.reduce_sum(tf.square(self._delta), axis=[1, 2])

    def matvec(self, v: Sequence[Tensor]) -> Tensor:
        (table,) = checked_direction(v, self.shapes)
        table = tf.cast(tf.reshape(table, [self._num_rows, -1]), self._delta.dtype)
        return tf.reduce_sum(self._delta * tf.gather(table, self._ids), axis=[1, 2])

    def dense(self) -> list[Tensor]:
        hot = tf.one_hot(self._ids, self._num_rows, dtype=self._delta.dtype)  # [S, T, num_rows]
        table = tf.matmul(hot, self._delta, transpose_a=True)
        return [tf.reshape(table, [self.num_draws, *self.shapes[0]])]


def linear(x: Tensor, kernel: tf.Variable, bias: tf.Variable | None = None, mask: Tensor | None = None) -> Tensor:
    """x (W * mask) + b, whose scores stay factored.

    Args:
      x: [S, inputs].
      kernel: W, a variable [inputs, outputs].
      bias: b, a variable [outputs].
      mask: [inputs, outputs], of zeros and ones.
    """
    output = tf.matmul(x, kernel if mask is None else kernel * mask)
    return output if bias is None else output + bias


def patches(x: Tensor, kernel_shape: Sequence[int], strides: Sequence[int], padding: str) -> Tensor:
    """What each position of a convolution's output sees of its input, [S, T, height * width * channels].

    Args:
      x: [S, height, width, channels].
      kernel_shape: [height, width, channels, outputs], of the kernel.
      strides: four numbers, as `tf.nn.conv2d` takes them.
      padding: "SAME" or "VALID".
    """
    found = tf.image.extract_patches(x, [1, *kernel_shape[:2], 1], strides, [1, 1, 1, 1], padding)
    return tf.reshape(found, [x.shape[0], -1, math.prod(kernel_shape[:3])])


def _outer_sum(left: Tensor, right: Tensor) -> Tensor:
    """sum_st left_st (x) right_st, [inputs, outputs]."""
    flat = [tf.reshape(x, [-1, x.shape[2]]) for x in (left, right)]
    return tf.matmul(flat[0], flat[1], transpose_a=True)
