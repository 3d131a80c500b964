"""The mixture of Gaussians: log q by scipy, scores by the dense Jacobian, and both modes of a target with two."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

import bbsvi
from bbsvi.families import MeanField, Mixture
from tests.scores_by_jacobian import assert_same, jacobian, shaken, zero_target

SEED = tf.constant([3, 4])


def mixture(dim, components, seed=0, dtype="float64"):
    target = zero_target({"z": (dim,)}, dtype=dtype)
    return shaken(Mixture(target, components=components, seed=seed), seed)


def by_hand(factor, flat):
    """log q at base values [S, D], by scipy."""
    normals = stats.norm.logpdf(flat[:, None], factor.loc.numpy(), np.exp(factor.log_scale.numpy())).sum(axis=2)
    return special.logsumexp(special.log_softmax(factor.logits.numpy()) + normals, axis=1)


@pytest.mark.parametrize(("dim", "components"), [(1, 2), (4, 3), (3, 1), (20, 5)])
def test_log_q_by_scipy(dim, components):
    family = mixture(dim, components, seed=dim)
    (factor,) = family.factors
    draws = family.sample(50, SEED)
    wanted = by_hand(factor, draws.base["z"].numpy())
    np.testing.assert_allclose(family.log_prob(draws), wanted, rtol=1e-9)
    np.testing.assert_allclose(factor.distribution.log_prob(draws.base["z"]), wanted, rtol=1e-9)
    one = factor.log_prob({"z": draws.base["z"][7]})
    assert one.shape == ()
    np.testing.assert_allclose(one, wanted[7], rtol=1e-9)


def test_log_q_of_latents_of_every_kind_beside_each_other():
    shapes = {"positive": (), "bits": (2,), "matrix": (2, 2), "simplex": (3,)}
    target = zero_target(shapes, {"positive": "positive", "bits": "binary", "simplex": "simplex"})
    family = shaken(Mixture(target, components=3))
    gaussians, bernoulli = family.factors
    draws = family.sample(30, SEED)
    assert {name: tuple(x.shape) for name, x in draws.value.items()} == {n: (30, *s) for n, s in shapes.items()}
    flat = np.concatenate([draws.base[name].numpy().reshape(30, -1) for name in ("positive", "matrix", "simplex")], 1)
    wanted = by_hand(gaussians, flat) - draws.log_det["positive"] - draws.log_det["simplex"]
    probability = special.expit(bernoulli.parameters["logits"].numpy())
    wanted = wanted + stats.bernoulli.logpmf(draws.value["bits"].numpy(), probability).sum(axis=1)
    np.testing.assert_allclose(family.log_prob(draws), wanted, rtol=1e-9)
    assert_same(family.scores(draws), jacobian(family, draws), np.random.default_rng(0).normal(size=30))


@settings(max_examples=25, deadline=None)
@given(dim=st.integers(1, 6), components=st.integers(1, 5), num_draws=st.integers(1, 6), seed=st.integers(0, 10_000))
def test_contractions_are_those_of_the_dense_jacobian(dim, components, num_draws, seed):
    family = mixture(dim, components, seed)
    draws = family.sample(num_draws, tf.constant([seed, 1]))
    scores = family.scores(draws)
    assert scores.num_draws == num_draws
    assert_same(scores, jacobian(family, draws), np.random.default_rng(seed).normal(size=num_draws))


def test_scores_at_the_floor_of_the_scale_and_far_from_every_component():
    family = mixture(2, 2)
    (factor,) = family.factors
    factor.log_scale.assign([[-80.0, 0.3], [-2.0, 0.1]])
    rng = np.random.default_rng(1)
    z = np.concatenate([factor.loc.numpy()[:1] + [[1e-30, 0.4]], 1e3 * rng.normal(size=(3, 2))])
    draws = family.draws_at({"z": z})
    found, wanted = family.scores(draws).dense(), jacobian(family, draws).dense()
    for a, b in zip(found, wanted, strict=True):
        assert np.isfinite(a).all()
        np.testing.assert_allclose(a, b, rtol=1e-9)


def test_dtype_is_kept():
    for dtype in ("float32", "float64"):
        family = mixture(3, 2, dtype=dtype)
        draws = family.sample(4, SEED)
        assert {variable.dtype.name for variable in family.trainable_variables} == {dtype}
        assert draws.value["z"].dtype.name == family.log_prob(draws).dtype.name == dtype
        assert {score.dtype.name for score in family.scores(draws).dense()} == {dtype}


def test_its_scores_average_to_zero():
    for components in (1, 3):
        check = bbsvi.check_score(mixture(3, components))
        assert check.passed, str(check)
    at_start = bbsvi.check_score(Mixture(zero_target({"z": ()}, dtype="float32")))
    assert at_start.passed, str(at_start)


def test_draws_follow_log_q():
    family, num_draws = mixture(2, 3), 50_000
    (factor,) = family.factors
    z = family.sample(num_draws, SEED).base["z"].numpy()
    weights, loc = special.softmax(factor.logits.numpy()), factor.loc.numpy()
    scale = np.exp(factor.log_scale.numpy())
    mean = weights @ loc
    cov = np.einsum("c,ci,cj->ij", weights, loc - mean, loc - mean) + np.diag(weights @ scale**2)
    spread = np.sqrt(np.diag(cov))
    assert np.abs((z.mean(axis=0) - mean) / spread).max() < 5 / np.sqrt(num_draws)
    assert (np.abs(np.cov(z.T) - cov) / np.outer(spread, spread)).max() < 10 / np.sqrt(num_draws)
    for i in range(2):
        p_value = stats.kstest(z[:, i], lambda x, i=i: stats.norm.cdf(x[:, None], loc[:, i], scale[:, i]) @ weights)
        assert p_value.pvalue > 1e-4


def test_components_begin_apart_around_the_origin():
    for dim, components in ((1, 2), (7, 3)):
        target = zero_target({"z": (dim,)})
        starts = [Mixture(target, components=components, seed=seed).parameters()[1] for seed in (0, 0, 1)]
        np.testing.assert_array_equal(starts[0], starts[1])
        np.testing.assert_allclose(starts[0].mean(axis=0), 0, atol=1e-12)
        np.testing.assert_allclose(np.square(starts[0]).mean(), 1)
        assert not np.allclose(np.abs(starts[0]), np.abs(starts[2])) or dim == 1
    assert not np.any(Mixture(zero_target({"z": (2,)}), components=1).parameters()[0])


def two_modes(loc):
    """0.5 N(-loc, 0.5) + 0.5 N(loc, 0.5), independent by dimension within a mode; log p is normalised."""
    loc = np.asarray(loc, np.float32)

    def log_prob(z):
        z = tf.reshape(z, [-1, loc.size])
        modes = [-2 * tf.reduce_sum(tf.square(z - sign * loc), axis=1) for sign in (-1, 1)]
        return tf.reduce_logsumexp(modes, axis=0) + float(np.log(0.5) + loc.size * np.log(2 / np.sqrt(2 * np.pi)))

    return bbsvi.Target(log_prob, event_shape=loc.shape)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("loc", [3.0, (3.0, -3.0)], ids=["1-D", "2-D"])
def test_both_modes_are_found_where_mean_field_sits_on_one(loc, seed):
    target = two_modes(loc)
    options = {"num_steps": 1_000, "convergence": None, "seed": seed, "progress_bar": False}
    posterior = bbsvi.fit(target, Mixture(target, components=2, seed=seed), **options)
    z = np.reshape(posterior.sample(10_000, seed=1)["z"], [10_000, -1])[:, 0]
    assert 0.3 < np.mean(z > 0) < 0.7
    np.testing.assert_allclose([z[z < 0].mean(), z[z > 0].mean()], [-3, 3], atol=0.1)
    assert posterior.elbo(20_000).value > -0.1
    one = MeanField(target)  # begun on one side, for at the origin of a scalar it straddles both modes
    one.assign([one.parameters()[0] + 1, one.parameters()[1]])
    stuck = bbsvi.fit(target, one, **options)
    assert abs(stuck.elbo(20_000).value + np.log(2)) < 0.02


def test_saved_and_loaded(tmp_path):
    target = two_modes((3.0, -3.0))
    family = Mixture(target, components=3, seed=5)
    assert family.config() == {"family": "Mixture", "components": 3, "seed": 5}
    posterior = bbsvi.fit(target, family, num_steps=20, convergence=None, seed=0, progress_bar=False)
    posterior.save(tmp_path / "fit.npz")
    again, z = bbsvi.load(tmp_path / "fit.npz", target), posterior.sample(7)
    np.testing.assert_array_equal(again.log_prob(z), posterior.log_prob(z))
    np.testing.assert_array_equal(again.sample(7, seed=1)["z"], posterior.sample(7, seed=1)["z"])


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"components": 0}, bbsvi.InvalidValueError, "components must be at least 1"),
        ({"components": 2.0}, bbsvi.InvalidTypeError, "components must be an integer"),
        ({"components": [2]}, bbsvi.InvalidTypeError, "components must be an integer"),
        ({"components": True}, bbsvi.InvalidTypeError, "components must be an integer"),
        ({"seed": None}, bbsvi.InvalidTypeError, "seed must be an int"),
    ],
)
def test_impossible_options_are_refused(options, error, match):
    with pytest.raises(error, match=match):
        Mixture(zero_target({"z": (3,)}), **options)


def test_impossible_targets_are_refused():
    bits = zero_target({"k": (), "b": (3,)}, {"k": ("categorical", 3), "b": "binary"})
    with pytest.raises(bbsvi.InvalidValueError, match="Mixture is for continuous latents, the target has"):
        Mixture(bits)
    with pytest.raises(bbsvi.InvalidTypeError, match=r"target must be a bbsvi\.Target"):
        Mixture("z")
