"""When to stop, and which iterates to average.

With a step size that does not vanish the iterates end up wandering about the optimum. So the
question is never whether the ELBO still rises (its noise answers at random) but whether the
parameters have become stationary, whether their average is known well enough, and whether the
gradient there says that it is time to stop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bbsvi.diagnostics import batch_means_error, split_rhat
from bbsvi.errors import InvalidTypeError, InvalidValueError
from bbsvi.optimization.averaging import Iterates

_FRACTIONS = (0.8, 0.65, 0.5)  # windows tried: this much of the record, its newest part
_MIN_ROWS = 40  # with fewer, R-hat exceeds 1.1 by chance


@dataclasses.dataclass(frozen=True, kw_only=True)
class Convergence:
    """Stop when the parameters are stationary, their average is precise, and there is nothing left to gain.

    The iterates lambda_t of a window are seen through the scores h_s of draws of q at its average,
    as the series h_s . (lambda_t - average), [T, M]: to first order how log q at draw s moves, so that
    the rule is blind to units and to directions that leave q as it is, and half their mean square is
    a movement of q in nats, KL.

    Stationary: over some window of the newest iterates split R-hat of the series is at most `rhat`,
    but for movements that come to less than `tolerance` altogether. Precise: the Monte Carlo error of the window's
    average is at most `tolerance` nats. Steps that are too small pass both, wherever they are, so the
    gradient is asked as well. Nothing left: at the average, what a natural-gradient step would gain,
    sum_j g_j^2 / F_jj / 2 with F the Fisher information, is at most `tolerance` nats as far as 1,024
    fresh draws can tell. The fit then ends at the average.
    Dhaka et al. 2020, "Robust, accurate stochastic optimization for variational inference",
    sections 3-4, looks at the parameters themselves.

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


class Gain(NamedTuple):
    """What a natural-gradient step would gain, in nats, its standard error, and whether q is a point."""

    nats: float
    standard_error: float
    has_collapsed: bool


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a look at the iterates found.

    Attributes:
      rhat: the largest split R-hat over the best window.
      parameter: index of the parameter that drifts most, in nats.
      error: Monte Carlo error of the average in nats; None while not stationary.
      gain: at the average; None where the iterates alone decide.
      average: [P], over the stationary window, or over the newest twentieth where there is none; None
        where there are too few iterates to average.
      converged: the rule is met.
    """

    rhat: float
    parameter: int
    error: float | None
    gain: Gain | None
    average: np.ndarray | None
    converged: bool


def judge(
    rule: Convergence,
    iterates: Iterates,
    scores_at: Callable[[np.ndarray], np.ndarray],
    gain_at: Callable[[np.ndarray], Gain],
) -> Verdict:
    """Look at the iterates.

    Args:
      scores_at: parameters [P] -> scores of M draws of q there, [M, P].
      gain_at: parameters [P] -> what is left to gain there. Asked only if all else is well.
    """
    count = len(iterates)
    if count < 4:
        return Verdict(np.inf, 0, None, None, None, False)
    floor = min(_MIN_ROWS, count)
    lengths = list(dict.fromkeys(max(round(fraction * count), floor) for fraction in _FRACTIONS))
    rows = iterates.last(lengths[0])
    scores = scores_at(iterates.last(lengths[-1]).mean(axis=0))
    projected = (rows - rows[-1]) @ scores.T
    series = [projected[-length:] - projected[-length:].mean(axis=0) for length in lengths]
    rhats = [_rhat(s, rule.tolerance) for s in series]
    # The longest stationary window averages the most; with none, the one nearest to it.
    best = next((i for i, rhat in enumerate(rhats) if rhat <= rule.rhat), int(np.argmin(rhats)))
    window = rows[-lengths[best] :]
    half = len(window) // 2
    drift = (window[-half:].mean(axis=0) - window[:half].mean(axis=0)) ** 2 * np.mean(scores**2, axis=0)
    parameter = int(np.argmax(drift))
    if not rhats[best] <= rule.rhat:
        newest = iterates.last(max(count // 20, 1))
        return Verdict(rhats[best], parameter, None, None, newest.mean(axis=0), False)
    average = window.mean(axis=0)
    error = float(np.mean(batch_means_error(series[best]) ** 2) / 2)
    if not (error <= rule.tolerance and len(window) >= _MIN_ROWS):
        return Verdict(rhats[best], parameter, error, None, average, False)
    gain = gain_at(average)
    done = gain.nats <= rule.tolerance + 3 * gain.standard_error and not gain.has_collapsed
    return Verdict(rhats[best], parameter, error, gain, average, bool(done))


def _rhat(series: np.ndarray, tolerance: float) -> float:
    """The largest split R-hat, but for draws whose drifts together come to less than `tolerance` nats (a
    category that hardly comes up goes on drifting for ever, and is worth as little); 1 where q as a whole
    moves by less than that, as when only a slow approach is left of the noise."""
    if np.mean(np.ptp(series, axis=0) ** 2) / 2 <= tolerance:
        return 1.0
    half = len(series) // 2
    drift = (series[-half:].mean(axis=0) - series[:half].mean(axis=0)) ** 2 / 2 / series.shape[1]
    rhat = split_rhat(series)
    order = np.argsort(-rhat)
    kept = order[np.cumsum(drift[order]) > tolerance]
    return float(rhat[kept].max()) if len(kept) else 1.0
