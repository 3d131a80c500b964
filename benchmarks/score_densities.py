"""log q of one draw in the array functions that JAX and torch share, for comparison with them.

Without TensorFlow, which torch's process is not to load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

MEAN_FIELD, FULL_RANK, AUTOREGRESSIVE = "mean field", "full rank", "autoregressive"
FLOW, AMORTIZED = "flow", "amortized"


def log_density(kind: str, arrays: Any, masks: Sequence[Any], inputs: Any, order: Any) -> Callable[[Any, Any], Any]:
    """(parameters, one draw) -> log q, less its constant.

    Args:
      kind: of q, any but FULL_RANK.
      arrays: jax.numpy or torch.
      masks: of the networks' kernels, layer after layer.
      inputs: of the encoder.
      order: positions D-1, ..., 0, which turn the numbers of a draw round.
    """
    depth = 2  # layers of every network here

    def network(x: Any, parameters: Sequence[Any], own_masks: Sequence[Any]) -> Any:
        for index, mask in enumerate(own_masks):
            x = arrays.tanh(x) if index else x
            x = x @ (parameters[2 * index] * mask) + parameters[2 * index + 1]
        return x

    def normal(z: Any, loc: Any, log_scale: Any) -> Any:
        return (-0.5 * arrays.square((z - loc) / arrays.exp(log_scale)) - log_scale).sum()

    def mean_field(parameters: Any, z: Any) -> Any:
        return normal(z, *parameters)

    def autoregressive(parameters: Any, z: Any) -> Any:
        logits = network(z, parameters, masks)
        return (z * logits - arrays.logaddexp(logits, arrays.zeros_like(logits))).sum()

    def flow(parameters: Any, z: Any) -> Any:
        log_q = 0.0
        for first in range(len(masks) - depth, -1, -depth):
            z = z if first == len(masks) - depth else z[order]
            own = parameters[2 * first : 2 * (first + depth)]
            outputs = network(z, own, masks[first : first + depth])
            shift, log_scale = outputs[: len(order)], outputs[len(order) :]
            z = (z - shift) * arrays.exp(-log_scale)
            log_q = log_q - log_scale.sum()
        return log_q - 0.5 * arrays.square(z).sum()

    def amortized(parameters: Any, z: Any) -> Any:
        outputs = network(inputs, parameters, masks)
        width = z.shape[1]
        return normal(z, outputs[:, :width], outputs[:, width:])

    return {MEAN_FIELD: mean_field, AUTOREGRESSIVE: autoregressive, FLOW: flow, AMORTIZED: amortized}[kind]
