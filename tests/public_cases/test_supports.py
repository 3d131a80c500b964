"""Bounded and simplex supports.

C16: pymc-devs/pymc#1170, pymc-devs/pymc#1201.
C18: tensorflow/probability#1777, pymc-devs/pymc#4733, TuringLang/Bijectors.jl#283.
"""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import bbsvi

from .models import assert_below_evidence, assert_moments, counted_parts, fit

tfb, tfd = tfp.bijectors, tfp.distributions


def truncated_joint():
    joint = tfd.JointDistributionNamed({"theta": tfd.TruncatedNormal(0.0, 1.0, -np.inf, 1.0)})
    return bbsvi.Target.from_joint(joint, {})


def truncated_function():
    normal = tfd.Normal(0.0, 1.0)
    return bbsvi.Target(
        lambda theta: normal.log_prob(theta) - normal.log_cdf(1.0),
        event_shape={"theta": ()},
        support={"theta": ("interval", -np.inf, 1.0)},
    )


@pytest.mark.parametrize("make", [truncated_joint, truncated_function])
def test_normal_cut_at_one(make):
    """C16: theta = 1 - exp(u) with u normal: best ELBO -0.157429, mean -0.305102, sd 0.775765; nothing above 1."""
    posterior = fit(make())
    assert posterior.sample(100_000)["theta"].max() <= 1.0
    assert_moments(posterior, "theta", -0.305102, 0.775765)
    elbo = posterior.elbo(50_000)
    assert abs(elbo.value - -0.157429) < 0.01 + 3 * elbo.standard_error
    assert_below_evidence(posterior, 0.0, gap=0.17)


def test_log_q_beyond_the_bound_is_minus_infinity():
    """C16: q has no mass there, and says so when asked."""
    family = bbsvi.families.MeanField(truncated_function())
    posterior = bbsvi.Posterior(truncated_function(), family, {"step": np.zeros(0)}, False, "", 0)
    inside, beyond = posterior.log_prob({"theta": [0.5, 1.5]})
    np.testing.assert_allclose(inside, -0.5 * np.log(2 * np.pi) - np.log(0.5) ** 2 / 2 - np.log(0.5), rtol=1e-5)
    assert beyond == -np.inf


