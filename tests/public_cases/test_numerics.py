"""Saturation, underflow and dtypes.

C21: pymc-devs/pymc#1147, pymc-devs/pymc#7515, pymc-devs/pymc#3132. C22: a question in the Edward forum of 2018-01-18.
C50: tensorflow/probability#221, tensorflow/probability#1010, tensorflow/probability#863, tensorflow/probability#543,
PGM-Lab/InferPy#181, tensorflow/tensorflow#43043, GPflow/GPflow#1103.
"""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import bbsvi

from .models import assert_below_evidence, assert_moments, fit

tfb, tfd = tfp.bijectors, tfp.distributions

X = np.array([-40, -25, -10, -3, -1, 1, 2, 5, 20, 50], np.float32)
Y = np.array([0, 0, 0, 0, 1, 0, 1, 1, 1, 1], np.float32)


def logistic(log_likelihood):
    """b ~ N(0, 10) and ten points; `log_likelihood` of the logits [S, 10] is [S, 10]."""
    return bbsvi.Target(
        log_prior=tfd.Normal(0.0, 10.0).log_prob,
        log_likelihood=lambda b: tf.reduce_sum(log_likelihood(b[:, None] * X), axis=1),
        event_shape={"b": ()},
    )


def by_logits(logits):
    return tfd.Bernoulli(logits=logits).log_prob(Y)


def by_hand(logits):
    p = tf.sigmoid(logits)
    return Y * tf.math.log(p) + (1 - Y) * tf.math.log(1 - p)


def by_hand_and_where(logits):
    p = tf.sigmoid(logits)
    return tf.where(Y == 1, tf.math.log(p), tf.math.log(1 - p))


def test_logits_form_works_by_default():
    """C21: best Gaussian q N(0.943040, 0.357043), ELBO -5.791276."""
    target = logistic(by_logits)
    np.testing.assert_allclose(target.terms({"b": tf.constant([-2.0])})["log_likelihood"], [-310.274527], rtol=1e-6)
    posterior = fit(target)
    assert_moments(posterior, "b", 0.943040, 0.357043)
    assert_below_evidence(posterior, -5.504270, gap=5.791276 - 5.504270 + 0.01)
    assert posterior.history["dropped_draws"].sum() == 0


