"""Beta-binomial: the bias of a coin, with an answer in closed form.

Data: five heads in twelve tosses, made up. Model: p ~ Beta(3, 3), heads ~ Binomial(12, p).

Reference: p | heads ~ Beta(8, 10).
"""

from __future__ import annotations

import numpy as np
import tensorflow_probability as tfp
from scipy import special, stats

from bbsvi.examples.base import Example, Reference

tfd = tfp.distributions

HEADS, TOSSES = 5, 12


def beta_binomial() -> Example:
    target = tfd.JointDistributionNamed(
        {
            "p": tfd.Beta(3.0, 3.0),
            "heads": lambda p: tfd.Binomial(total_count=float(TOSSES), probs=p),
        }
    )
    exact = stats.beta(3 + HEADS, 3 + TOSSES - HEADS)
    log_evidence = np.log(special.comb(TOSSES, HEADS)) + special.betaln(8, 10) - special.betaln(3, 3)
    reference = Reference(
        mean={"p": exact.mean()},
        stddev={"p": exact.std()},
        log_evidence=float(log_evidence),
        source="conjugate: Beta(8, 10)",
    )
    data = {"heads": np.array(HEADS, np.float32)}
    return Example("beta_binomial", target, data, reference, lambda draws: {"p": draws["p"]}, "conjugate; made-up data")
