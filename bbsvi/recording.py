"""Which variables of a log density are weights of layers, read off its graph, and their factored scores.

Keras, tf_keras and handwritten layers come down to the same few operations: a matrix product, a convolution or
a lookup with the kernel, an addition of the bias. A variable that nothing else reads gets its scores from the
inputs of those operations and from one backward pass to their outputs; any other goes by vectorized_map.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from bbsvi.errors import InvalidValueError
from bbsvi.factored import EmbeddingScores, KernelScores, patches
from bbsvi.per_sample import mapped_scores
from bbsvi.scores import BlockScores, DenseScores, Scores
from bbsvi.typing import Tensor

_VIEWS = {"Identity", "Reshape", "ExpandDims", "Squeeze"}  # the same numbers in another shape


class _Mask(NamedTuple):
    """What a kernel is multiplied by: a tensor that broadcasts to `shape`, the kernel's at that point."""

    factor: Tensor
    shape: tf.TensorShape


@dataclasses.dataclass(frozen=True)
class _Use:
    """An operation that a variable goes into.

    Attributes:
      role: what the variable is to it: "kernel", "table" or "bias".
      operation: a `tf.Operation` of one output.
      rows: its other input; None for a bias.
      shape: of the variable as the operation sees it.
      mask: what a kernel was multiplied by on the way, or None.
    """

    role: str
    operation: Any
    rows: Any
    shape: tf.TensorShape
    mask: _Mask | None = None

    @property
    def output(self) -> Tensor:
        return self.operation.outputs[0]

    @property
    def padded_shape(self) -> list[int]:
        """A bias's shape with an axis for each of the output's."""
        return [1] * (self.output.shape.rank - self.shape.rank) + self.shape.as_list()

    def has_draws_first(self, num_draws: int) -> bool:
        if self.role == "bias":
            return self.output.shape.rank > 0 and self.output.shape[0] == num_draws and self.padded_shape[0] == 1
        return self._rows_by_draw(num_draws).shape[:1] == [num_draws]

    def _rows_by_draw(self, num_draws: int) -> Tensor:
        """A layer of [S, T, inputs] is a product of [S * T, inputs], whose rows came from it by a reshape."""
        rows = self.rows
        if self.operation.type == "MatMul" and rows.shape[0] != num_draws and rows.op.type == "Reshape":
            before = rows.op.inputs[0]
            return before if before.shape[-1:] == rows.shape[-1:] else rows
        return rows

    def activation_and_delta(self, delta: Tensor, num_draws: int) -> tuple[Tensor, Tensor]:
        """[S, T, inputs] and [S, T, outputs] of a kernel."""
        if self.operation.type == "Conv2D":
            strides, padding = self.operation.get_attr("strides"), self.operation.get_attr("padding").decode()
            activation = patches(self.rows, self.shape.as_list(), strides, padding)
        else:
            activation = tf.reshape(self.rows, [num_draws, -1, self.rows.shape[-1]])
        delta = tf.reshape(delta, [num_draws, -1, self.output.shape[-1]])
        is_transposed = self.operation.type == "MatMul" and self.operation.get_attr("transpose_b")
        return (delta, activation) if is_transposed else (activation, delta)


def tf_variables(variables: Sequence[Any]) -> list[tf.Variable]:
    """The TensorFlow variables behind those of Keras, others as they are."""
    return [variable.value if isinstance(variable, keras.Variable) else variable for variable in variables]


def recorded_scores(log_prob: Callable[[Any], Tensor], samples: Any, variables: Sequence[Any]) -> Scores:
    """Scores of S draws: factored by the weights of layers, by vectorized_map for all other variables.

    Args:
      log_prob: maps samples to log q [S], for any S; each a function of its own draw alone.
      samples: [S, *event], or a structure of such tensors. Held fixed.
      variables: of TensorFlow or Keras, in the order wanted.

    Raises:
      InvalidValueError: log q is not [S]; or, run eagerly, it mixes the draws, as batch normalisation does.
    """
    samples = tf.nest.map_structure(lambda x: tf.stop_gradient(tf.convert_to_tensor(x)), samples)
    variables = tf_variables(variables)
    scores: dict[Any, Scores] = {}
    if any(variable.shape.rank >= 2 for variable in variables):  # no layer is without a kernel
        scores = _layer_scores(log_prob, samples, variables)
        if scores and tf.executing_eagerly():
            check_draws_apart("log q", log_prob, samples)
    rest = [variable for variable in variables if variable.ref() not in scores]
    if rest:
        mapped = mapped_scores(log_prob, samples, rest)
        if not scores:
            return mapped
        scores |= {variable.ref(): part for variable, part in zip(rest, mapped.by_variable())}
    return BlockScores([scores[variable.ref()] for variable in variables])


