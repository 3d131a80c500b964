"""Targets: however a density is written, log p is the same number."""

import warnings

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from scipy import stats

import bbsvi
from bbsvi.targets.base import probe_sizes

tfd = tfp.distributions
Root = tfd.JointDistributionCoroutine.Root

Y = np.array([28.0, 8.0, -3.0], np.float32)
SIGMA = np.array([15.0, 10.0, 16.0], np.float32)


def mu_site():
    return tfd.Normal(0.0, 5.0, name="mu")


def tau_site():
    return tfd.HalfNormal(5.0, name="tau")


def theta_site(mu, tau):
    return tfd.Sample(tfd.Normal(mu, tau), 3, name="theta")


def y_site(theta):
    return tfd.Independent(tfd.Normal(theta, SIGMA), 1, name="y")


def named(cls, **options):
    return cls(
        {
            "mu": mu_site(),
            "tau": tau_site(),
            "theta": lambda mu, tau: theta_site(mu, tau),
            "y": lambda theta: y_site(theta),
        },
        **options,
    )


def named_batched(cls):
    """Automatic batching takes batches of normals as they are."""
    return cls(
        {
            "mu": mu_site(),
            "tau": tau_site(),
            "theta": lambda mu, tau: tfd.Normal(mu * tf.ones(3), tau),
            "y": lambda theta: tfd.Normal(theta, SIGMA),
        }
    )


def sequential(cls):
    # A sequential model's functions take the sites before them, the latest first.
    return cls([mu_site(), tau_site(), lambda tau, mu: theta_site(mu, tau), lambda theta: y_site(theta)])


def coroutine(cls):
    @cls
    def model():
        mu = yield Root(mu_site())
        tau = yield Root(tau_site())
        theta = yield theta_site(mu, tau)
        yield y_site(theta)

    return model


def ordered_dict():
    """A model whose results are StructTuples rather than dicts."""

    @tfd.JointDistributionCoroutineAutoBatched
    def model():
        mu = yield mu_site()
        tau = yield tau_site()
        theta = yield tfd.Normal(mu * tf.ones(3), tau, name="theta")
        yield tfd.Normal(theta, SIGMA, name="y")

    assert hasattr(model.sample(seed=(0, 0)), "_asdict")
    return model


JOINTS = {
    "named": lambda: named(tfd.JointDistributionNamed),
    "named_autobatched": lambda: named_batched(tfd.JointDistributionNamedAutoBatched),
    "sequential": lambda: sequential(tfd.JointDistributionSequential),
    "sequential_autobatched": lambda: sequential(tfd.JointDistributionSequentialAutoBatched),
    "coroutine": lambda: coroutine(tfd.JointDistributionCoroutine),
    "coroutine_autobatched": lambda: coroutine(tfd.JointDistributionCoroutineAutoBatched),
    "struct_tuple": ordered_dict,
}


def draws(size, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "mu": rng.normal(size=size).astype(np.float32),
        "tau": np.exp(rng.normal(size=size)).astype(np.float32),
        "theta": rng.normal(size=(size, 3)).astype(np.float32) * 5,
    }


def by_hand(mu, tau, theta):
    """{site: log density [S]} by scipy, in float64."""
    mu, tau, theta = (np.asarray(x, np.float64) for x in (mu, tau, theta))
    return {
        "mu": stats.norm.logpdf(mu, 0, 5),
        "tau": stats.halfnorm.logpdf(tau, 0, 5),
        "theta": stats.norm.logpdf(theta, mu[:, None], tau[:, None]).sum(axis=1),
        "y": stats.norm.logpdf(Y, theta, SIGMA).sum(axis=1),
    }


def tensors(values):
    return {name: tf.constant(value) for name, value in values.items()}


