"""When to stop, and which iterates to average.

With a step size that does not vanish the iterates end up wandering about the optimum. So the
question is never whether the ELBO still rises (its noise answers at random) but whether the
parameters have become stationary, and whether their average is known well enough.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from bbsvi.diagnostics import batch_means_error, split_rhat
from bbsvi.errors import InvalidValueError
from bbsvi.optimization.averaging import Iterates

_FRACTIONS = (1.0, 0.8, 0.6, 0.4, 0.2)  # windows tried: the newest part of the record
_MIN_ROWS = 40  # fewer, and R-hat of many parameters exceeds 1.1 by chance


@dataclasses.dataclass(frozen=True, kw_only=True)
class Convergence:
    """Stop when the parameters are stationary and their average is precise.

    Stationary: over some window of the newest iterates, split R-hat of every parameter is at most
    `rhat`. Precise: the Monte Carlo error of the window's averages moves q by at most `tolerance`
    nats, KL(q_average || q) ~ sum_j error_j^2 F_jj / 2 with F the Fisher information of q, which
    makes the rule blind to units and to the parameterisation. The fit then ends at the averages.
    Dhaka et al. 2020, "Robust, accurate stochastic optimization for variational inference",
    sections 3-4, measures the error by parameter instead.

    Args:
      rhat: above 1.
      tolerance: in nats, above 0.
    """

    rhat: float = 1.1
    tolerance: float = 0.005

    def __post_init__(self) -> None:
        if not self.rhat > 1:
            raise InvalidValueError(f"rhat must be above 1, got {self.rhat!r}.")
        if not self.tolerance > 0:
            raise InvalidValueError(f"tolerance must be above 0 nats, got {self.tolerance!r}.")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a look at the iterates found.

    Attributes:
      converged: the rule is met.
      rhat: the largest split R-hat over the best window, and `parameter`, the index that has it.
      error: Monte Carlo error of the averages in nats; None while not stationary.
      average: [P], over the best window, or over the newest fifth where there is none yet.
    """

    converged: bool
    rhat: float
    parameter: int
    error: float | None
    average: np.ndarray | None


def judge(rule: Convergence, iterates: Iterates, fisher_diagonal: Callable[[np.ndarray], np.ndarray]) -> Verdict:
    """Look at the iterates.

    Args:
      fisher_diagonal: parameters [P] -> diagonal of q's Fisher information there, [P].
    """
    if len(iterates) < 4:
        average = iterates.last(1)[0] if len(iterates) else None
        return Verdict(False, np.inf, 0, None, average)
    windows = [iterates.last(max(int(round(fraction * len(iterates))), 4)) for fraction in _FRACTIONS]
    windows = [w for w in windows if len(w) >= min(_MIN_ROWS, len(windows[0]))]
    rhats = [split_rhat(window) for window in windows]
    # The longest stationary window averages the most; with none, the one nearest to it.
    best = next((i for i, r in enumerate(rhats) if r.max() <= rule.rhat), int(np.argmin([r.max() for r in rhats])))
    window, largest = windows[best], float(rhats[best].max())
    if largest > rule.rhat:
        newest = iterates.last(max(len(iterates) // 20, 1))
        return Verdict(False, largest, int(np.argmax(rhats[best])), None, newest.mean(axis=0))
    average = window.mean(axis=0)
    error = float(np.sum(batch_means_error(window) ** 2 * fisher_diagonal(average)) / 2)
    converged = error <= rule.tolerance and len(window) >= _MIN_ROWS
    return Verdict(converged, largest, int(np.argmax(rhats[best])), error, average)
