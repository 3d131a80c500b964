"""What a fitted posterior can be asked."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from scipy import stats

import bbsvi

tfd = tfp.distributions
LOG_SCALE = np.log(0.4)


def model(shift=0.0):
    """A correlated pair, a positive latent and a bit; normalised, so that the log evidence is 0."""

    def log_prob(x, rate, k):
        pair = -0.5 * (x[:, 0] ** 2 + (x[:, 1] - 0.5 * x[:, 0]) ** 2) - np.log(2 * np.pi)
        gamma = tfd.Gamma(tf.constant(3.0, x.dtype), tf.constant(2.0, x.dtype)).log_prob(rate)
        bit = tf.where(k == 1, np.log(0.7), np.log(0.3))
        return pair + gamma + tf.cast(bit, x.dtype) + shift

    return bbsvi.Target(
        log_prob,
        event_shape={"x": (2,), "rate": (), "k": ()},
        support={"rate": "positive", "k": "binary"},
        dtype="float64",
    )


@pytest.fixture(scope="module")
def posterior():
    return bbsvi.fit(model(), "full_rank", seed=1, progress_bar=False)


def exact_log_q(posterior, values):
    """log q by scipy, from the parameters."""
    loc, log_diag, lower, logits = posterior.family.parameters()
    scale = np.diag(np.exp(log_diag))
    scale[np.tril_indices(3, -1)] = lower
    flat = np.column_stack([values["x"], np.log(values["rate"])])
    gaussian = stats.multivariate_normal(loc, scale @ scale.T).logpdf(flat) - np.log(values["rate"])
    return gaussian + stats.bernoulli(1 / (1 + np.exp(-logits))).logpmf(values["k"])


def test_sample_shapes_dtypes_and_seeds(posterior):
    draws = posterior.sample(50, seed=3)
    assert {name: (d.shape, d.dtype.name) for name, d in draws.items()} == {
        "x": ((50, 2), "float64"),
        "rate": ((50,), "float64"),
        "k": ((50,), "int32"),
    }
    assert np.all(draws["rate"] > 0)
    np.testing.assert_array_equal(draws["x"], posterior.sample(50, seed=3)["x"])
    assert not np.array_equal(draws["x"], posterior.sample(50, seed=4)["x"])


def test_log_prob_is_the_density_in_the_models_space(posterior):
    values = posterior.sample(200, seed=5)
    np.testing.assert_allclose(posterior.log_prob(values), exact_log_q(posterior, values), rtol=1e-9)


def test_log_prob_outside_the_support_is_minus_infinity(posterior):
    values = {"x": np.zeros((3, 2)), "rate": np.array([1.0, -1.0, 2.0]), "k": np.array([0, 1, 2])}
    found = posterior.log_prob(values)
    assert np.isfinite(found[0])
    np.testing.assert_array_equal(found[1:], [-np.inf, -np.inf])


def test_log_prob_at_an_edge_is_minus_infinity():
    target = bbsvi.Target(
        lambda a, b: -a + tf.zeros_like(b),
        event_shape={"a": (), "b": ()},
        support={"a": "positive", "b": "unit_interval"},
    )
    found = bbsvi.fit(target, num_steps=10, convergence=None, seed=0, progress_bar=False)
    log_q = found.log_prob({"a": np.array([0.0, 1.0, 1.0]), "b": np.array([0.5, 1.0, 0.5])})
    np.testing.assert_array_equal(np.isneginf(log_q), [True, True, False])
    assert np.isfinite(log_q[2])


def test_moments(posterior):
    mean, stddev = posterior.mean(), posterior.stddev()
    np.testing.assert_allclose(mean["x"], [0, 0], atol=0.06)
    np.testing.assert_allclose(stddev["x"], [1, np.sqrt(1.25)], atol=0.06)
    np.testing.assert_allclose(mean["rate"], 1.5, atol=0.1)
    np.testing.assert_allclose(mean["k"], 0.7, atol=0.03)


def test_elbo_has_an_honest_standard_error(posterior):
    estimates = [posterior.elbo(500, seed=seed) for seed in range(200)]
    scatter = np.std([estimate.value for estimate in estimates], ddof=1)
    reported = np.mean([estimate.standard_error for estimate in estimates])
    assert reported == pytest.approx(scatter, rel=0.2)
    assert estimates[0].value < 3 * estimates[0].standard_error
    assert str(estimates[0]).count("±") == 1


def test_summary_has_arviz_columns(posterior):
    summary = posterior.summary()
    assert list(summary.columns) == ["mean", "sd", "hdi_3%", "hdi_97%"]
    assert list(summary.index) == ["k", "rate", "x[0]", "x[1]"]


def test_diagnose(posterior):
    found = posterior.diagnose()
    assert found.converged
    assert found.k_hat_threshold == pytest.approx(0.7)
    assert found.elbo.value == pytest.approx(posterior.elbo(10_000, seed=2).value)
    assert np.isfinite(found.k_hat)
    assert len(found.messages) == 4
    assert str(found).startswith("Converged after")


def test_inference_data(posterior):
    data = posterior.to_inference_data(300)
    assert data.posterior["x"].shape == (1, 300, 2)
    weights = (data.sample_stats["lp"] - data.sample_stats["lq"]).values
    assert weights.shape == (1, 300)
    assert abs(weights.mean()) < 0.2
    assert not hasattr(data, "observed_data")


def test_inference_data_has_what_was_observed():
    example = bbsvi.examples.load("eight_schools")
    posterior = bbsvi.fit(example.target, data=example.data, num_steps=10, convergence=None, seed=0, progress_bar=False)
    np.testing.assert_array_equal(posterior.to_inference_data(20).observed_data["y"], example.data["y"])


SCRIPT = """
import sys
import numpy as np
import bbsvi
from tests.test_posterior import model
posterior = bbsvi.load(sys.argv[1], model())
values = dict(np.load(sys.argv[2]))
np.savez(sys.argv[3], log_q=posterior.log_prob(values), **posterior.sample(7, seed=9))
"""


def test_saved_and_loaded_in_a_new_process_to_the_last_bit(posterior, tmp_path):
    values = posterior.sample(20, seed=8)
    posterior.save(tmp_path / "fit.npz")
    np.savez(tmp_path / "values.npz", **values)
    arguments = [str(tmp_path / name) for name in ("fit.npz", "values.npz", "out.npz")]
    subprocess.run([sys.executable, "-c", SCRIPT, *arguments], check=True, capture_output=True)
    found = np.load(tmp_path / "out.npz")
    np.testing.assert_array_equal(found["log_q"], posterior.log_prob(values))
    for name, draws in posterior.sample(7, seed=9).items():
        np.testing.assert_array_equal(found[name], draws)


def test_loading_keeps_history_and_verdict(posterior, tmp_path):
    path = tmp_path / "fit"
    posterior.save(path)
    loaded = bbsvi.load(path, model())
    assert (loaded.converged, loaded.message, loaded.seed) == (posterior.converged, posterior.message, posterior.seed)
    for name, array in posterior.history.items():
        np.testing.assert_array_equal(loaded.history[name], array)


def test_loading_with_a_changed_model_is_refused(posterior, tmp_path):
    posterior.save(tmp_path / "fit.npz")
    with pytest.raises(bbsvi.InvalidValueError, match=r"the model is not the one that .* was fitted to"):
        bbsvi.load(tmp_path / "fit.npz", model(shift=0.5))
    other = bbsvi.Target(lambda z: -(z**2), event_shape=())
    with pytest.raises(bbsvi.InvalidValueError, match="was fitted to the latents"):
        bbsvi.load(tmp_path / "fit.npz", other)


def test_loading_what_is_no_posterior_is_refused(tmp_path):
    junk, other = tmp_path / "junk.npz", tmp_path / "other.npz"
    junk.write_text("hello")
    np.savez(other, x=np.zeros(3))
    for path in (junk, other):
        with pytest.raises(bbsvi.InvalidValueError, match=r"was not written by Posterior\.save"):
            bbsvi.load(path, model())


def test_loading_does_not_ignore_data(posterior, tmp_path):
    posterior.save(tmp_path / "fit.npz")
    with pytest.raises(bbsvi.InvalidValueError, match="data is for joint distributions"):
        bbsvi.load(tmp_path / "fit.npz", model(), data={"nonsense": 1})


def test_a_class_of_the_users_own_cannot_be_saved(tmp_path):
    class MyGamma(tfd.Gamma):
        pass

    target = bbsvi.Target(lambda z: -z, event_shape=(), support="positive")
    family = bbsvi.families.MeanField(target, factors={"z": MyGamma})
    found = bbsvi.fit(target, family, num_steps=10, convergence=None, seed=0, progress_bar=False)
    with pytest.raises(bbsvi.InvalidValueError, match="a class of your own"):
        found.save(tmp_path / "fit.npz")


def test_a_wrapped_distribution_is_loaded_into_one_built_by_the_same_code(tmp_path):
    def q():
        scale = tfp.util.TransformedVariable(1.0, tfp.bijectors.Exp())
        return tfd.Normal(tf.Variable(0.0), scale)

    target = bbsvi.Target(lambda z: -0.5 * (z - 1) ** 2, event_shape=())
    posterior = bbsvi.fit(target, q(), num_steps=300, convergence=None, seed=0, progress_bar=False)
    posterior.save(tmp_path / "fit.npz")
    with pytest.raises(bbsvi.InvalidValueError, match="pass family="):
        bbsvi.load(tmp_path / "fit.npz", target)
    loaded = bbsvi.load(tmp_path / "fit.npz", target, family=q())
    z = np.linspace(-1, 2, 5, dtype=np.float32)
    np.testing.assert_array_equal(loaded.log_prob({"z": z}), posterior.log_prob({"z": z}))
