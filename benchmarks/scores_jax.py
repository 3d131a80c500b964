"""vmap(grad) in JAX and the same contractions, of the same densities at the same parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.score_densities import FULL_RANK, log_density
from benchmarks.score_problems import Problem


def way(of: Problem) -> Callable[[], tuple]:
    """A jitted function of parameters, draws and weights, and a call of it that waits for its end."""
    masks = [jnp.asarray(mask) for mask in of.masks]
    order = jnp.arange(of.size)[::-1]
    log_prob = (
        full_rank(of.size) if of.kind == FULL_RANK else log_density(of.kind, jnp, masks, jnp.asarray(of.inputs), order)
    )
    parameters = [jnp.asarray(value) for value in of.family.parameters()]
    draws, w = jnp.asarray(of.draws.numpy(), jnp.float32), jnp.asarray(of.w.numpy())

    @jax.jit
    def contractions(parameters: Any, draws: Any, w: Any) -> tuple:
        scores = jax.vmap(jax.grad(log_prob), (None, 0))(parameters, draws)
        norms = sum(jnp.sum(jnp.square(h).reshape(len(w), -1), axis=1) for h in scores)
        first = [jnp.tensordot(w, h, 1) for h in scores]
        return first, [jnp.tensordot(w, jnp.square(h), 1) for h in scores], norms

    return lambda: jax.block_until_ready(contractions(parameters, draws, w))


def full_rank(size: int) -> Callable[[list[Any], Any], Any]:
    """(parameters, one draw) -> log q."""
    rows, columns = np.tril_indices(size, -1)

    def log_prob(parameters: list[Any], z: Any) -> Any:
        loc, log_diag, lower = parameters
        scale = jnp.diag(jnp.exp(log_diag)).at[rows, columns].set(lower)
        noise = jax.scipy.linalg.solve_triangular(scale, z - loc, lower=True)
        return jnp.sum(-0.5 * jnp.square(noise) - log_diag)

    return log_prob