def check_draws_apart(name: str, log_prob: Callable[[Any], Tensor], samples: Any) -> None:
    """That a draw's log density is the same among all draws and among the first half of them."""
    num_draws = tf.nest.flatten(samples)[0].shape[0]
    half = (num_draws + 1) // 2
    # Copies: TFP remembers what its own draws came from.
    whole = np.asarray(log_prob(tf.nest.map_structure(tf.identity, samples)))[:half]
    part = np.asarray(log_prob(tf.nest.map_structure(lambda x: x[:half], samples)))
    tolerance = 1e3 * np.finfo(part.dtype).eps * (1 + np.abs(part))
    with np.errstate(invalid="ignore"):
        same = (whole == part) | (np.abs(whole - part) <= tolerance) | (np.isnan(whole) & np.isnan(part))
    if not same.all():
        draw = int(np.argmin(same))
        raise InvalidValueError(
            f"{name} mixes the draws: draw {draw} has {whole[draw]:.6g} among {num_draws} draws and {part[draw]:.6g} "
            f"among the first {half}, so that there are no scores of single draws. Batch normalisation does this; "
            "layer normalisation does not."
        )


def _layer_scores(
    log_prob: Callable[[Any], Tensor], samples: Any, variables: Sequence[tf.Variable]
) -> dict[Any, Scores]:
    """{reference of a variable: its scores}, for those that nothing but layers reads."""
    flat = tf.nest.flatten(samples)
    num_draws = flat[0].shape[0]
    beside: dict[Any, list[_Use] | None] = {}  # the uses at one more draw
    roles: dict[Any, str] = {}

    def log_q_of(parts: Sequence[Tensor], size: int) -> Tensor:
        log_q = log_prob(tf.nest.pack_sequence_as(samples, list(parts)))
        if log_q.shape != [size]:
            raise InvalidValueError(f"log q of {size} draws must have shape [{size}], got {log_q.shape.as_list()}.")
        return log_q

    def one_more(*parts: Tensor) -> Tensor:
        log_q = log_q_of(parts, num_draws + 1)
        beside.update({variable.ref(): _uses(log_q.graph, variable) for variable in variables})
        return log_q

    def layers(*parts: Tensor) -> dict[int, dict[str, Tensor]]:
        log_q = log_q_of(parts, num_draws)
        found = {}
        for index, variable in enumerate(variables):
            uses = _uses(log_q.graph, variable)
            if uses is not None and _go_by_draw(uses, beside[variable.ref()], num_draws):
                found[index] = uses
                roles[variable.ref()] = uses[0].role if uses else "zero"
        outputs = [use.output for uses in found.values() for use in uses]
        deltas = iter(tf.gradients(tf.reduce_sum(log_q), outputs, unconnected_gradients="zero") if outputs else [])
        return {
            index: _tensors(uses, [next(deltas) for _ in uses], variables[index], num_draws)
            for index, uses in found.items()
        }

    # Traced at two numbers of draws: an axis that is as long as the draws' by chance does not grow with it.
    _trace(one_more, flat, num_draws + 1)
    found = _trace(layers, flat, num_draws)(*flat)
    return {
        variables[index].ref(): _scores(roles[variables[index].ref()], tensors, variables[index], num_draws)
        for index, tensors in found.items()
    }


def _trace(fn: Callable[..., Any], flat: Sequence[Tensor], size: int) -> Any:
    specs = [tf.TensorSpec([size, *part.shape[1:]], part.dtype) for part in flat]
    return tf.function(fn, autograph=False).get_concrete_function(*specs)


def _uses(graph: Any, variable: tf.Variable) -> list[_Use] | None:
    """The layers that a variable is in; None if anything else reads it, [] if nothing does."""
    uses: list[_Use] = []
    for operation in graph.capture(variable.handle).consumers():
        if operation.type == "ReadVariableOp":
            found = _uses_of(operation.outputs[0], None)
        elif operation.type == "ResourceGather" and operation.get_attr("batch_dims") == 0:
            found = [_Use("table", operation, operation.inputs[1], variable.shape)]
        else:
            found = None
        if found is None:
            return None
        uses += found
    return uses