@pytest.mark.parametrize("size", [1, 3, 7])  # 3 is theta's own length
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("kind", JOINTS)
def test_joint_equals_the_sum_by_hand(kind, pinned, size):
    joint = JOINTS[kind]()
    target = (
        bbsvi.Target.from_joint(joint.experimental_pin(y=Y)) if pinned else bbsvi.Target.from_joint(joint, {"y": Y})
    )
    assert {name: latent.event_shape for name, latent in target.latents.items()} == {"mu": (), "tau": (), "theta": (3,)}
    assert {name: latent.support.name for name, latent in target.latents.items()} == {
        "mu": "real",
        "tau": "positive",
        "theta": "real",
    }
    values = draws(size)
    wanted = by_hand(**values)
    terms = target.terms(tensors(values))
    assert terms.keys() == wanted.keys()
    for site, term in terms.items():
        assert term.shape == (size,)
        np.testing.assert_allclose(term, wanted[site], rtol=2e-5, atol=1e-5)
    log_p = target.log_prob(tensors(values))
    assert log_p.dtype == tf.float64
    np.testing.assert_allclose(log_p, sum(wanted.values()), rtol=2e-5, atol=1e-5)
    np.testing.assert_array_equal(target.observed["y"], Y)


def test_pins_and_data_together():
    target = bbsvi.Target.from_joint(JOINTS["named"]().experimental_pin(tau=2.0), {"y": Y})
    assert list(target.latents) == ["mu", "theta"]
    values = {**draws(4), "tau": np.full(4, 2.0)}
    wanted = sum(by_hand(**values).values())
    got = target.log_prob(tensors({name: values[name] for name in ("mu", "theta")}))
    np.testing.assert_allclose(got, wanted, rtol=2e-5)


def test_joint_in_float64_keeps_it():
    c = np.float64
    joint = tfd.JointDistributionNamed(
        {
            "rate": tfd.Gamma(c(2), c(1)),
            "k": lambda rate: tfd.Poisson(rate),
            "y": lambda k: tfd.Normal(k, c(1)),
        }
    )
    target = bbsvi.Target.from_joint(joint, {"y": 1.0})
    assert target.dtype == tf.float64
    assert {name: latent.dtype for name, latent in target.latents.items()} == {"rate": tf.float64, "k": tf.float64}
    rate, k = np.array([0.5, 3.0]), np.array([0.0, 4.0])
    wanted = stats.gamma.logpdf(rate, 2) + stats.poisson.logpmf(k, rate) + stats.norm.logpdf(1.0, k)
    np.testing.assert_allclose(target.log_prob({"rate": tf.constant(rate), "k": tf.constant(k)}), wanted, rtol=1e-12)


def discrete_joint():
    return tfd.JointDistributionNamed(
        {
            "bit": tfd.Bernoulli(probs=0.3),
            "float_bit": tfd.Bernoulli(probs=0.3, dtype=tf.float32),
            "kind": tfd.Categorical(probs=[0.2, 0.3, 0.5]),
            "successes": tfd.Binomial(4.0, probs=0.5),
            "events": tfd.Poisson(2.0),
            "y": lambda bit, float_bit, kind, successes, events: tfd.Normal(
                tf.cast(bit, tf.float32) + float_bit + tf.cast(kind, tf.float32) + successes + events, 1.0
            ),
        }
    )


