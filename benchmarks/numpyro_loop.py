"""The same model, guide and steps in NumPyro, as fast as it can be made to run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.initialization import init_to_value

from bbsvi.examples.eight_schools import EFFECTS, STANDARD_ERRORS


def model() -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    theta_trans = numpyro.sample("theta_trans", dist.Normal(0.0, 1.0).expand([8]).to_event(1))
    numpyro.sample("y", dist.Normal(mu + tau * theta_trans, STANDARD_ERRORS).to_event(1), obs=EFFECTS)


def loops(num_steps: int, sample_size: int, step_size: float) -> dict[str, Callable[[], np.ndarray]]:
    """Two compiled loops, {name: run}: `SVI.run` and a scan of `SVI.update`; a run returns the ELBOs."""
    start = {"mu": 0.0, "tau": 1.0, "theta_trans": jnp.zeros(8)}  # N(0, 1) on the reals, as bbsvi begins
    guide = AutoNormal(model, init_loc_fn=init_to_value(values=start), init_scale=1.0)
    loss = Trace_ELBO(num_particles=sample_size, vectorize_particles=True)
    svi = SVI(model, guide, numpyro.optim.Adam(step_size), loss)
    key = jax.random.key(0)
    state = svi.init(key)

    # SVI.run by itself compiles anew in every call, which would be timed along.
    @jax.jit
    def run(key: Any) -> Any:
        return svi.run(key, num_steps, progress_bar=False).losses

    @jax.jit
    def scan(state: Any) -> Any:
        return jax.lax.scan(lambda state, _: svi.update(state), state, None, length=num_steps)[1]

    return {
        "NumPyro SVI.run, jitted": lambda: -np.asarray(run(key)),
        "NumPyro scan of SVI.update, jitted": lambda: -np.asarray(scan(state)),
    }
