"""Coal mining: a discrete switch year between two rates of disasters.

Data: British coal-mining disasters by year, 1851 to 1961, 111 years: the version of TensorFlow
Probability's switchpoint tutorial, in which no year is missing (a variant in use elsewhere marks 1891
and 1934 as missing). Originally Maguire, Pearson and Wynn 1952; corrected by Jarrett 1979, "A note on
the intervals between coal-mining disasters". Model: early, late ~ Exponential(1), switch uniform over
the years, count_t ~ Poisson(early if t < switch else late).

Reference: given the switch year the rates are gamma, so the 111 years can be summed exactly.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from bbsvi.examples.base import Example, Reference

tfd = tfp.distributions

FIRST_YEAR = 1851
# fmt: off
DISASTERS = np.array([
    4, 5, 4, 0, 1, 4, 3, 4, 0, 6, 3, 3, 4, 0, 2, 6, 3, 3, 5, 4, 5, 3, 1, 4, 4, 1, 5, 5, 3, 4, 2, 5, 2, 2, 3, 4, 2,
    1, 3, 2, 2, 1, 1, 1, 1, 3, 0, 0, 1, 0, 1, 1, 0, 0, 3, 1, 0, 3, 2, 2, 0, 1, 1, 1, 0, 1, 0, 1, 0, 0, 0, 2, 1, 0,
    0, 0, 1, 1, 0, 2, 3, 3, 1, 1, 2, 1, 1, 1, 1, 2, 4, 2, 0, 0, 1, 4, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1,
], np.float32)
# fmt: on
_SHOWN_YEARS = (1888, 1890, 1891, 1892, 1893)


def coal_mining() -> Example:
    years = tf.range(len(DISASTERS))
    target = tfd.JointDistributionNamed(
        {
            "early": tfd.Exponential(1.0),
            "late": tfd.Exponential(1.0),
            "switch": tfd.Categorical(logits=tf.zeros(len(DISASTERS))),
            "disasters": lambda early, late, switch: tfd.Independent(
                tfd.Poisson(tf.where(years < switch, early, late)), 1
            ),
        }
    )

    def quantities(draws: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        years = {f"P(switch = {year})": draws["switch"] == year - FIRST_YEAR for year in _SHOWN_YEARS}
        return {"early": draws["early"], "late": draws["late"]} | years

    probabilities = dict(zip((f"P(switch = {y})" for y in _SHOWN_YEARS), (0.0967, 0.1445, 0.1838, 0.2401, 0.0967)))
    reference = Reference(
        mean={"early": 3.0662, "late": 0.9361} | probabilities,
        stddev={"early": 0.2848, "late": 0.1178} | dict.fromkeys(probabilities, float("nan")),
        log_evidence=-176.8661,
        source="exact sum over the 111 switch years",
    )
    notes = "Jarrett 1979; counts by year, 1851-1961, no year missing"
    return Example("coal_mining", target, {"disasters": DISASTERS}, reference, quantities, notes)
