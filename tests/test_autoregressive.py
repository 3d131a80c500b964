"""The autoregressive family: a normalised q over discrete latents that follows their dependence."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from scipy import special

import bbsvi
from bbsvi.scores import DenseScores


def mixed_target(dtype="float64"):
    return bbsvi.Target(
        lambda k, b, x: -(x**2) + 0 * tf.cast(k + tf.reduce_sum(b, axis=-1), x.dtype),
        event_shape={"k": (), "b": (3,), "x": ()},
        support={"k": ("categorical", 3), "b": "binary"},
        dtype=dtype,
    )


@pytest.fixture(scope="module")
def family():
    q = bbsvi.families.Autoregressive(mixed_target(), hidden_units=(7, 5), seed=1)
    rng = np.random.default_rng(0)
    q.assign([rng.normal(size=parameter.shape) for parameter in q.parameters()])
    return q


@pytest.fixture(scope="module")
def states():
    return np.array(list(itertools.product(range(3), range(2), range(2), range(2))))


def log_q_of(family, states):
    base = {"k": tf.constant(states[:, 0], tf.int32), "b": tf.constant(states[:, 1:], tf.int32)}
    return family.factors[0].log_prob(base).numpy()


def test_log_q_is_normalised(family, states):
    np.testing.assert_allclose(special.logsumexp(log_q_of(family, states)), 0, atol=1e-12)


def test_draws_follow_log_q(family, states):
    num_draws = 100_000
    draws = family.sample(num_draws, tf.constant([1, 2])).value
    assert draws["k"].dtype == draws["b"].dtype == tf.int32
    index = draws["k"].numpy() * 8 + draws["b"].numpy() @ [4, 2, 1]
    probability = np.exp(log_q_of(family, states))
    z = (np.bincount(index, minlength=24) / num_draws - probability) / np.sqrt(probability / num_draws)
    assert np.abs(z).max() < 4.5


def test_each_site_depends_on_those_before_it_alone(family, states):
    """q(k), q(b_1 | k), ... by summing the joint agree with the net's own conditionals, so that changing a
    later site changes nothing before it."""
    log_q = log_q_of(family, states).reshape(3, 2, 2, 2)
    factor = family.factors[0]
    for k in range(3):
        rows = np.stack([np.full(8, k), *np.indices((2, 2, 2)).reshape(3, -1)], axis=1)
        base = tf.concat([tf.constant(rows[:, :1], tf.int32), tf.constant(rows[:, 1:], tf.int32)], axis=1)
        logits = factor.network(factor._indicators(base)).numpy()
        assert np.ptp(logits[:, :3], axis=0).max() == 0  # k's own logits see nothing
        assert np.ptp(logits[:, 3], axis=0) == 0  # b_1 sees k alone
        assert np.ptp(logits[:, 5], axis=0) > 0  # b_3 sees the others
    marginal = special.logsumexp(log_q, axis=(1, 2, 3))
    np.testing.assert_allclose(marginal, special.log_softmax(logits[0, :3]), atol=1e-12)


def test_scores_are_factored_and_exact(family):
    draws = family.sample(9, tf.constant([3, 4]))
    factor = family.factors[0]
    scores = factor.scores({name: draws.base[name] for name in ("k", "b")})
    assert scores.kind == ("factored", "dense") * 3
    with tf.GradientTape() as tape:
        log_q = factor.log_prob(draws.base)
    expected = DenseScores(tape.jacobian(log_q, list(factor.trainable_variables)))
    w = np.random.default_rng(1).normal(size=9)
    for name in ("weighted_sum", "weighted_square_sum"):
        for a, b in zip(getattr(scores, name)(w), getattr(expected, name)(w), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(scores.squared_norms(), expected.squared_norms(), rtol=1e-10)


def test_one_draw_has_its_own_log_q(family):
    draws = family.sample(5, tf.constant([5, 6])).base
    factor = family.factors[0]
    many = factor.log_prob(draws)
    one = factor.log_prob({name: value[2] for name, value in draws.items()})
    np.testing.assert_allclose(one, many[2], rtol=1e-12)


def test_its_scores_average_to_zero(family):
    assert bbsvi.check_score(family).passed


def ising(seed=3, num_bits=10):
    """Ten spins with strong couplings, every state enumerated: (target, log evidence, means, correlation)."""
    rng = np.random.default_rng(seed)
    couplings = np.triu(rng.normal(size=(num_bits, num_bits)) * 1.2, 1).astype(np.float32)
    field = (rng.normal(size=num_bits) * 0.5).astype(np.float32)

    def log_prob(z):
        spins = 2 * tf.cast(z, tf.float32) - 1
        return tf.linalg.matvec(spins, field) + tf.reduce_sum(tf.matmul(spins, couplings) * spins, axis=1)

    states = np.array(list(itertools.product([0, 1], repeat=num_bits)), np.int32)
    log_p = bbsvi.Target(log_prob, event_shape=(num_bits,), support="binary")
    values = log_p.log_prob({"z": tf.constant(states)}).numpy()
    log_evidence = special.logsumexp(values)
    return log_p, log_evidence, states, np.exp(values - log_evidence)


def test_ten_correlated_bits_are_learnt_where_mean_field_is_stuck():
    target, log_evidence, states, probability = ising()
    options = {"seed": 0, "progress_bar": False, "sample_size": 2_048, "convergence": None, "num_steps": 2_000}
    family = bbsvi.families.Autoregressive(target, hidden_units=(64,))
    posterior = bbsvi.fit(target, family, **options)
    gap = log_evidence - posterior.elbo(50_000).value
    assert -0.005 < gap < 0.02
    np.testing.assert_allclose(posterior.mean()["z"], probability @ states, atol=0.02)
    draws = posterior.sample(50_000)["z"]
    found = np.cov(draws.T)
    exact = np.cov(states.T, aweights=probability, ddof=0)
    np.testing.assert_allclose(found, exact, atol=0.02)
    stuck = bbsvi.fit(target, "mean_field", **options)
    best = mean_field_optimum(target, states, stuck.mean()["z"])
    assert log_evidence - best > 1.0
    assert abs(stuck.elbo(50_000).value - best) < 0.02


def mean_field_optimum(target, states, start):
    """The ELBO that coordinate ascent from `start` ends at, by enumeration."""
    log_p = target.log_prob({"z": tf.constant(states)}).numpy()
    mean = np.clip(start, 1e-6, 1 - 1e-6)
    for _ in range(200):
        for i in range(len(mean)):
            others = np.delete(np.arange(len(mean)), i)
            weight = np.prod(np.where(states[:, others], mean[others], 1 - mean[others]), axis=1)
            on = states[:, i] == 1
            mean[i] = special.expit(weight[on] @ log_p[on] - weight[~on] @ log_p[~on])
    q = np.prod(np.where(states, mean, 1 - mean), axis=1)
    return q @ log_p + special.entr(mean).sum() + special.entr(1 - mean).sum()


def test_saved_and_loaded(tmp_path):
    target = ising(num_bits=4)[0]
    family = bbsvi.families.Autoregressive(target, hidden_units=(5,))
    posterior = bbsvi.fit(target, family, num_steps=20, convergence=None, seed=0, progress_bar=False)
    posterior.save(tmp_path / "fit.npz")
    z = posterior.sample(7)
    np.testing.assert_array_equal(bbsvi.load(tmp_path / "fit.npz", target).log_prob(z), posterior.log_prob(z))


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"hidden_units": 64}, bbsvi.InvalidTypeError, "sequence of widths"),
        ({"hidden_units": ()}, bbsvi.InvalidTypeError, "sequence of widths"),
        ({"hidden_units": (0,)}, bbsvi.InvalidValueError, "at least 1"),
    ],
)
def test_impossible_layers_are_refused(options, error, match):
    with pytest.raises(error, match=match):
        bbsvi.families.Autoregressive(mixed_target(), **options)


def test_a_target_without_discrete_latents_is_refused():
    target = bbsvi.Target(lambda z: -(z**2), event_shape=())
    with pytest.raises(bbsvi.InvalidValueError, match="is for binary and categorical latents"):
        bbsvi.families.Autoregressive(target)
