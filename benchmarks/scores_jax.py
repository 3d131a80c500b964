"""vmap(grad) in JAX and the same contractions, of the same densities at the same parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.score_problems import AUTOREGRESSIVE, FULL_RANK, Problem


def way(of: Problem) -> Callable[[], tuple]:
    """A jitted function of parameters, draws and weights, and a call of it that waits for its end."""
    log_prob = log_density(of)
    parameters = [jnp.asarray(value) for value in of.family.parameters()]
    draws, w = jnp.asarray(of.draws.numpy(), jnp.float32), jnp.asarray(of.w.numpy())

    @jax.jit
    def contractions(parameters: Any, draws: Any, w: Any) -> tuple:
        scores = jax.vmap(jax.grad(log_prob), (None, 0))(parameters, draws)
        norms = sum(jnp.sum(jnp.square(h).reshape(len(w), -1), axis=1) for h in scores)
        first = [jnp.tensordot(w, h, 1) for h in scores]
        return first, [jnp.tensordot(w, jnp.square(h), 1) for h in scores], norms

    return lambda: jax.block_until_ready(contractions(parameters, draws, w))


def log_density(of: Problem) -> Callable[[list[Any], Any], Any]:
    """(parameters, one draw) -> log q."""
    if of.kind == AUTOREGRESSIVE:
        masks = [jnp.asarray(mask.numpy()) for mask in of.factor._masks]

        def log_prob(parameters: list[Any], z: Any) -> Any:
            layer = z
            for index, mask in enumerate(masks):
                layer = jnp.tanh(layer) if index else layer
                layer = layer @ (parameters[2 * index] * mask) + parameters[2 * index + 1]
            return jnp.sum(z * layer - jax.nn.softplus(layer))

    elif of.kind == FULL_RANK:
        rows, columns = np.tril_indices(of.size, -1)

        def log_prob(parameters: list[Any], z: Any) -> Any:
            loc, log_diag, lower = parameters
            scale = jnp.diag(jnp.exp(log_diag)).at[rows, columns].set(lower)
            noise = jax.scipy.linalg.solve_triangular(scale, z - loc, lower=True)
            return jnp.sum(-0.5 * jnp.square(noise) - log_diag)

    else:

        def log_prob(parameters: list[Any], z: Any) -> Any:
            loc, log_scale = parameters
            return jnp.sum(-0.5 * jnp.square((z - loc) / jnp.exp(log_scale)) - log_scale)

    return log_prob