@pytest.mark.parametrize("form", [by_hand, by_hand_and_where])
def test_hand_written_sigmoid_is_named_and_never_silent(form):
    """C21: log(1 - p) at p = 1 is not finite for many draws: an error or a warning names the term."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            fit(logistic(form))
            said = [str(w.message) for w in caught if issubclass(w.category, bbsvi.BBSVIWarning)]
        except bbsvi.NonFiniteError as error:
            said = [str(error)]
    assert any("log_likelihood" in message for message in said), said


def test_many_large_features_stay_finite():
    """C21: 100 features with values up to 50 and 200 rows, on which the hand-written form gave NaN."""
    generator = np.random.default_rng(1)
    x = generator.uniform(-50, 50, (200, 100)).astype(np.float32)
    y = (x @ generator.normal(size=100) > 0).astype(np.float32)
    target = bbsvi.Target(
        lambda b: (
            tf.reduce_sum(tfd.Normal(0.0, 10.0).log_prob(b), axis=1)
            + tf.reduce_sum(tfd.Bernoulli(logits=tf.matmul(b, x, transpose_b=True)).log_prob(y), axis=1)
        ),
        event_shape={"b": (100,)},
    )
    posterior = fit(target, num_steps=500, convergence=None)
    elbo = posterior.history["elbo"]
    assert np.isfinite(elbo).all()
    assert posterior.history["dropped_draws"].sum() == 0
    assert elbo[-50:].mean() > elbo[:50].mean()


def squashed_normal(h, *, safe):
    """x ~ N(0, 1), h ~ Bernoulli(exp(-x^2)); `safe`: log(1 - exp(-x^2)) by expm1."""

    def log_prob(x):
        if h == 0 and safe:
            return tfd.Normal(0.0, 1.0).log_prob(x) + tf.math.log(-tf.math.expm1(-tf.square(x)))
        return tfd.Normal(0.0, 1.0).log_prob(x) + tfd.Bernoulli(probs=tf.exp(-tf.square(x))).log_prob(h)

    return bbsvi.Target(log_prob, event_shape={"x": ()})


def test_probability_of_exactly_one_where_it_happened():
    """C22, h = 1: N(0, 1/3), log evidence -0.549306."""
    posterior = fit(squashed_normal(1, safe=False))
    assert_moments(posterior, "x", 0.0, 0.577350)
    assert_below_evidence(posterior, -0.549306, gap=0.005)


@pytest.mark.parametrize("safe", [True, False], ids=["by expm1", "by probabilities"])
def test_probability_of_exactly_one_where_it_did_not_happen(safe):
    """C22, h = 0: two modes. q is finite and sits on one of them or spans both; log evidence -0.861212."""
    target = squashed_normal(0, safe=safe)
    if safe:
        np.testing.assert_allclose(target.log_prob({"x": tf.constant([1e-4])}), [-18.420681 - 0.918939], rtol=1e-5)
    with warnings.catch_warnings():
        # By probabilities a draw within 1e-4 of zero has log p = -inf in float32: if one comes up, the fit says so.
        warnings.simplefilter("error" if safe else "ignore", bbsvi.BBSVIWarning)
        posterior = fit(target, convergence=None, num_steps=2_000)
    assert all(np.isfinite(parameter).all() for parameter in posterior.family.parameters())
    mean, stddev = posterior.mean()["x"], posterior.stddev()["x"]
    second_moment = mean**2 + stddev**2
    assert (0.9 < abs(mean) < 1.6 and 0.3 < stddev < 0.8) or (abs(mean) < 0.5 and 1.0 < second_moment < 2.5)
    recent, error = posterior.history["elbo"][-500:], posterior.history["elbo_standard_error"][-500:]
    assert np.isfinite(recent).all()
    assert recent.mean() <= -0.861212 + 3 * np.sqrt(np.sum(error**2)) / 500


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("family", [bbsvi.families.MeanField, bbsvi.families.FullRank])
def test_scale_cannot_underflow_to_zero(dtype, family):
    """C22: at a raw scale of -110, exp and softplus are 0 in float32; log q and the scores stay finite."""
    q = family(bbsvi.Target(tfd.Normal(np.zeros((), dtype), 1.0).log_prob, event_shape=(), dtype=dtype))
    loc, log_scale = q.parameters()[:2]
    q.assign([loc, np.full_like(log_scale, -110.0)])
    draws = q.sample(100, tf.constant([1, 2]))
    assert np.isfinite(q.log_prob(draws)).all()
    assert all(np.isfinite(score).all() for score in q.scores(draws).dense())


def test_scale_of_zero_in_a_distribution_of_ones_own_is_named():
    """C22: softplus(-110) is 0 in float32, log q is NaN; said before anything runs."""
    scale = tfp.util.DeferredTensor(tf.Variable(-110.0), tf.nn.softplus)
    target = bbsvi.Target(tfd.Normal(0.0, 1.0).log_prob, event_shape={"x": ()})
    with pytest.raises(bbsvi.NonFiniteError, match="log q is not finite"):
        fit(target, tfd.Normal(tf.Variable(0.0), scale))


def sharp(dtype):
    """x ~ N(0, 1), y ~ N(x, 0.001), y = 100: x has mean 99.9999 and sd 0.000999999."""
    one, sd, y = (tf.constant(number, dtype) for number in (1.0, 1e-3, 100.0))
    return bbsvi.Target(
        lambda x: tfd.Normal(0 * one, one).log_prob(x) + tfd.Normal(x, sd).log_prob(y),
        event_shape={"x": ()},
        dtype=dtype,
    )


def test_float64_fit_reaches_a_sharp_and_distant_posterior():
    """C50: 99.9999 (0.000999999), from N(100, 0.01)."""
    target = sharp("float64")
    family = bbsvi.families.MeanField(target)
    family.assign([np.float64(100), np.log(0.01)])
    rate = keras.optimizers.schedules.ExponentialDecay(0.01, 500, 0.5)
    optimizer = keras.optimizers.Adam(rate, beta_2=0.9)  # gradients shrink ten thousandfold on the way
    posterior = fit(target, family, optimizer=optimizer, sample_size=64, num_steps=5_000, convergence=None)
    assert posterior.sample(2)["x"].dtype == np.float64
    assert_moments(posterior, "x", 99.9999, 0.000999999)
    assert_below_evidence(posterior, -5000.9139, gap=0.01)


def test_float64_gradient_is_the_closed_form_to_ten_digits():
    """C50: at fixed draws, beside numpy; a float32 anywhere on the way would show in the eighth digit."""
    target = sharp("float64")
    family = bbsvi.families.MeanField(target)
    mu, log_s = 99.99, np.log(0.003)
    family.assign([np.float64(mu), np.float64(log_s)])
    draws = family.sample(64, tf.constant([1, 2]))
    x = draws.value["x"].numpy()
    assert x.dtype == np.float64
    s = np.exp(log_s)
    log_p = -(x**2) / 2 - ((100 - x) / 1e-3) ** 2 / 2 - np.log(1e-3) - np.log(2 * np.pi)
    log_q = -(((x - mu) / s) ** 2) / 2 - log_s - np.log(2 * np.pi) / 2
    f = log_p - log_q
    weights = (f - f.mean()) / 63
    expected = [np.sum(weights * (x - mu) / s**2), np.sum(weights * (((x - mu) / s) ** 2 - 1))]
    estimate, _ = bbsvi.estimators.ScoreFunction().estimate_at((), target, family, draws)
    np.testing.assert_allclose(estimate.gradient, expected, rtol=1e-10)
    np.testing.assert_allclose(estimate.elbo, f.mean(), rtol=1e-12)


def poisson_joint(dtype="float32"):
    one = tf.constant(1.0, dtype)
    return tfd.JointDistributionNamed(
        {"rate": tfd.Gamma(2 * one, one), "counts": lambda rate: tfd.Sample(tfd.Poisson(rate), 5)}
    )


COUNTS = [3, 0, 2, 4, 1]  # rate | counts ~ Gamma(12, 6)


def test_integer_and_float_counts_give_the_same_answer():
    """C50: to the last bit."""
    kinds = [np.array(COUNTS, dtype) for dtype in (np.int64, np.int32, np.uint8, np.float32)] + [COUNTS]
    posteriors = [fit(poisson_joint(), data={"counts": kind}, num_steps=50, convergence=None) for kind in kinds[:2]]
    np.testing.assert_array_equal(posteriors[0].history["elbo"], posteriors[1].history["elbo"])
    values = {"rate": tf.constant([0.5, 2.0, 3.0])}
    densities = [bbsvi.Target.from_joint(poisson_joint(), {"counts": kind}).log_prob(values) for kind in kinds]
    for density in densities[1:]:
        np.testing.assert_array_equal(density, densities[0])


def test_count_that_the_dtype_cannot_hold_is_refused():
    """C50: 2^24 + 1 has no float32; 2.5 is no count of an integer site."""
    with pytest.raises(bbsvi.InvalidTypeError, match=r"data\['counts'\].*float32"):
        fit(poisson_joint(), data={"counts": np.array([2**24 + 1, 0, 0, 0, 0])})
    joint = tfd.JointDistributionNamed(
        {"p": tfd.Beta(1.0, 1.0), "heads": lambda p: tfd.Independent(tfd.Bernoulli(probs=p * tf.ones(2)), 1)}
    )
    with pytest.raises(bbsvi.InvalidTypeError, match=r"data\['heads'\].*int32"):
        fit(joint, data={"heads": [0.5, 1.0]})


def test_float64_data_for_a_float32_model_is_never_downcast_in_silence():
    """C50: the error names site and both dtypes; the model in float64 takes them."""
    data = {"counts": np.array(COUNTS, np.float64)}
    with pytest.raises(bbsvi.InvalidTypeError, match=r"'counts'.*float64.*float32"):
        fit(poisson_joint(), data=data)
    posterior = fit(poisson_joint("float64"), data=data)
    assert posterior.sample(3)["rate"].dtype == np.float64
    assert {variable.dtype for variable in posterior.family.trainable_variables} == {tf.float64}
    assert_moments(posterior, "rate", 2.0, np.sqrt(12) / 6)


def test_q_of_another_dtype_is_refused_by_name():
    """C50."""
    q = tfd.Normal(tf.Variable(0.0), tfp.util.TransformedVariable(1.0, tfb.Exp()))
    with pytest.raises(bbsvi.InvalidValueError, match=r"latent 'x' is float32 .* in q and float64"):
        fit(sharp("float64"), q)


def test_two_float_dtypes_in_one_model_are_refused_by_name():
    """C50."""
    joint = tfd.JointDistributionNamed({"a": tfd.Normal(0.0, 1.0), "b": tfd.Normal(np.float64(0), np.float64(1))})
    with pytest.raises(
        bbsvi.InvalidTypeError, match=r"different float dtypes (?=.*'a': 'float32')(?=.*'b': 'float64')"
    ):
        fit(joint, data={})
