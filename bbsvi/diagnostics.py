"""How far to trust a fit: functions of numpy arrays, which can judge any library's fit."""

from __future__ import annotations

import math

import numpy as np


def split_rhat(series: np.ndarray) -> np.ndarray:
    """Split R-hat of one chain, by column: its two halves are compared as two chains.

    Gelman et al. 2013, "Bayesian Data Analysis", 3rd ed., section 11.4.

    Args:
      series: [T, P], T >= 4; in the middle one row is left out where T is odd.

    Returns:
      [P]; 1 where the halves agree, large where the series drifts. A constant column gives 1.
    """
    half = len(series) // 2
    # In float64 and about the first row, or float32 columns far from zero lose their spread.
    series = np.asarray(series, np.float64) - np.asarray(series[0], np.float64)
    halves = np.stack([series[:half], series[-half:]])
    within = halves.var(axis=1, ddof=1).mean(axis=0)
    between = halves.mean(axis=1).var(axis=0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.sqrt((half - 1) / half + between / within)
    return np.where(within > 0, ratio, np.where(between > 0, np.inf, 1.0))


def batch_means_error(series: np.ndarray) -> np.ndarray:
    """Monte Carlo standard error of the mean of a correlated series, by column.

    Batch means with sqrt(T) batches of sqrt(T) rows. Flegal and Jones 2010, "Batch means and
    spectral variance estimators in Markov chain Monte Carlo", section 2.

    Args:
      series: [T, P], T >= 4.

    Returns:
      [P].
    """
    series = np.asarray(series, np.float64)
    size = math.isqrt(len(series))
    count = len(series) // size
    batches = series[len(series) - count * size :].reshape(count, size, *series.shape[1:]).mean(axis=1)
    return np.sqrt(batches.var(axis=0, ddof=1) / count)


def k_hat(log_weights: np.ndarray) -> float:
    """Pareto shape of the importance weights p/q, by ArviZ's Pareto smoothed importance sampling.

    Vehtari et al. 2024, "Pareto smoothed importance sampling", JMLR 25(72). Above `k_hat_threshold`
    q misses part of the posterior that matters.

    Args:
      log_weights: [S], log p - log q at draws of q, up to a constant.
    """
    import arviz  # takes seconds to import, so only where it is used

    log_weights = np.asarray(log_weights, np.float64)
    length = math.ceil(min(0.2 * len(log_weights), 3 * math.sqrt(len(log_weights))))
    start = np.sort(log_weights)[-length - 1]
    if log_weights.max() - start < 1e-6 * (1 + abs(start)):
        return -np.inf  # the largest weight is shared, as over few discrete values: there is no tail to fit
    with np.errstate(over="ignore"):  # inside ArviZ, where it is harmless
        return float(arviz.psislw(log_weights - log_weights.max())[1])


def k_hat_threshold(num_draws: int) -> float:
    """min(1 - 1 / log10 S, 0.7): above it, S draws are too few. Vehtari et al. 2024, eq. 13."""
    return min(1 - 1 / math.log10(num_draws), 0.7)


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Mean of independent values and its standard error."""
    values = np.asarray(values, np.float64)
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))
