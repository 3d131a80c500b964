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
from bbsvi.errors import InvalidTypeError, InvalidValueError
from bbsvi.optimization.averaging import Iterates

_FRACTIONS = (0.8, 0.65, 0.5)  # windows tried: this much of the record, its newest part
_MIN_ROWS = 40  # with fewer, R-hat exceeds 1.1 by chance


@dataclasses.dataclass(frozen=True, kw_only=True)
class Convergence:
    """Stop when the parameters are stationary and their average is precise.

    The iterates lambda_t of a window are seen through the scores h_s of draws of q at its average,
    as the series h_s . (lambda_t - average), [T, M]: to first order how log q at draw s moves, so that
    the rule is blind to units and to directions that leave q as it is, and half their mean square is
    a movement of q in nats, KL. Stationary: over some window of the newest iterates split R-hat of
    the series is at most `rhat`, or they move by less than `tolerance` altogether. Precise: the
    Monte Carlo error of the window's average is at most `tolerance` nats. The fit then ends there.
    Dhaka et al. 2020, "Robust, accurate stochastic optimization for variational inference",
    sections 3-4, looks at the parameters themselves instead.

    Args:
      rhat: above 1.
      tolerance: in nats, above 0.
    """

    rhat: float = 1.1
    tolerance: float = 0.001

    def __post_init__(self) -> None:
        for name in ("rhat", "tolerance"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise InvalidTypeError(f"{name} must be a number, got {value!r}.")
        if not self.rhat > 1:
            raise InvalidValueError(f"rhat must be above 1, got {self.rhat!r}.")
        if not self.tolerance > 0:
            raise InvalidValueError(f"tolerance must be above 0 nats, got {self.tolerance!r}.")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a look at the iterates found.

    Attributes:
      converged: the rule is met.
      rhat: the largest split R-hat over the best window.
      parameter: index of the parameter that drifts most, in nats.
      error: Monte Carlo error of the average in nats; None while not stationary.
      average: [P], over the stationary window, or over the newest twentieth where there is none.
    """

    converged: bool
    rhat: float
    parameter: int
    error: float | None
    average: np.ndarray | None


def judge(rule: Convergence, iterates: Iterates, scores_at: Callable[[np.ndarray], np.ndarray]) -> Verdict:
    """Look at the iterates.

    Args:
      scores_at: parameters [P] -> scores of M draws of q there, [M, P].
    """
    if len(iterates) < 4:
        return Verdict(False, np.inf, 0, None, iterates.last(1)[0] if len(iterates) else None)
    floor = min(_MIN_ROWS, len(iterates))
    lengths = dict.fromkeys(max(round(fraction * len(iterates)), floor) for fraction in _FRACTIONS)
    windows = [iterates.last(length) for length in lengths]
    scores = scores_at(windows[-1].mean(axis=0))
    series = [(window - window.mean(axis=0)) @ scores.T for window in windows]
    rhats = [_rhat(s, rule.tolerance) for s in series]
    # The longest stationary window averages the most; with none, the one nearest to it.
    best = next((i for i, rhat in enumerate(rhats) if rhat <= rule.rhat), int(np.argmin(rhats)))
    window = windows[best]
    half = len(window) // 2
    drift = (window[-half:].mean(axis=0) - window[:half].mean(axis=0)) ** 2 * np.mean(scores**2, axis=0)
    parameter = int(np.argmax(drift))
    if rhats[best] > rule.rhat:
        newest = iterates.last(max(len(iterates) // 20, 1))
        return Verdict(False, rhats[best], parameter, None, newest.mean(axis=0))
    error = float(np.mean(batch_means_error(series[best]) ** 2) / 2)
    converged = error <= rule.tolerance and len(window) >= _MIN_ROWS
    return Verdict(converged, rhats[best], parameter, error, window.mean(axis=0))


def _rhat(series: np.ndarray, tolerance: float) -> float:
    """The largest split R-hat; 1 where q moves by less than `tolerance` nats over the whole window,
    as when the noise dies out with the distance to the optimum and only a slow approach is left."""
    if np.mean(np.ptp(series, axis=0) ** 2) / 2 <= tolerance:
        return 1.0
    return float(split_rhat(series).max())
