"""A network of masked dense layers, for families whose q has weights."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bbsvi.errors import InvalidTypeError
from bbsvi.factored import linear
from bbsvi.typing import Seed, Tensor
from bbsvi.validation import positive_integer


class Network(tf.Module):
    """Dense layers with tanh between them, whose kernels are multiplied by masks.

    Args:
      masks: of each layer's kernel, [inputs, outputs], of zeros and ones.
      seed: int32 [2], for the initial weights. The last layer's are small, so that what comes out begins near zero,
        with no score quite zero.
    """

    def __init__(self, masks: Sequence[np.ndarray], dtype: tf.DType, seed: Seed):
        super().__init__()
        rng = np.random.default_rng(np.asarray(seed).view(np.uint32))
        self.masks = [None if mask.all() else tf.constant(mask, dtype) for mask in masks]
        self.kernels, self.biases = [], []
        for index, mask in enumerate(masks):
            spread = (0.1 if index == len(masks) - 1 else 1.0) / np.sqrt(np.maximum(mask.sum(axis=0), 1))
            values = rng.normal(size=mask.shape) * spread * mask
            self.kernels.append(tf.Variable(values, dtype=dtype, name=f"kernel_{index}"))
            self.biases.append(tf.Variable(tf.zeros(mask.shape[1], dtype), name=f"bias_{index}"))

    @property
    def trainable_variables(self) -> tuple[tf.Variable, ...]:
        """Kernel and bias, layer by layer."""
        return tuple(variable for pair in zip(self.kernels, self.biases, strict=True) for variable in pair)

    def __call__(self, x: Tensor) -> Tensor:
        """[S, inputs] -> [S, outputs]."""
        layer = x
        for index, mask in enumerate(self.masks):
            layer = tf.tanh(layer) if index > 0 else layer
            layer = linear(layer, self.kernels[index], self.biases[index], mask)
        return layer


def autoregressive_masks(
    inputs: np.ndarray, hidden_units: Sequence[int], outputs: np.ndarray, num_sites: int
) -> list[np.ndarray]:
    """Masks that leave an output only those inputs that come before it.

    Germain et al. 2015, "MADE: masked autoencoder for distribution estimation", eqs. 12-13.

    Args:
      inputs, outputs: the place of each number, from 1 to `num_sites`.
      hidden_units: widths of the layers between.
    """
    degrees = [inputs] + [1 + np.arange(units) % max(num_sites - 1, 1) for units in hidden_units]
    masks = [above[None, :] >= below[:, None] for below, above in itertools.pairwise(degrees)]
    return [*masks, outputs[None, :] > degrees[-1][:, None]]


def checked_units(hidden_units: Any) -> list[int]:
    """The widths of at least one hidden layer."""
    if isinstance(hidden_units, (str, int)) or not list(hidden_units):
        raise InvalidTypeError(f"hidden_units must be a sequence of widths such as (64,), got {hidden_units!r}.")
    return [positive_integer("hidden_units", width) for width in hidden_units]