def test_discrete_latents_arrive_as_integers_but_for_counts():
    target = bbsvi.Target.from_joint(discrete_joint(), {"y": 5.0})
    dtypes = {name: latent.dtype.name for name, latent in target.latents.items()}
    integers = dict.fromkeys(("bit", "float_bit", "kind", "successes"), "int32")
    assert dtypes == {**integers, "events": "float32"}
    values = {
        "bit": np.array([0, 1, 1], np.int32),
        "float_bit": np.array([1, 1, 0], np.int32),
        "kind": np.array([2, 0, 1], np.int32),
        "successes": np.array([4, 0, 2], np.int32),
        "events": np.array([0.0, 3.0, 1.0], np.float32),
    }
    wanted = (
        stats.bernoulli.logpmf(values["bit"], 0.3)
        + stats.bernoulli.logpmf(values["float_bit"], 0.3)
        + np.log([0.2, 0.3, 0.5])[values["kind"]]
        + stats.binom.logpmf(values["successes"], 4, 0.5)
        + stats.poisson.logpmf(values["events"], 2.0)
        + stats.norm.logpdf(5.0, sum(values.values()))
    )
    np.testing.assert_allclose(target.log_prob(tensors(values)), wanted, rtol=2e-5)
    q = bbsvi.families.MeanField(target)
    sampled = q.sample(6, tf.constant([0, 1])).value
    assert {name: value.dtype.name for name, value in sampled.items()} == dtypes
    target.check(q.sample(64, tf.constant([0, 1])).value)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_discrete_latents_of_a_function(dtype):
    seen = {}

    def log_prob(bit, kind, events, x):
        seen.update(bit=bit.dtype, kind=kind.dtype, events=events.dtype, x=x.dtype)
        table = tf.constant([0.1, 0.2, 0.7], dtype)
        return tf.gather(table, kind) + tf.cast(bit, dtype) * x + events

    target = bbsvi.Target(
        log_prob,
        {"bit": (), "kind": (), "events": (), "x": ()},
        {"bit": "binary", "kind": ("categorical", 3), "events": "count"},
        dtype=dtype,
    )
    q = bbsvi.families.MeanField(target)
    target.check(q.sample(64, tf.constant([0, 1])).value)
    assert {name: kind.name for name, kind in seen.items()} == {
        "bit": "int32",
        "kind": "int32",
        "events": dtype,
        "x": dtype,
    }


# Functions.


def test_prior_and_likelihood_sum_to_log_prob():
    data = tf.constant([0.5, -1.0, 2.0, 0.0])

    def prior(mu):
        return tfd.Normal(0.0, 1.0).log_prob(mu)

    def columns(mu):
        return tfd.Normal(mu[:, None], 1.0).log_prob(data)

    whole = bbsvi.Target(lambda mu: prior(mu) + tf.reduce_sum(columns(mu), -1), {"mu": ()})
    per_datum = bbsvi.Target(event_shape={"mu": ()}, log_prior=prior, log_likelihood=columns)
    summed = bbsvi.Target(
        event_shape={"mu": ()}, log_prior=prior, log_likelihood=lambda mu: tf.reduce_sum(columns(mu), -1)
    )
    for size in (1, 4, 6):  # 4 is N
        values = {"mu": tf.constant(np.random.default_rng(size).normal(size=size), tf.float32)}
        mu = values["mu"].numpy().astype(np.float64)
        likelihood = stats.norm.logpdf(data.numpy(), mu[:, None]).sum(axis=1)
        for target in (per_datum, summed):
            terms = target.terms(values)
            assert list(terms) == ["log_prior", "log_likelihood"]
            np.testing.assert_allclose(terms["log_prior"], stats.norm.logpdf(mu), rtol=1e-5)
            np.testing.assert_allclose(terms["log_likelihood"], likelihood, rtol=1e-5)
        for target in (whole, per_datum, summed):
            np.testing.assert_allclose(target.log_prob(values), stats.norm.logpdf(mu) + likelihood, rtol=1e-5)
            assert target.log_prob(values).dtype == tf.float64


def test_terms_are_summed_in_float64():
    target = bbsvi.Target(event_shape=(), log_prior=lambda z: z * 0 + 1e8, log_likelihood=lambda z: z)
    values = {"z": tf.constant([0.5, 1.5])}
    assert np.diff(target.log_prob(values).numpy()) == 1.0  # float32 near 1e8 has steps of 8


def by_keyword(*, mu):
    return -(mu**2)


def by_any_keyword(**latents):
    return -(latents["mu"] ** 2)


def by_another_name(x):
    return -(x**2)


def by_position_only(x, /):
    return -(x**2)


def by_arguments(*args):
    return -(args[0] ** 2)


def behind_an_option(scale=2.0, mu=None):
    return -(mu**2) * scale / 2


