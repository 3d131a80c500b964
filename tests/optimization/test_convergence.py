"""The rule that stops a fit, on iterates whose behaviour is known."""

import numpy as np
import pytest

import bbsvi
from bbsvi.diagnostics import batch_means_error, split_rhat
from bbsvi.optimization.averaging import Iterates
from bbsvi.optimization.convergence import Gain, judge

# q = N(lambda, I): the score of draw e is e, and moving lambda by d costs |d|^2 / 2 nats.
SCORES = np.random.default_rng(0).normal(size=(2_000, 3))


def autoregressive(length, sd=0.1, rho=0.8, seed=1):
    noise = np.random.default_rng(seed).normal(size=(length, 3)) * sd * np.sqrt(1 - rho**2)
    series = np.zeros((length, 3))
    for t in range(1, length):
        series[t] = rho * series[t - 1] + noise[t]
    return series


NOTHING = Gain(0.0, 0.0, has_collapsed=False)


def recorded(series):
    iterates = Iterates(series.shape[1])
    iterates.extend(series)
    return iterates


def verdict(series, gain=NOTHING, **rule):
    return judge(bbsvi.Convergence(**rule), recorded(series), lambda _: SCORES, lambda _: gain)


def test_stationary_iterates_converge_to_their_mean():
    found = verdict(3.0 + autoregressive(400, sd=0.03))
    assert found.converged
    np.testing.assert_allclose(found.average, 3.0, atol=0.025)  # five standard errors of 0.03 * 3 / sqrt(320)


def test_error_in_nats_is_that_of_the_average():
    """Over many runs the average's own KL from the truth has the mean that the rule reports."""
    reported, true = [], []
    for seed in range(200):
        found = verdict(autoregressive(300, seed=seed), rhat=10.0, tolerance=1e-9)
        assert found.gain is None
        reported.append(found.error)
        true.append(np.sum(found.average**2) / 2)
    # Batch means of sqrt(T) rows fall short of a correlation time of nine rows by about a third.
    assert 0.5 < np.mean(reported) / np.mean(true) < 1.1


def test_drift_does_not_converge():
    found = verdict(autoregressive(400) + np.array([0.0, 1.0, 0.0]) * np.linspace(0, 5, 400)[:, None])
    assert not found.converged
    assert found.rhat > 1.5
    assert found.error is None
    assert found.parameter == 1


def test_random_walk_does_not_converge():
    walk = np.cumsum(np.random.default_rng(3).normal(size=(400, 3)) * 0.2, axis=0)
    assert not verdict(walk).converged


def test_noise_too_loud_for_the_window_does_not_converge():
    found = verdict(autoregressive(80, sd=3.0), rhat=3.0)
    assert not found.converged
    assert found.error > 0.001


def test_directions_that_leave_q_as_it_is_do_not_matter():
    series = autoregressive(400)
    series[:, 2] = np.linspace(0, 50, 400)
    blind = SCORES * np.array([1.0, 1.0, 0.0])
    assert judge(bbsvi.Convergence(), recorded(series), lambda _: blind, lambda _: NOTHING).converged


def test_a_slow_drift_is_an_arrival_only_if_there_is_nothing_left_to_gain():
    slow = np.linspace(0, 1e-3, 400)[:, None] * np.ones(3)
    assert verdict(slow).converged
    assert verdict(
        slow, gain=Gain(0.02, 0.01, has_collapsed=False)
    ).converged  # within three standard errors of nothing
    assert not verdict(slow, gain=Gain(0.04, 0.01, has_collapsed=False)).converged
    assert not verdict(slow, gain=Gain(0.0, 0.0, has_collapsed=True)).converged


def test_few_iterates_are_not_judged():
    assert not verdict(np.zeros((3, 3))).converged
    assert not verdict(np.zeros((20, 3))).converged


def test_iterates_stay_bounded_and_keep_their_mean():
    iterates = recorded(np.arange(5_000.0)[:, None])
    assert len(iterates) < 512
    rows = iterates.last(len(iterates))
    assert np.all(np.diff(rows[:, 0]) > 0)
    merged = rows[1, 0] - rows[0, 0]
    np.testing.assert_allclose(rows[0, 0], (merged - 1) / 2)


def test_many_parameters_keep_fewer_rows():
    iterates = Iterates(200_000)
    for _ in range(300):
        iterates.extend(np.zeros((1, 200_000)))
    assert 60 <= len(iterates) <= 128


def test_split_rhat_against_its_definition():
    x = np.random.default_rng(4).normal(size=101)
    first, second = x[:50], x[-50:]
    within = (first.var(ddof=1) + second.var(ddof=1)) / 2
    between = 50 * np.var([first.mean(), second.mean()], ddof=1)
    expected = np.sqrt((49 / 50 * within + between / 50) / within)
    np.testing.assert_allclose(split_rhat(x[:, None]), [expected], rtol=1e-12)
    assert split_rhat(np.ones((10, 1)))[0] == 1.0


def test_split_rhat_of_large_float32_columns():
    x = (1e6 + np.random.default_rng(5).normal(size=(200, 1))).astype(np.float32)
    assert split_rhat(x)[0] < 1.05


def test_batch_means_error_of_independent_draws():
    errors = batch_means_error(np.random.default_rng(6).normal(size=(2_500, 400)))
    np.testing.assert_allclose(np.mean(errors**2), 1 / 2_500, rtol=0.05)


@pytest.mark.parametrize("rule", [{"rhat": 1.0}, {"rhat": 0.9}, {"tolerance": 0.0}, {"tolerance": -1.0}])
def test_impossible_rules_are_refused(rule):
    with pytest.raises(bbsvi.InvalidValueError, match=next(iter(rule))):
        bbsvi.Convergence(**rule)
