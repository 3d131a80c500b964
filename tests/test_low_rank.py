"""The low-rank Gaussian: log q by scipy's dense covariance, scores by the dense Jacobian, and what it can fit."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import bbsvi
from bbsvi.families import LowRank
from bbsvi.families.low_rank import LowRankScores
from bbsvi.scores import BlockScores
from tests.scores_by_jacobian import assert_same, jacobian, shaken, zero_target

SEED = tf.constant([3, 4])


def low_rank(dim, rank, seed=0, dtype="float64"):
    return shaken(LowRank(zero_target({"z": (dim,)}, dtype=dtype), rank=rank), seed)


def covariance(factor):
    """Sigma, [D, D], in float64."""
    d, f = np.exp(factor.log_diag.numpy().astype(float)), factor.factor.numpy().astype(float)
    return np.diag(d**2) + f @ f.T


@pytest.mark.parametrize(("dim", "rank"), [(1, 1), (4, 1), (6, 3), (5, 5), (40, 10)])
def test_log_q_by_scipy(dim, rank):
    family = low_rank(dim, rank, seed=dim)
    (factor,) = family.factors
    assert [variable.shape.as_list() for variable in family.trainable_variables] == [[dim], [dim], [dim, rank]]
    draws = family.sample(50, SEED)
    wanted = stats.multivariate_normal.logpdf(
        draws.base["z"].numpy().reshape(50, dim), factor.loc.numpy(), covariance(factor)
    )
    np.testing.assert_allclose(family.log_prob(draws), wanted, rtol=1e-9)
    np.testing.assert_allclose(factor.distribution.log_prob(draws.base["z"]), wanted, rtol=1e-9)
    one = factor.log_prob({"z": draws.base["z"][7]})
    assert one.shape == ()
    np.testing.assert_allclose(one, wanted[7], rtol=1e-9)


def test_log_q_of_latents_of_every_kind_beside_each_other():
    shapes = {"positive": (), "bits": (2,), "matrix": (2, 2), "simplex": (3,)}
    target = zero_target(shapes, {"positive": "positive", "bits": "binary", "simplex": "simplex"})
    family = shaken(LowRank(target, rank=2))
    gaussian, bernoulli = family.factors
    draws = family.sample(30, SEED)
    assert {name: tuple(x.shape) for name, x in draws.value.items()} == {n: (30, *s) for n, s in shapes.items()}
    flat = np.concatenate([draws.base[name].numpy().reshape(30, -1) for name in ("positive", "matrix", "simplex")], 1)
    wanted = stats.multivariate_normal.logpdf(flat, gaussian.loc.numpy(), covariance(gaussian))
    wanted = wanted - draws.log_det["positive"] - draws.log_det["simplex"]
    probability = 1 / (1 + np.exp(-bernoulli.parameters["logits"].numpy()))
    wanted = wanted + stats.bernoulli.logpmf(draws.value["bits"].numpy(), probability).sum(axis=1)
    np.testing.assert_allclose(family.log_prob(draws), wanted, rtol=1e-9)
    scores = family.scores(draws)
    assert isinstance(scores, BlockScores)
    assert_same(scores, jacobian(family, draws), np.random.default_rng(0).normal(size=30))


@settings(max_examples=25, deadline=None)
@given(dim=st.integers(1, 8), rank=st.integers(1, 8), num_draws=st.integers(1, 6), seed=st.integers(0, 10_000))
def test_contractions_are_those_of_the_dense_jacobian(dim, rank, num_draws, seed):
    family = low_rank(dim, rank, seed)
    draws = family.sample(num_draws, tf.constant([seed, 1]))
    scores = family.factors[0].scores(draws.base)
    assert isinstance(scores, LowRankScores)
    assert scores.num_draws == num_draws
    assert_same(scores, jacobian(family, draws), np.random.default_rng(seed).normal(size=num_draws))


def test_scores_where_the_diagonal_is_far_below_the_factor_and_at_the_floor_of_the_scale():
    for log_diag in ([-6.0, -7.0, -8.0], [-80.0, 0.0, 1.0]):
        family = low_rank(3, 2, seed=1)
        (factor,) = family.factors
        factor.log_diag.assign(log_diag)
        if log_diag[0] < -69:  # below exp(-69) the floor of 1e-30 is the scale; only a row that F leaves alone
            factor.factor.assign(factor.factor * np.array([[0.0], [1.0], [1.0]]))
        draws = family.sample(5, SEED)
        found, wanted = family.scores(draws).dense(), jacobian(family, draws).dense()
        for a, b in zip(found, wanted, strict=True):
            assert np.isfinite(a).all()
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9 * np.abs(b).max())


def test_scores_in_float32_are_those_in_float64():
    single, double = (low_rank(20, 4, dtype=dtype) for dtype in ("float32", "float64"))
    double.assign([p.astype(float) for p in single.parameters()])
    draws = single.sample(40, SEED)
    assert single.log_prob(draws).dtype == tf.float32
    base = {"z": tf.cast(draws.base["z"], tf.float64)}
    found, wanted = single.factors[0].scores(draws.base), double.factors[0].scores(base)
    assert {score.dtype for score in found.dense()} == {tf.float32}
    assert_same(found, wanted, np.random.default_rng(0).normal(size=40), rtol=1e-4)


def test_its_scores_average_to_zero():
    check = bbsvi.check_score(low_rank(12, 3))
    assert check.passed, str(check)
    at_start = bbsvi.check_score(LowRank(zero_target({"z": (12,)}, dtype="float32")))
    assert at_start.passed, str(at_start)


def test_draws_have_its_moments():
    family, num_draws = low_rank(5, 2), 50_000
    (factor,) = family.factors
    z = family.sample(num_draws, SEED).base["z"].numpy() - factor.loc.numpy()
    white = np.linalg.solve(np.linalg.cholesky(covariance(factor)), z.T)
    assert np.abs(white.mean(axis=1)).max() < 5 / np.sqrt(num_draws)
    assert np.abs(white @ white.T / num_draws - np.eye(5)).max() < 5 * np.sqrt(2 / num_draws)


def rank_two_gaussian(dim=10):
    """A normalised N(m, diag + F F^T) with F of rank 2, and the best ELBO of a mean field."""
    rng = np.random.default_rng(0)
    f, d, m = rng.normal(size=(dim, 2)), 0.5 + 0.5 * rng.random(dim), rng.normal(size=dim)
    sigma = np.diag(d**2) + f @ f.T
    precision = np.linalg.inv(sigma)
    log_norm = -0.5 * np.linalg.slogdet(2 * np.pi * sigma)[1]

    def log_prob(z):
        x = z - tf.constant(m, z.dtype)
        return log_norm - 0.5 * tf.reduce_sum(tf.matmul(x, tf.constant(precision, z.dtype)) * x, axis=1)

    best = -0.5 * (np.log(np.diag(precision)).sum() + np.linalg.slogdet(sigma)[1])
    return bbsvi.Target(log_prob, event_shape=(dim,)), sigma, best


def test_a_correlated_gaussian_is_learnt_where_mean_field_cannot():
    target, sigma, best = rank_two_gaussian()
    assert best < -1
    options = {"num_steps": 3_000, "convergence": None, "seed": 0, "progress_bar": False}
    family = LowRank(target, rank=2)
    posterior = bbsvi.fit(target, family, **options)
    assert abs(posterior.elbo(20_000).value) < 0.05
    np.testing.assert_allclose(covariance(family.factors[0]), sigma, atol=0.15)
    # By name, at the default rank, which is D here.
    assert abs(bbsvi.fit(target, "low_rank", **options).elbo(20_000).value) < 0.05
    assert bbsvi.fit(target, "mean_field", **options).elbo(20_000).value < best + 0.02


def test_the_initial_factor_is_small_random_and_seeded():
    target = zero_target({"z": (30,)})
    start = [LowRank(target, seed=seed).parameters()[2] for seed in (0, 0, 1)]
    np.testing.assert_array_equal(start[0], start[1])
    assert np.abs(start[0] - start[2]).max() > 0
    assert 0.05 < start[0].std() < 0.2


def test_rank_is_at_most_the_dimension():
    assert LowRank(zero_target({"z": (30,)})).parameters()[2].shape == (30, 10)
    family = LowRank(zero_target({"z": (4,)}))
    assert family.parameters()[2].shape == (4, 4)
    assert family.config() == {"family": "LowRank", "rank": 4, "seed": 0}
    resolved = bbsvi.families.resolve("low_rank", zero_target({"z": (12,)}))
    assert isinstance(resolved, LowRank)
    assert resolved.parameters()[2].shape == (12, 10)


def test_saved_and_loaded(tmp_path):
    target = rank_two_gaussian(dim=6)[0]
    posterior = bbsvi.fit(target, LowRank(target, rank=3), num_steps=20, convergence=None, seed=0, progress_bar=False)
    posterior.save(tmp_path / "fit.npz")
    again, z = bbsvi.load(tmp_path / "fit.npz", target), posterior.sample(7)
    np.testing.assert_array_equal(again.log_prob(z), posterior.log_prob(z))
    np.testing.assert_array_equal(again.sample(7, seed=1)["z"], posterior.sample(7, seed=1)["z"])


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"rank": 0}, bbsvi.InvalidValueError, "rank must be at least 1"),
        ({"rank": -3}, bbsvi.InvalidValueError, "rank must be at least 1"),
        ({"rank": 2.0}, bbsvi.InvalidTypeError, "rank must be an integer"),
        ({"rank": True}, bbsvi.InvalidTypeError, "rank must be an integer"),
        ({"rank": None}, bbsvi.InvalidTypeError, "rank must be an integer"),
        ({"seed": "a"}, bbsvi.InvalidTypeError, "seed must be an int"),
    ],
)
def test_impossible_options_are_refused(options, error, match):
    with pytest.raises(error, match=match):
        LowRank(zero_target({"z": (3,)}), **options)


def test_impossible_targets_are_refused():
    bits = zero_target({"k": (), "b": (3,)}, {"k": ("categorical", 3), "b": "binary"})
    for family in (lambda: LowRank(bits), lambda: bbsvi.fit(bits, "low_rank", progress_bar=False)):
        with pytest.raises(bbsvi.InvalidValueError, match="LowRank is for continuous latents, the target has"):
            family()
    with pytest.raises(bbsvi.InvalidTypeError, match=r"target must be a bbsvi\.Target"):
        LowRank(lambda z: z)


def test_weights_of_the_wrong_length_are_refused():
    family = low_rank(3, 2)
    scores = family.scores(family.sample(4, SEED))
    for name in ("weighted_sum", "weighted_square_sum"):
        with pytest.raises(bbsvi.InvalidValueError, match=r"wanted \[4\]"):
            getattr(scores, name)(np.ones(3))