def _uses_of(value: Tensor, mask: _Mask | None) -> list[_Use] | None:
    """The layers that a variable's value goes into, seen through changes of shape and one multiplication."""
    uses: list[_Use] = []
    for operation in value.consumers():
        inputs = list(operation.inputs)
        positions = [index for index, x in enumerate(inputs) if x is value]
        found: list[_Use] | None = None
        if positions == [0] and operation.type in _VIEWS:
            found = _uses_of(operation.outputs[0], mask)
        elif len(positions) == 1 and operation.type == "Mul" and mask is None:
            if operation.outputs[0].shape == value.shape:
                found = _uses_of(operation.outputs[0], _Mask(inputs[1 - positions[0]], value.shape))
        elif len(positions) == 1:
            found = _layer(operation, positions[0], value, mask)
        if found is None:
            return None
        uses += found
    return uses


def _layer(operation: Any, position: int, value: Tensor, mask: _Mask | None) -> list[_Use] | None:
    """The use of `value`, input `position` of an operation, if it is that of a layer's weights."""
    attribute, others = operation.get_attr, [x for index, x in enumerate(operation.inputs) if index != position]

    def use(role: str, rows: Any) -> list[_Use]:
        return [_Use(role, operation, rows, value.shape, mask)]

    if operation.type == "MatMul" and position == 1 and not attribute("transpose_a"):
        return use("kernel", others[0])
    if operation.type == "Conv2D" and position == 1 and attribute("data_format") == b"NHWC":
        is_plain = attribute("padding") in (b"SAME", b"VALID") and attribute("dilations") == [1, 1, 1, 1]
        has_groups = others[0].shape[-1] != value.shape[-2]
        return use("kernel", others[0]) if is_plain and not has_groups else None
    if mask is not None:
        return None
    if operation.type == "GatherV2" and position == 0 and attribute("batch_dims") == 0:
        return use("table", others[0]) if tf.get_static_value(others[1]) == 0 else None
    if operation.type == "AddV2" or (operation.type == "BiasAdd" and attribute("data_format") == b"NHWC"):
        return use("bias", None)
    return None


def _go_by_draw(uses: list[_Use], beside: list[_Use] | None, num_draws: int) -> bool:
    """Whether all uses of a variable are of one role and have the draws for their first axis."""
    if beside is None or len(beside) != len(uses) or len({use.role for use in uses}) > 1:
        return False
    if len({use.mask and id(use.mask.factor) for use in uses}) > 1:
        return False
    pairs = zip(uses, beside)
    return all(a.has_draws_first(num_draws) and b.has_draws_first(num_draws + 1) for a, b in pairs)


def _tensors(uses: list[_Use], deltas: list[Tensor], variable: tf.Variable, num_draws: int) -> dict[str, Tensor]:
    """What the scores by one variable are made of, end to end over its uses."""
    if not uses:
        return {}
    if uses[0].role == "bias":
        return {"delta": tf.add_n([_bias_rows(use, delta, variable) for use, delta in zip(uses, deltas)])}
    if uses[0].role == "table":
        ids = [tf.reshape(use.rows, [num_draws, -1]) for use in uses]
        rows = [tf.reshape(delta, [num_draws, -1, *variable.shape[1:]]) for delta in deltas]
        return {"ids": tf.concat(ids, axis=1), "delta": tf.concat(rows, axis=1)}
    pairs = [use.activation_and_delta(delta, num_draws) for use, delta in zip(uses, deltas)]
    found = {name: tf.concat(parts, axis=1) for name, parts in zip(("activation", "delta"), zip(*pairs))}
    mask = uses[0].mask
    return found if mask is None else {**found, "mask": tf.broadcast_to(mask.factor, mask.shape)}


def _bias_rows(use: _Use, delta: Tensor, variable: tf.Variable) -> Tensor:
    """delta summed over the axes along which a bias was broadcast, [S, *variable.shape]."""
    padded = use.padded_shape
    summed = tf.reduce_sum(delta, axis=[axis for axis, length in enumerate(padded) if axis > 0 and length == 1])
    return tf.reshape(summed, [delta.shape[0], *variable.shape])


def _scores(role: str, tensors: dict[str, Tensor], variable: tf.Variable, num_draws: int) -> Scores:
    if role == "kernel":
        return KernelScores(tensors["activation"], tensors["delta"], variable.shape, tensors.get("mask"))
    if role == "table":
        return EmbeddingScores(tensors["ids"], tensors["delta"], variable.shape[0])
    if role == "bias":
        return DenseScores([tensors["delta"]])
    return DenseScores([tf.zeros([num_draws, *variable.shape], variable.dtype)], kind=["zero"])