@pytest.mark.parametrize("vectorized", [True, False, None])
@pytest.mark.parametrize(
    "log_prob", [by_keyword, by_any_keyword, by_another_name, by_position_only, by_arguments, behind_an_option]
)
def test_a_single_latent_finds_its_argument(log_prob, vectorized):
    if vectorized is None:
        target = bbsvi.Target(log_prob, {"mu": ()})
    else:
        target = bbsvi.Target.from_numpy(log_prob, {"mu": ()}, vectorized=vectorized)
    np.testing.assert_allclose(target.log_prob({"mu": tf.constant([1.0, 2.0])}), [-1.0, -4.0])


def test_an_unnamed_latent_is_z():
    target = bbsvi.Target(lambda z: -tf.reduce_sum(z, -1), (2,), "positive")
    assert {name: (x.event_shape, x.support.name) for name, x in target.latents.items()} == {"z": ((2,), "positive")}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("vectorized", [True, False])
def test_numpy_function_equals_tensorflow_function(vectorized, compiled):
    axis = -1 if vectorized else None

    def log_prob(mu, tau, theta, kind):
        assert all(isinstance(x, (np.ndarray, np.generic)) for x in (mu, tau, theta, kind))
        mu, tau, theta = (np.asarray(x, np.float64) for x in (mu, tau, theta))
        mu, tau = (mu[:, None], tau[:, None]) if vectorized else (mu, tau)
        return np.sum(stats.norm.logpdf(theta, mu, tau), axis=axis) + kind

    target = bbsvi.Target.from_numpy(
        log_prob,
        {"mu": (), "tau": (), "theta": (3,), "kind": ()},
        {"tau": "positive", "kind": ("categorical", 2)},
        vectorized=vectorized,
    )
    assert not target.is_compilable
    values = {**draws(5), "kind": np.array([0, 1, 1, 0, 1], np.int32)}
    wanted = by_hand(**{name: values[name] for name in ("mu", "tau", "theta")})["theta"] + values["kind"]
    call = tf.function(target.log_prob, autograph=False) if compiled else target.log_prob
    got = call(tensors(values))
    assert got.shape == (5,)
    np.testing.assert_allclose(got, wanted, rtol=1e-10)


def test_numpy_single_draw_sees_single_draws():
    shapes = set()

    def log_prob(z):
        shapes.add(z.shape)
        return -float(z @ z)

    target = bbsvi.Target.from_numpy(log_prob, (3,), vectorized=False)
    z = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    np.testing.assert_allclose(target.log_prob({"z": tf.constant(z)}), -np.sum(z**2, axis=1), rtol=1e-5)
    assert shapes == {(3,)}


class SimulatorError(Exception):
    pass


def raising(z):  # noqa: ARG001
    raise SimulatorError("the valve is stuck")


@pytest.mark.parametrize("vectorized", [True, False])
def test_an_exception_in_a_numpy_function_is_the_users_own(vectorized):
    target = bbsvi.Target.from_numpy(raising, (), vectorized=vectorized)
    with pytest.raises(SimulatorError, match="the valve is stuck") as caught:
        target.log_prob({"z": tf.zeros(3)})
    assert caught.traceback[-1].name == "raising"
    assert isinstance(target.model_error, SimulatorError)


def test_an_exception_at_the_start_of_a_fit_has_the_users_own_as_its_cause():
    target = bbsvi.Target.from_numpy(raising, ())
    with pytest.raises(bbsvi.LogProbError, match="SimulatorError: the valve is stuck") as caught:
        bbsvi.fit(target, progress_bar=False, seed=0)
    assert isinstance(caught.value.__cause__, SimulatorError)


def test_an_exception_at_one_draw_of_many():
    def log_prob(z):
        if z > 1.5:
            raise SimulatorError(f"z = {z:.3f}")
        return -(z**2)

    target = bbsvi.Target.from_numpy(log_prob, (), vectorized=False)
    values = {"z": tf.constant(np.linspace(-2.0, 1.0, 64), tf.float32)}
    target.check(values)  # the first few draws, which are tried alone, are good in either case
    with pytest.raises(bbsvi.LogProbError, match=r"SimulatorError: z = 1\.556"):
        target.check({"z": tf.constant(np.linspace(-2.0, 2.0, 64), tf.float32)})


