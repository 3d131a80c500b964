"""Normalizing flows: log q by TFP's own bijectors, scores by the dense Jacobian, and Neal's funnel."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import bbsvi
from bbsvi.families import Flow
from tests.scores_by_jacobian import assert_same, jacobian, shaken, zero_target

SEED = tf.constant([3, 4])
COUPLING = pytest.mark.parametrize("coupling", [False, True], ids=["autoregressive", "coupling"])


def flow(dim, seed=0, dtype="float64", **options):
    options = {"hidden_units": (6,), "num_layers": 3, "seed": seed} | options
    return shaken(Flow(zero_target({"z": (dim,)}, dtype=dtype), **options), seed, scale=0.3)


@COUPLING
@pytest.mark.parametrize(("dim", "num_layers", "hidden_units"), [(2, 2, (4,)), (3, 3, (5, 7)), (7, 4, (16,))])
def test_log_q_by_the_bijectors(dim, num_layers, hidden_units, coupling):
    family = flow(dim, coupling=coupling, num_layers=num_layers, hidden_units=hidden_units)
    (factor,) = family.factors
    draws = family.sample(20, SEED)
    wanted = factor.distribution.log_prob(draws.base["z"])
    np.testing.assert_allclose(family.log_prob(draws), wanted, rtol=1e-10)
    one = factor.log_prob({"z": draws.base["z"][7]})
    assert one.shape == ()
    np.testing.assert_allclose(one, wanted[7], rtol=1e-10)


@COUPLING
def test_log_q_by_the_jacobian_of_the_way_to_the_noise(coupling):
    family = flow(3, coupling=coupling)
    (factor,) = family.factors
    z = family.sample(10, SEED).base["z"]
    with tf.GradientTape() as tape:
        tape.watch(z)
        noise = factor.bijector.inverse(z)
    volume = np.log(np.abs(np.linalg.det(tape.batch_jacobian(noise, z))))
    np.testing.assert_allclose(factor.log_prob({"z": z}), stats.norm.logpdf(noise).sum(axis=1) + volume, rtol=1e-9)


@settings(max_examples=10, deadline=None)
@given(
    coupling=st.booleans(),
    dim=st.integers(2, 6),
    num_layers=st.integers(2, 4),
    hidden_units=st.lists(st.integers(1, 7), min_size=1, max_size=2),
    num_draws=st.integers(1, 5),
    seed=st.integers(0, 10_000),
)
def test_contractions_are_those_of_the_dense_jacobian(coupling, dim, num_layers, hidden_units, num_draws, seed):
    family = flow(dim, seed, coupling=coupling, num_layers=num_layers, hidden_units=hidden_units)
    draws = family.sample(num_draws, tf.constant([seed, 1]))
    scores = family.scores(draws)
    depth = len(hidden_units) + 1
    assert scores.kind == ("factored", "dense") * depth * num_layers
    assert_same(scores, jacobian(family, draws), np.random.default_rng(seed).normal(size=num_draws))


@COUPLING
def test_latents_of_every_kind_beside_each_other(coupling):
    shapes = {"positive": (), "bits": (2,), "matrix": (2, 2), "simplex": (3,)}
    target = zero_target(shapes, {"positive": "positive", "bits": "binary", "simplex": "simplex"})
    family = shaken(Flow(target, coupling=coupling, hidden_units=(5,)), scale=0.3)
    draws = family.sample(30, SEED)
    assert {name: tuple(x.shape) for name, x in draws.value.items()} == {n: (30, *s) for n, s in shapes.items()}
    flowing, bernoulli = family.factors
    flat = np.concatenate([draws.base[name].numpy().reshape(30, -1) for name in ("positive", "matrix", "simplex")], 1)
    wanted = flowing.distribution.log_prob(flat) - draws.log_det["positive"] - draws.log_det["simplex"]
    wanted = wanted + bernoulli.log_prob(draws.base)
    np.testing.assert_allclose(family.log_prob(draws), wanted, rtol=1e-9)
    assert_same(family.scores(draws), jacobian(family, draws), np.random.default_rng(0).normal(size=30))


@COUPLING
def test_draws_follow_log_q_and_its_scores_average_to_zero(coupling):
    family = flow(4, coupling=coupling)
    check = bbsvi.check_score(family)
    assert check.passed, str(check)
    (factor,) = family.factors
    noise = factor.bijector.inverse(family.sample(20_000, SEED).base["z"]).numpy()
    for i in range(4):
        assert stats.kstest(noise[:, i], stats.norm.cdf).pvalue > 1e-4
    at_start = bbsvi.check_score(Flow(zero_target({"z": (5,)}, dtype="float32"), coupling=coupling))
    assert at_start.passed, str(at_start)


@COUPLING
def test_every_number_depends_on_those_before_it(coupling):
    """Turned round between layers, so that no number is left as it was drawn, nor without its neighbours."""
    family = flow(4, coupling=coupling)
    (factor,) = family.factors
    noise = tf.random.stateless_normal([6, 4], SEED, dtype=tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(noise)
        z = factor.bijector.forward(noise)
    slopes = np.abs(tape.batch_jacobian(z, noise)).max(axis=0)
    assert (slopes > 1e-6).sum() > 10  # of 16, 4 on the diagonal
    assert (np.abs(z.numpy()[:, :, None] - noise.numpy()[:, None, :]) > 0).all()


def test_dtype_and_start():
    for dtype in ("float32", "float64"):
        family = Flow(zero_target({"z": (3,)}, dtype=dtype))
        draws = family.sample(20_000, SEED)
        assert draws.value["z"].dtype.name == family.log_prob(draws).dtype.name == dtype
        assert {score.dtype.name for score in family.scores(family.sample(4, SEED)).dense()} == {dtype}
        np.testing.assert_allclose(np.mean(draws.value["z"], axis=0), 0, atol=0.3)
        np.testing.assert_allclose(np.std(draws.value["z"], axis=0), 1, atol=0.3)


def funnel():
    """Neal 2003, "Slice sampling", section 8, with one x: v ~ N(0, 3^2), x ~ N(0, e^v). log p is normalised."""

    def log_prob(v, x):
        log_v = -0.5 * v**2 / 9 - 0.5 * np.log(2 * np.pi * 9)
        return log_v - 0.5 * x**2 * tf.exp(-v) - 0.5 * v - 0.5 * np.log(2 * np.pi)

    return bbsvi.Target(log_prob, event_shape={"v": (), "x": ()})


FUNNEL = {"sample_size": 128, "num_steps": 4_000, "convergence": None, "progress_bar": False, "seed": 0}


@COUPLING
def test_the_funnel_is_fitted_far_better_than_by_a_full_rank_gaussian(coupling):
    target = funnel()
    gaussian = bbsvi.fit(target, "full_rank", **FUNNEL).elbo(50_000)
    # Of N(0, s^2) for v and N(0, exp(-s^2 / 2)) for x, which are independent by symmetry, s^2 = 18 / 11 is the best.
    assert abs(gaussian.value - 0.5 * np.log(2 / 11)) < 0.02
    posterior = bbsvi.fit(target, Flow(target, coupling=coupling), **FUNNEL)
    bound = posterior.elbo(50_000)
    assert bound.value < 4 * bound.standard_error
    assert bound.value - gaussian.value > 0.8
    np.testing.assert_allclose(posterior.stddev()["v"], 3, atol=0.2)


@COUPLING
def test_saved_loaded_and_refitted(tmp_path, coupling):
    target = funnel()
    family = Flow(target, coupling=coupling, num_layers=2, hidden_units=(3,), seed=5)
    wanted = {"family": "Flow", "coupling": coupling, "num_layers": 2, "hidden_units": [3], "seed": 5}
    assert family.config() == wanted
    before = family.parameters()
    posterior = bbsvi.fit(target, family, **FUNNEL | {"num_steps": 20})
    posterior.save(tmp_path / "fit.npz")
    again, z = bbsvi.load(tmp_path / "fit.npz", target), posterior.sample(7)
    for a, b, c in zip(again.family.parameters(), posterior.family.parameters(), before):
        np.testing.assert_array_equal(a, b)
        assert not np.array_equal(b, c)
    np.testing.assert_allclose(again.log_prob(z), posterior.log_prob(z), rtol=1e-6)
    np.testing.assert_array_equal(again.sample(7, seed=1)["v"], posterior.sample(7, seed=1)["v"])


def test_weights_come_from_the_seed():
    starts = [Flow(zero_target({"z": (3,)}), seed=seed).parameters() for seed in (0, 0, 1)]
    for same, again, other in zip(*starts):
        np.testing.assert_array_equal(same, again)
        assert not np.array_equal(same, other) or not np.any(same)
    kernels = [kernel for kernel in starts[0] if kernel.ndim == 2]
    assert not np.array_equal(kernels[0], kernels[2])  # nor are two layers alike


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"coupling": "yes"}, bbsvi.InvalidTypeError, "coupling must be True or False, got 'yes'"),
        ({"num_layers": 0}, bbsvi.InvalidValueError, "num_layers must be at least 1"),
        ({"num_layers": 2.0}, bbsvi.InvalidTypeError, "num_layers must be an integer"),
        ({"coupling": True, "num_layers": 1}, bbsvi.InvalidValueError, "at least 2.*moves half of the numbers"),
        ({"hidden_units": 32}, bbsvi.InvalidTypeError, "sequence of widths"),
        ({"hidden_units": (32, -1)}, bbsvi.InvalidValueError, "hidden_units must be at least 1"),
        ({"seed": None}, bbsvi.InvalidTypeError, "seed must be an int"),
    ],
)
def test_impossible_options_are_refused(options, error, match):
    with pytest.raises(error, match=match):
        Flow(zero_target({"z": (3,)}), **options)


def test_impossible_targets_are_refused():
    with pytest.raises(bbsvi.InvalidValueError, match=r"at least two unconstrained numbers.*\['z'\] have 1"):
        Flow(zero_target({"z": ()}))
    with pytest.raises(bbsvi.InvalidValueError, match="Flow is for continuous latents, the target has"):
        Flow(zero_target({"b": (3,)}, {"b": "binary"}))
    with pytest.raises(bbsvi.InvalidTypeError, match=r"target must be a bbsvi\.Target"):
        Flow("z")
