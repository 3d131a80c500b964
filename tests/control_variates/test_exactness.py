"""Control variates on bench B3, by exact enumeration: unbiased to 1e-12, variances as tabulated."""

import numpy as np
import pytest
import tensorflow as tf

from bbsvi.control_variates import LeaveOneOut, MovingAverage, NoControlVariate, OptimalCoefficients
from tests import bench_b3

# Exact gradient and total variance x S, from an independent enumeration in numpy.
GRADIENT = np.array([0.04556909, 0.47555418, -0.13420025])
EXPECTED = [
    pytest.param(NoControlVariate(), 1, 16.96898, 1e-5, id="plain-1"),
    pytest.param(NoControlVariate(), 3, 16.96898, 1e-5, id="plain-3"),
    pytest.param(LeaveOneOut(), 2, 1.81677, 1e-5, id="leave-one-out-2"),
    pytest.param(LeaveOneOut(), 3, 1.24746, 1e-5, id="leave-one-out-3"),
    pytest.param(LeaveOneOut(), 4, 1.05769, 1e-5, id="leave-one-out-4"),
    pytest.param(LeaveOneOut(), 5, 0.96280, 1e-5, id="leave-one-out-5"),
    pytest.param(LeaveOneOut(), 6, 0.90587, 1e-5, id="leave-one-out-6"),
    # Tabulated to four decimals.
    pytest.param(OptimalCoefficients(), 2, 1.8168, 5e-5, id="optimal-2"),
    pytest.param(OptimalCoefficients(), 3, 1.3634, 5e-5, id="optimal-3"),
    pytest.param(OptimalCoefficients(), 4, 1.1244, 5e-5, id="optimal-4"),
    pytest.param(OptimalCoefficients(), 5, 0.9708, 5e-5, id="optimal-5"),
    pytest.param(OptimalCoefficients(folds=2), 4, 1.2951, 5e-5, id="optimal-two-folds-4"),
    pytest.param(OptimalCoefficients(folds=2), 5, 1.1860, 5e-5, id="optimal-two-folds-5"),
]


def apply(control_variate):
    return lambda f, scores: control_variate.apply(control_variate.init(), f, scores)[0]


def assert_unbiased(mean):
    np.testing.assert_allclose(mean, bench_b3.exact_gradient(), rtol=0, atol=1e-12)


def test_exact_gradient_is_the_tabulated_one():
    np.testing.assert_allclose(bench_b3.exact_gradient(), GRADIENT, rtol=0, atol=5e-9)


@pytest.mark.parametrize(("control_variate", "num_draws", "variance", "tolerance"), EXPECTED)
def test_unbiased_with_the_tabulated_variance(control_variate, num_draws, variance, tolerance):
    mean, total = bench_b3.moments(apply(control_variate), num_draws)
    assert_unbiased(mean)
    assert total * num_draws == pytest.approx(variance, rel=0, abs=tolerance)


@pytest.mark.parametrize("num_draws", [1, 2, 4])
def test_moving_average_is_unbiased_whatever_its_past(num_draws):
    control_variate = MovingAverage(decay=0.5)
    for past in ([-3.0], [-7.0, 2.0, -5.0]):
        state = control_variate.init()
        for f in past:
            state = control_variate.update(state, tf.constant([f], tf.float64), None)
        mean, _ = bench_b3.moments(lambda f, s, state=state: control_variate.apply(state, f, s)[0], num_draws)
        assert_unbiased(mean)


def test_moving_average_with_a_good_past_has_the_variance_of_a_constant_baseline():
    control_variate = MovingAverage()
    state = control_variate.update(control_variate.init(), tf.constant([-5.40995480683416], tf.float64), None)
    _, total = bench_b3.moments(lambda f, s: control_variate.apply(state, f, s)[0], 2)
    assert total * 2 == pytest.approx(0.67815, rel=0, abs=1e-5)


# Negative controls: what the same assertion says of the textbook mistakes, by the bias they are known for.


def own_mean(f, scores):
    return scores.weighted_sum((f - tf.reduce_mean(f)) / scores.num_draws)[0]


def own_covariance_coefficient(f, scores):
    (h,) = scores.dense()
    fh, centred = f[:, None] * h, h - tf.reduce_mean(h, axis=0)
    covariance = tf.reduce_mean((fh - tf.reduce_mean(fh, axis=0)) * centred, axis=0)
    a = tf.math.divide_no_nan(covariance, tf.reduce_mean(centred**2, axis=0))
    return tf.reduce_mean((f[:, None] - a) * h, axis=0)


def own_moment_coefficient(f, scores):
    (a,) = scores.weighted_square_sum(f)
    (d,) = scores.weighted_square_sum(tf.ones_like(f))
    (h,) = scores.dense()
    return tf.reduce_mean((f[:, None] - a / d) * h, axis=0)


def moving_average_updated_first(f, scores):
    control_variate = MovingAverage()
    state = control_variate.update(control_variate.init(), f, scores)
    return control_variate.apply(state, f, scores)[0]


@pytest.mark.parametrize(
    ("biased", "num_draws", "relative_bias"),
    [
        (own_mean, 2, 0.5),
        (own_mean, 4, 0.25),
        (own_moment_coefficient, 2, None),
        (own_covariance_coefficient, 3, None),
        (moving_average_updated_first, 2, 0.5),
    ],
)
def test_a_baseline_from_its_own_draws_fails_the_assertion(biased, num_draws, relative_bias):
    mean, _ = bench_b3.moments(biased, num_draws)
    with pytest.raises(AssertionError):
        assert_unbiased(mean)
    if relative_bias is not None:
        np.testing.assert_allclose(mean, (1 - relative_bias) * bench_b3.exact_gradient(), atol=1e-12)
