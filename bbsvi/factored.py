"""Scores of linear layers that stay factored: an activation times a delta for every draw.

Goodfellow 2015, "Efficient per-example gradient computations", arXiv:1510.01799: in a layer x W + b the
gradient by W at draw s is the outer product of the layer's input a_s and the gradient delta_s by its
output. An output belongs to one draw, so one backward pass of the sum over draws gives every delta_s,
and all that is wanted of the scores follows without the S x P matrix.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from bbsvi.errors import InvalidTypeError, InvalidValueError
from bbsvi.scores import DenseScores, checked_weights
from bbsvi.typing import Tensor

_CHUNK_NUMBERS = 2**24  # how many scores of a reused layer are formed at once

_active = threading.local()


class _Recorder:
    """The linear layers called while it is active: kernel, bias, mask, inputs and zero perturbations of outputs."""

    def __init__(self, tape: tf.GradientTape):
        self.tape = tape
        self.uses: dict[Any, list[tuple[Tensor, Tensor]]] = {}  # by reference to the kernel
        self.layers: dict[Any, tuple[Any, Any, Any]] = {}

    def __enter__(self) -> _Recorder:
        self._outer = getattr(_active, "recorder", None)
        _active.recorder = self
        return self

    def __exit__(self, *exception: Any) -> None:
        _active.recorder = self._outer

    def add(self, x: Tensor, output: Tensor, kernel: Any, bias: Any, mask: Any) -> Tensor:
        perturbation = tf.zeros_like(output)
        self.tape.watch(perturbation)
        self.uses.setdefault(kernel.ref(), []).append((x, perturbation))
        self.layers[kernel.ref()] = (kernel, bias, mask)
        return output + perturbation


def linear(x: Tensor, kernel: tf.Variable, bias: tf.Variable | None = None, mask: Tensor | None = None) -> Tensor:
    """x (W * mask) + b, whose scores `factored_scores` can keep factored.

    Args:
      x: [S, inputs].
      kernel: W, a variable [inputs, outputs].
      bias: b, a variable [outputs].
      mask: [inputs, outputs], of zeros and ones.
    """
    weights = kernel if mask is None else kernel * mask
    output = tf.matmul(x, weights)
    output = output if bias is None else output + bias
    recorder = getattr(_active, "recorder", None)
    return output if recorder is None else recorder.add(x, output, kernel, bias, mask)


def factored_scores(log_prob: Callable[[], Tensor], variables: Sequence[tf.Variable]) -> FactoredScores:
    """Scores of S draws under a log density whose every parameter is the kernel or bias of a `linear`.

    Args:
      log_prob: () -> [S], log q of S fixed draws, each a function of its own rows alone.
      variables: in the order wanted. A layer may be called more than once.

    Raises:
      InvalidValueError: a variable that is in no `linear`, or `log_prob` that does not give [S].
    """
    with tf.GradientTape(watch_accessed_variables=False) as tape, _Recorder(tape) as recorder:
        log_q = log_prob()
        if log_q.shape.rank != 1:
            raise InvalidValueError(f"log q of S draws must have shape [S], got {log_q.shape.as_list()}.")
        total = tf.reduce_sum(log_q)
    uses = {key: [perturbation for _, perturbation in pairs] for key, pairs in recorder.uses.items()}
    deltas = tape.gradient(total, uses, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    found: dict[Any, _Kernel | _Bias] = {}
    for key, pairs in recorder.uses.items():
        kernel, bias, mask = recorder.layers[key]
        activation = tf.stack([x for x, _ in pairs], axis=1)  # [S, T, inputs]
        delta = tf.stack(deltas[key], axis=1)  # [S, T, outputs]
        found[kernel.ref()] = _Kernel(activation, delta, mask)
        if bias is not None:
            if bias.ref() in found:
                raise InvalidValueError(f"variable {bias.name!r} is the bias of more than one kernel.")
            found[bias.ref()] = _Bias(delta)
    missing = [variable.name for variable in variables if variable.ref() not in found]
    if missing:
        raise InvalidValueError(f"variables {missing} are the kernel or bias of no linear layer in log q.")
    return FactoredScores([found[variable.ref()] for variable in variables])


class FactoredScores:
    """Scores of linear layers' kernels and biases, from `factored_scores`."""

    def __init__(self, parts: Sequence[_Kernel | _Bias]):
        self._parts = list(parts)

    @property
    def num_draws(self) -> int:
        return self._parts[0].delta.shape[0]

    def _weights(self, w: Tensor) -> Tensor:
        return checked_weights(w, self.num_draws, self._parts[0].delta.dtype)

    def weighted_sum(self, w: Tensor) -> list[Tensor]:
        w = self._weights(w)
        return [part.weighted_sum(w) for part in self._parts]

    def weighted_square_sum(self, w: Tensor) -> list[Tensor]:
        w = self._weights(w)
        return [part.weighted_square_sum(w) for part in self._parts]

    def squared_norms(self) -> Tensor:
        return tf.add_n([part.squared_norms() for part in self._parts])

    def gram(self) -> Tensor:
        return tf.add_n([part.gram() for part in self._parts])

    def dense(self) -> list[Tensor]:
        return [part.dense() for part in self._parts]