@pytest.mark.parametrize(
    ("support", "low", "high"),
    [
        (("interval", -np.inf, 1.0), -np.inf, 1.0),
        (("interval", 2.0, np.inf), 2.0, np.inf),
        (("interval", -1.0, 3.0), -1.0, 3.0),
        ("positive", 0.0, np.inf),
        ("unit_interval", 0.0, 1.0),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_draw_of_a_wide_q_crosses_a_bound(support, low, high, dtype):
    """C16, for every bounded support: 100,000 draws through a base of sd 10."""
    target = bbsvi.Target(lambda z: -z, event_shape=(), support=support, dtype=dtype)
    family = bbsvi.families.MeanField(target)
    family.assign([np.zeros((), dtype), np.log(10.0).astype(dtype)])
    draws = family.sample(100_000, tf.constant([1, 2]))
    value = draws.value["z"].numpy()
    assert value.min() >= low
    assert value.max() <= high
    assert np.ptp(value) > 0.9 * min(high - low, 1e3)
    assert np.isfinite(family.log_prob(draws)).all()


@pytest.mark.parametrize(
    ("q", "support"),
    [
        (lambda: tfd.Normal(tf.Variable(0.0), 1.0), ("interval", -np.inf, 1.0)),
        (lambda: tfd.Normal(tf.Variable(0.0), 1.0), "positive"),
        (lambda: tfd.LogNormal(tf.Variable(0.0), 1.0), "unit_interval"),
    ],
)
def test_q_that_crosses_a_bound_is_refused(q, support):
    """C16: without a transform the draws would leave the support."""
    target = bbsvi.Target(lambda theta: -theta, event_shape={"theta": ()}, support={"theta": support})
    with pytest.raises(bbsvi.InvalidValueError, match=r"draws of latent 'theta' fall outside its support"):
        fit(target, q())


DIRICHLET_MEAN, DIRICHLET_STDDEV = [5 / 12, 4 / 12, 3 / 12], [0.136735, 0.130744, 0.120096]
DIRICHLET_LOG_EVIDENCE = -11.146200


def test_full_rank_q_on_the_simplex_stays_below_the_evidence():
    """C18: counts 4, 3, 2; best logistic-normal ELBO -11.162642. The volume without its constant adds 0.549."""
    posterior = fit(counted_parts(), "full_rank")
    assert_moments(posterior, "x", DIRICHLET_MEAN, DIRICHLET_STDDEV, within=0.15, spread=0.1)
    assert_below_evidence(posterior, DIRICHLET_LOG_EVIDENCE, gap=0.0164 + 0.01)
    assert np.abs(posterior.sample(1_000)["x"].sum(axis=1) - 1).max() < 1e-5


def test_dirichlet_q_is_the_posterior():
    """C18: Dirichlet(5, 4, 3), over the simplex itself."""
    concentration = tfp.util.TransformedVariable([1.0, 1.0, 1.0], tfb.Exp())
    posterior = fit(counted_parts(), tfd.Dirichlet(concentration), jit_compile=False)
    assert_moments(posterior, "x", DIRICHLET_MEAN, DIRICHLET_STDDEV)
    assert_below_evidence(posterior, DIRICHLET_LOG_EVIDENCE, gap=0.005)


@pytest.mark.parametrize("num_parts", [2, 3, 10])
def test_volume_of_the_simplex_map_is_that_of_dirichlet_densities(num_parts):
    """C18: the determinant of the first K - 1 parts by the reals; TFP's softmax-centred is log(K) / 2 off."""
    target = bbsvi.Target(lambda x: 0 * x[:, 0], event_shape={"x": (num_parts,)}, support={"x": "simplex"})
    bijector = target.latents["x"].support.bijector
    z = tf.random.stateless_normal([5, num_parts - 1], [1, 2], dtype=tf.float64)
    parts = range(num_parts - 1)
    rows = [bbsvi.per_sample_gradients(lambda one, part=part: bijector.forward(one)[part], z) for part in parts]
    log_volume = np.linalg.slogdet(np.stack(rows, axis=1))[1]
    np.testing.assert_allclose(bijector.forward_log_det_jacobian(z, event_ndims=1), log_volume, rtol=1e-9)


@pytest.fixture(scope="module")
def thirty_parts():
    joint = tfd.JointDistributionNamed({"x": tfd.Dirichlet(tf.ones(30))})
    return bbsvi.Target.from_joint(joint, {})


def test_thirty_parts_are_exchangeable_at_the_start(thirty_parts):
    """C18: early in the fit the last part looked far from uniform."""
    draws = bbsvi.families.MeanField(thirty_parts).sample(100_000, tf.constant([1, 2])).value["x"].numpy()
    error = draws.std(axis=0) / np.sqrt(len(draws))
    assert np.abs((draws.mean(axis=0) - 1 / 30) / error).max() < 4.5
    np.testing.assert_allclose(draws.std(axis=0), draws.std(), rtol=0.05)


def test_thirty_parts_are_exchangeable_after_the_fit(thirty_parts):
    """C18: no data; every part has mean 1/30 to a tenth of a posterior sd (0.03224), the last no worse."""
    posterior = fit(thirty_parts)
    draws = posterior.sample(100_000)["x"]
    assert np.abs(draws.mean(axis=0) - 1 / 30).max() < 0.1 * 0.03224
    np.testing.assert_allclose(draws.std(axis=0), draws.std(axis=0).mean(), rtol=0.15)
    assert_below_evidence(posterior, 0.0, gap=10.0)