def test_an_exception_in_the_middle_of_a_fit():
    calls = []

    def log_prob(z):
        calls.append(len(z))
        if len(calls) > 20:
            raise SimulatorError("worn out")
        return -(z**2)

    target = bbsvi.Target.from_numpy(log_prob, ())
    with pytest.raises(bbsvi.LogProbError, match="SimulatorError: worn out") as caught:
        bbsvi.fit(target, progress_bar=False, seed=0, num_steps=100, convergence=None)
    assert isinstance(caught.value.__cause__, SimulatorError)
    assert isinstance(caught.value.posterior, bbsvi.Posterior)


# What `check` looks at.


def test_probe_sizes_equal_no_event_dimension():
    for dims in ((), (3,), (3, 4), (4, 3, 5, 6), (8,)):
        target = bbsvi.Target(lambda z: z, dims)
        small, large = probe_sizes(target.latents)
        assert 3 <= small < large
        assert not {small, large} & set(dims)
        assert target.num_probe_draws == large


def test_noise_is_no_mixing_of_draws():
    generator = np.random.default_rng(0)
    noisy = bbsvi.Target.from_numpy(lambda z: -(z**2) + generator.normal(size=len(z)), ())
    noisy.check({"z": tf.constant(np.linspace(-1.0, 1.0, 64), tf.float32)})


def test_some_draws_outside_the_support_are_legal():
    target = bbsvi.Target(lambda z: tf.where(z > 0, -z, -np.inf), ())
    with pytest.warns(
        bbsvi.BBSVIWarning, match=r"not finite for 22 of 64 draws .*'log_prob' is -inf at draw 0: z = -1\."
    ):
        target.check({"z": tf.constant(np.linspace(-1.0, 2.0, 64), tf.float32)})
    with pytest.raises(
        bbsvi.NonFiniteError, match=r"not finite for 43 of 64 draws .*'log_prob' is -inf at draw 0: z = -2\."
    ):
        target.check({"z": tf.constant(np.linspace(-2.0, 1.0, 64), tf.float32)})


def test_a_joint_is_evaluated_without_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bbsvi.Target.from_joint(JOINTS["named"](), {"y": Y}).log_prob(tensors(draws(3)))


def bits(data):
    joint = tfd.JointDistributionNamed({"p": tfd.Beta(1.0, 1.0), "y": lambda p: tfd.Sample(tfd.Bernoulli(probs=p), 3)})
    return bbsvi.Target.from_joint(joint, {"y": data})


def test_nan_in_data_of_integers_is_refused():
    with pytest.raises(bbsvi.InvalidValueError, match=r"data\['y'\] has NaN at \[1\], and the site takes int32"):
        bits([0.0, np.nan, 1.0])


def test_masked_data_is_refused():
    with pytest.raises(bbsvi.InvalidValueError, match=r"data\['y'\] has masked entries"):
        bits(np.ma.masked_array([1, -999, 0], mask=[0, 1, 0]))
    assert bits(np.ma.masked_array([1, 1, 0], mask=[0, 0, 0])).observed["y"].tolist() == [1, 1, 0]


def test_log_likelihood_by_datum_is_summed_in_float64():
    """A million data of about -10 each: float32 sums of them differ by nats between equal draws."""
    data = tf.constant(np.random.default_rng(0).normal(10, 1, size=1_000_000).astype(np.float32))
    target = bbsvi.Target(
        log_prior=lambda z: tf.zeros_like(z), log_likelihood=lambda z: -data + 1e-7 * z[:, None], event_shape=()
    )
    z = tf.constant([0.0, 1.0, 2.0])
    found = target.log_prob({"z": z}).numpy()
    exact = np.stack([np.sum((-data.numpy() + np.float32(1e-7) * s).astype(np.float64)) for s in z.numpy()])
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-3)