class _Bias:
    """h_s = sum_t delta_st, [S, outputs]: no larger than delta, so held."""

    def __init__(self, delta: Tensor):
        self.delta = tf.reduce_sum(delta, axis=1)
        self._scores = DenseScores([self.delta])

    def weighted_sum(self, w: Tensor) -> Tensor:
        return self._scores.weighted_sum(w)[0]

    def weighted_square_sum(self, w: Tensor) -> Tensor:
        return self._scores.weighted_square_sum(w)[0]

    def squared_norms(self) -> Tensor:
        return self._scores.squared_norms()

    def gram(self) -> Tensor:
        return self._scores.gram()

    def dense(self) -> Tensor:
        return self.delta


class _Kernel:
    """h_s = sum_t a_st (x) delta_st, times the mask; T = 1 where the layer is called once."""

    def __init__(self, activation: Tensor, delta: Tensor, mask: Tensor | None):
        if activation.dtype != delta.dtype:
            raise InvalidTypeError(f"linear: input is {activation.dtype.name}, output {delta.dtype.name}.")
        self.activation, self.delta = activation, delta
        self._mask = mask
        self._is_reused = activation.shape[1] > 1

    def _masked(self, kernel: Tensor) -> Tensor:
        return kernel if self._mask is None else kernel * self._mask

    def weighted_sum(self, w: Tensor) -> Tensor:
        return self._masked(_outer_sum(self.activation, w[:, None, None] * self.delta))

    def weighted_square_sum(self, w: Tensor) -> Tensor:
        if not self._is_reused:
            return self._masked(_outer_sum(tf.square(self.activation), w[:, None, None] * tf.square(self.delta)))
        # The square of a sum over calls has cross terms, which do not factor: form the scores, a few draws at a time.
        size = max(1, _CHUNK_NUMBERS // (self.activation.shape[2] * self.delta.shape[2]))
        total = tf.zeros([self.activation.shape[2], self.delta.shape[2]], w.dtype)
        for start in range(0, w.shape[0], size):
            part = slice(start, start + size)
            h = tf.einsum("sti,sto->sio", self.activation[part], self.delta[part])
            total += tf.tensordot(w[part], tf.square(h), 1)
        return self._masked(total)

    def squared_norms(self) -> Tensor:
        if self._mask is None:
            inputs = tf.matmul(self.activation, self.activation, transpose_b=True)  # [S, T, T]
            return tf.reduce_sum(inputs * tf.matmul(self.delta, self.delta, transpose_b=True), axis=[1, 2])
        if not self._is_reused:
            a, d = tf.square(self.activation[:, 0]), tf.square(self.delta[:, 0])
            return tf.reduce_sum(tf.matmul(a, tf.cast(self._mask, a.dtype)) * d, axis=1)
        return DenseScores([self.dense()]).squared_norms()

    def gram(self) -> Tensor:
        if self._mask is not None or self._is_reused:
            return DenseScores([self.dense()]).gram()
        a, d = self.activation[:, 0], self.delta[:, 0]
        return tf.matmul(a, a, transpose_b=True) * tf.matmul(d, d, transpose_b=True)

    def dense(self) -> Tensor:
        return self._masked(tf.einsum("sti,sto->sio", self.activation, self.delta))


def _outer_sum(left: Tensor, right: Tensor) -> Tensor:
    """sum_st left_st (x) right_st, [inputs, outputs]."""
    flat = [tf.reshape(x, [-1, x.shape[2]]) for x in (left, right)]
    return tf.matmul(flat[0], flat[1], transpose_a=True)
