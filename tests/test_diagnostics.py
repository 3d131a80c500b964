"""Diagnostics on log weights whose answer is known."""

import numpy as np
import pytest
from scipy import stats

from bbsvi import diagnostics


@pytest.mark.parametrize("sd", [1.5, 2.0, 4.0])
def test_k_hat_of_a_narrow_gaussian(sd):
    """q = N(0, 1), p = N(0, sd^2): the weights' tail index is 1 - 1 / sd^2."""
    draws = np.random.default_rng(0).normal(size=200_000)
    found = diagnostics.k_hat(stats.norm(0, sd).logpdf(draws) - stats.norm.logpdf(draws))
    assert found == pytest.approx(1 - 1 / sd**2, abs=0.1)


def test_k_hat_does_not_see_a_constant():
    draws = np.random.default_rng(1).normal(size=5_000)
    log_weights = stats.norm(0, 2).logpdf(draws) - stats.norm.logpdf(draws)
    assert diagnostics.k_hat(log_weights + 1e6) == pytest.approx(diagnostics.k_hat(log_weights), abs=1e-6)


@pytest.mark.parametrize("values", [[-3.7], [-3.7, -3.7 + 1e-9], [0.1, 0.2], list(np.linspace(0, 1, 10))])
def test_k_hat_of_weights_that_share_their_largest_value(values):
    """As over a few discrete states: bounded weights have no tail."""
    assert diagnostics.k_hat(np.random.default_rng(3).choice(values, size=5_000)) == -np.inf


def test_threshold_depends_on_the_number_of_draws():
    assert diagnostics.k_hat_threshold(100) == pytest.approx(0.5)
    assert diagnostics.k_hat_threshold(10_000) == pytest.approx(0.7)


def test_mean_and_error():
    values = np.random.default_rng(2).normal(3, 2, size=400)
    mean, error = diagnostics.mean_and_error(values)
    assert mean == pytest.approx(values.mean())
    assert error == pytest.approx(stats.sem(values))
