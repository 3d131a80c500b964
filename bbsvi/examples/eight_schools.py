"""Eight schools: effects of coaching on test scores in eight parallel experiments.

Data: Rubin 1981, "Estimation in parallel randomized experiments", table 1. Model: Gelman et al. 2013,
"Bayesian Data Analysis", section 5.5, with the priors of Stan's posterior database:
mu ~ N(0, 5), tau ~ half-Cauchy(5), theta_j ~ N(mu, tau), y_j ~ N(theta_j, sigma_j).

Reference: given tau everything is normal, so one-dimensional quadrature over log tau gives every
moment; it agrees with the posterior database's 10,000 reference draws within their Monte Carlo error.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from bbsvi.examples.base import Example, Reference

tfd = tfp.distributions

EFFECTS = np.array([28, 8, -3, 7, -1, 1, 18, 12], np.float32)
STANDARD_ERRORS = np.array([15, 10, 16, 11, 9, 11, 10, 18], np.float32)

_THETA_MEAN = (6.2119, 4.9402, 3.9270, 4.7571, 3.6155, 4.0426, 6.2967, 4.8543)
_THETA_STDDEV = (5.5931, 4.6743, 5.2626, 4.7803, 4.6575, 4.8269, 5.0778, 5.2908)
_REFERENCE = Reference(
    mean={"mu": 4.3968, "log tau": 0.8021, "tau": 3.5977} | {f"theta[{j}]": m for j, m in enumerate(_THETA_MEAN)},
    stddev={"mu": 3.3177, "log tau": 1.1712, "tau": 3.2200} | {f"theta[{j}]": s for j, s in enumerate(_THETA_STDDEV)},
    log_evidence=-31.3113,
    source="quadrature over log tau",
)


def eight_schools() -> Example:
    """The non-centred form: theta = mu + tau * theta_trans, theta_trans ~ N(0, 1)."""
    target = tfd.JointDistributionNamed(
        {
            "mu": tfd.Normal(0.0, 5.0),
            "tau": tfd.HalfCauchy(0.0, 5.0),
            "theta_trans": tfd.Sample(tfd.Normal(0.0, 1.0), 8),
            "y": lambda mu, tau, theta_trans: tfd.Independent(tfd.Normal(mu + tau * theta_trans, STANDARD_ERRORS), 1),
        }
    )

    def theta(draws: Mapping[str, np.ndarray]) -> np.ndarray:
        return draws["mu"][:, None] + draws["tau"][:, None] * draws["theta_trans"]

    return Example("eight_schools", target, {"y": EFFECTS}, _REFERENCE, lambda d: _quantities(d, theta(d)), _notes())


def eight_schools_centered() -> Example:
    """The centred form: theta_j ~ N(mu, tau), whose funnel no Gaussian family can follow."""
    target = tfd.JointDistributionNamed(
        {
            "mu": tfd.Normal(0.0, 5.0),
            "tau": tfd.HalfCauchy(0.0, 5.0),
            "theta": lambda mu, tau: tfd.Sample(tfd.Normal(mu, tau), 8),
            "y": lambda theta: tfd.Independent(tfd.Normal(theta, tf.constant(STANDARD_ERRORS)), 1),
        }
    )
    return Example(
        "eight_schools_centered", target, {"y": EFFECTS}, _REFERENCE, lambda d: _quantities(d, d["theta"]), _notes()
    )


def _quantities(draws: Mapping[str, np.ndarray], theta: np.ndarray) -> dict[str, np.ndarray]:
    named = {"mu": draws["mu"], "log tau": np.log(draws["tau"]), "tau": draws["tau"]}
    return named | {f"theta[{j}]": theta[:, j] for j in range(8)}


def _notes() -> str:
    return "Rubin 1981; priors of Stan's posterior database (mu ~ N(0, 5), tau ~ half-Cauchy(5))"
