"""Families: draws, log q and scores agree with densities written down independently."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from scipy import special, stats

import bbsvi
from bbsvi import families
from bbsvi.families import FullRank, MeanField, Wrapped

tfd = tfp.distributions
SEED = tf.constant([3, 4])

# latent: (support, event shape)
EVERY_SUPPORT = {
    "real": ("real", (2,)),
    "scalar": ("real", ()),
    "matrix": ("real", (2, 2)),
    "positive": ("positive", ()),
    "unit": ("unit_interval", (2,)),
    "interval": (("interval", -1.0, 3.0), ()),
    "above": (("interval", 2.0, np.inf), ()),
    "below": (("interval", -np.inf, 2.0), (2,)),
    "simplex": ("simplex", (3,)),
    "simplices": ("simplex", (2, 3)),
    "ordered": ("ordered", (3,)),
    "binary": ("binary", (2,)),
    "categorical": (("categorical", 4), (2,)),
    "count": ("count", (2,)),
}


def target_of(names, dtype="float64"):
    def log_prob(**latents):
        return tf.add_n([tf.reduce_sum(tf.cast(x, dtype), axis=range(1, x.shape.rank)) for x in latents.values()])

    shapes = {name: EVERY_SUPPORT[name][1] for name in names}
    return bbsvi.Target(log_prob, shapes, {name: EVERY_SUPPORT[name][0] for name in names}, dtype)


def shaken(family, seed=0, scale=0.3):
    """The family with its parameters moved off their start."""
    rng = np.random.default_rng(seed)
    family.assign([p + scale * rng.normal(size=p.shape).astype(p.dtype) for p in family.parameters()])
    return family


def log_simplex(x, normal):
    """Density of `normal` [.., K - 1] carried to the simplex, with the Helmert basis written out."""
    k = x.shape[-1]
    basis = np.zeros((k, k - 1))
    for j in range(1, k):
        basis[:j, j - 1] = 1 / np.sqrt(j * (j + 1))
        basis[j, j - 1] = -j / np.sqrt(j * (j + 1))
    log_det = np.log(x).sum(axis=-1) + 0.5 * np.log(k)
    return normal.logpdf(np.log(x) @ basis).sum(axis=-1) - log_det


def by_hand(name, x, parameters):
    """log q of one latent's values x [S, *event], by scipy."""
    axes = tuple(range(1, x.ndim))
    if name == "binary":
        return stats.bernoulli.logpmf(x, special.expit(parameters[0])).sum(axis=1)
    if name == "categorical":
        log_probs = special.log_softmax(parameters[0], axis=-1)
        return sum(log_probs[i][x[:, i]] for i in range(x.shape[1]))
    if name == "count":
        return stats.poisson.logpmf(x, np.exp(parameters[0])).sum(axis=1)
    loc, scale = parameters[0], np.exp(parameters[1])
    normal = stats.norm(loc, scale)
    if name == "simplex":
        return log_simplex(x, normal)
    if name == "simplices":
        return log_simplex(x, normal).sum(axis=1)
    if name == "ordered":
        z = np.concatenate([x[:, :1], np.log(np.diff(x, axis=1))], axis=1)
        return normal.logpdf(z).sum(axis=1) - z[:, 1:].sum(axis=1)
    pieces = {
        "positive": lambda: stats.lognorm.logpdf(x, s=scale, scale=np.exp(loc)),
        "unit": lambda: normal.logpdf(special.logit(x)) - np.log(x * (1 - x)),
        "interval": lambda: (
            normal.logpdf(special.logit((x + 1) / 4)) - np.log((x + 1) / 4 * (1 - (x + 1) / 4)) - np.log(4)
        ),
        "above": lambda: stats.lognorm.logpdf(x - 2, s=scale, scale=np.exp(loc)),
        "below": lambda: stats.lognorm.logpdf(2 - x, s=scale, scale=np.exp(loc)),
    }
    return pieces.get(name, lambda: normal.logpdf(x))().sum(axis=axes)


@pytest.mark.parametrize("name", EVERY_SUPPORT)
def test_mean_field_log_q_by_hand(name):
    family = shaken(MeanField(target_of([name])))
    draws = family.sample(50, SEED)
    wanted = by_hand(name, draws.value[name].numpy(), family.parameters())
    np.testing.assert_allclose(family.log_prob(draws), wanted, rtol=1e-8, atol=1e-8)
    # And from the values alone.
    again = family.draws_at({name: draws.value[name].numpy()})
    np.testing.assert_allclose(family.log_prob(again), wanted, rtol=1e-8, atol=1e-8)


def test_mean_field_is_the_product_of_its_factors():
    family = shaken(MeanField(target_of(EVERY_SUPPORT)))
    draws = family.sample(20, SEED)
    wanted = 0.0
    for factor in family.factors:
        (latent,) = factor.latents
        parameters = [variable.numpy() for variable in factor.trainable_variables]
        wanted = wanted + by_hand(latent.name, draws.value[latent.name].numpy(), parameters)
    np.testing.assert_allclose(family.log_prob(draws), wanted, rtol=1e-8)
    assert list(draws.value) == list(EVERY_SUPPORT)
    assert len(set(family.parameter_names)) == len(family.trainable_variables)


@pytest.mark.parametrize("name", EVERY_SUPPORT)
def test_mean_field_draws_follow_log_q(name):
    """A probability integral transform: each base coordinate is uniform under its own distribution function."""
    family = shaken(MeanField(target_of([name])), seed=1)
    base = family.sample(4_000, SEED).base[name].numpy().reshape(4_000, -1)
    parameters = [p.reshape(p.shape[:-1] + (-1,)) if name == "categorical" else p.ravel() for p in family.parameters()]
    for i in range(base.shape[1]):
        if name in ("binary", "categorical", "count"):
            if name == "binary":
                probs = np.array([special.expit(-parameters[0][i]), special.expit(parameters[0][i])])
            elif name == "categorical":
                probs = special.softmax(parameters[0][i])
            else:
                probs = stats.poisson.pmf(np.arange(6), np.exp(parameters[0][i]))
                probs = np.append(probs[:-1], 1 - probs[:-1].sum())
            counts = np.bincount(np.minimum(base[:, i].astype(int), len(probs) - 1), minlength=len(probs))
            p_value = stats.chisquare(counts, 4_000 * probs).pvalue
        else:
            p_value = stats.kstest(base[:, i], "norm", (parameters[0][i], np.exp(parameters[1][i]))).pvalue
        assert p_value > 1e-4


# Factors of other classes: scipy's distribution function of a scalar from the factor's own parameters.
OVERRIDES = {
    "gamma": ("positive", tfd.Gamma, lambda d, x: stats.gamma.logpdf(x, d.concentration, scale=1 / rate_of(d))),
    "inverse_gamma": (
        "positive",
        tfd.InverseGamma,
        lambda d, x: stats.invgamma.logpdf(x, d.concentration, scale=np.asarray(d.scale)),
    ),
    "weibull": ("positive", tfd.Weibull, lambda d, x: stats.weibull_min.logpdf(x, d.concentration, scale=d.scale)),
    "log_normal": ("positive", tfd.LogNormal, lambda d, x: stats.lognorm.logpdf(x, d.scale, scale=np.exp(d.loc))),
    "beta": ("unit", tfd.Beta, lambda d, x: stats.beta.logpdf(x, d.concentration1, d.concentration0).sum(axis=1)),
    "student_t": ("real", tfd.StudentT, lambda d, x: stats.t.logpdf(x, d.df, d.loc, d.scale).sum(axis=1)),
    "laplace": ("real", tfd.Laplace, lambda d, x: stats.laplace.logpdf(x, d.loc, d.scale).sum(axis=1)),
    "logistic": ("scalar", tfd.Logistic, lambda d, x: stats.logistic.logpdf(x, d.loc, d.scale)),
    "cauchy": ("scalar", tfd.Cauchy, lambda d, x: stats.cauchy.logpdf(x, d.loc, d.scale)),
    "student_t_through_exp": (
        "positive",
        tfd.StudentT,
        lambda d, x: stats.t.logpdf(np.log(x), d.df, d.loc, d.scale) - np.log(x),
    ),
    "laplace_through_the_simplex": (
        "simplex",
        tfd.Laplace,
        lambda d, x: log_simplex(x, stats.laplace(np.asarray(d.loc), np.asarray(d.scale))),
    ),
    "dirichlet": (
        "simplex",
        tfd.Dirichlet,
        lambda d, x: stats.dirichlet.logpdf((x / x.sum(axis=1, keepdims=True)).T, np.asarray(d.concentration)),
    ),
    "multivariate_normal": (
        "real",
        tfd.MultivariateNormalTriL,
        lambda d, x: stats.multivariate_normal.logpdf(x, np.asarray(d.mean()), np.asarray(d.covariance())),
    ),
    "negative_binomial": (
        "count",
        tfd.NegativeBinomial,
        lambda d, x: stats.nbinom.logpmf(x, d.total_count, special.expit(-np.asarray(d.logits))).sum(axis=1),
    ),
    "geometric": (
        "count",
        tfd.Geometric,
        lambda d, x: stats.geom.logpmf(x + 1, special.expit(np.asarray(d.logits))).sum(axis=1),
    ),
    "categorical_for_a_bit": (
        "binary",
        tfd.Categorical,
        lambda d, x: sum(special.log_softmax(np.asarray(d.logits), -1)[i][x[:, i]] for i in range(2)),
    ),
}


def rate_of(gamma):
    return np.exp(np.asarray(gamma.log_rate)) if gamma.log_rate is not None else np.asarray(gamma.rate)


def overridden(case, dtype="float64"):
    latent, cls, _ = OVERRIDES[case]
    return latent, MeanField(target_of([latent], dtype), factors={latent: cls}, seed=7)


def innermost(distribution):
    while hasattr(distribution, "reinterpreted_batch_ndims"):
        distribution = distribution.distribution
    return distribution


@pytest.mark.parametrize("case", OVERRIDES)
def test_factor_override_log_q_by_hand(case):
    latent, family = overridden(case)
    shaken(family)
    draws = family.sample(50, SEED)
    wanted = OVERRIDES[case][2](innermost(family.factors[0].distribution), draws.value[latent].numpy())
    np.testing.assert_allclose(family.log_prob(draws), wanted, rtol=1e-7, atol=1e-7)
    assert draws.value[latent].shape == (50, *EVERY_SUPPORT[latent][1])


def test_override_begins_where_the_seed_says():
    def start(seed):
        return MeanField(target_of(["positive", "above"]), factors={"positive": tfd.Gamma}, seed=seed).parameters()

    for one, other in zip(start(5), start(5), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not all(np.array_equal(one, other) for one, other in zip(start(5), start(6), strict=True))
    start(2**40)  # seeds of 64 bits are taken


# Full rank.


def full_rank(names=("scalar", "real", "positive", "matrix"), dtype="float64"):
    return shaken(FullRank(target_of(names, dtype)), seed=2)


def test_full_rank_scale_tril_layout():
    family = FullRank(target_of(["matrix"]))
    (factor,) = family.factors
    factor.log_diag.assign(np.log([1.0, 2.0, 3.0, 4.0]))
    factor.lower.assign([21.0, 31.0, 32.0, 41.0, 42.0, 43.0])
    wanted = [[1.0, 0, 0, 0], [21.0, 2.0, 0, 0], [31.0, 32.0, 3.0, 0], [41.0, 42.0, 43.0, 4.0]]
    np.testing.assert_allclose(factor.scale_tril, wanted, rtol=1e-12)


def test_full_rank_begins_as_a_standard_normal():
    family = FullRank(target_of(["scalar", "real"]))
    draws = family.sample(10, SEED)
    base = np.concatenate([draws.base["scalar"].numpy()[:, None], draws.base["real"]], axis=1)
    np.testing.assert_allclose(family.log_prob(draws), stats.norm.logpdf(base).sum(axis=1), rtol=1e-10)


def test_full_rank_log_q_by_scipy():
    family = full_rank()
    (factor,) = family.factors
    draws = family.sample(50, SEED)
    value = {name: x.numpy() for name, x in draws.value.items()}
    assert value["matrix"].shape == (50, 2, 2)
    base = np.concatenate(
        [value["scalar"][:, None], value["real"], np.log(value["positive"])[:, None], value["matrix"].reshape(50, 4)],
        axis=1,
    )
    scale = factor.scale_tril.numpy()
    wanted = stats.multivariate_normal.logpdf(base, factor.loc.numpy(), scale @ scale.T) - np.log(value["positive"])
    np.testing.assert_allclose(family.log_prob(draws), wanted, rtol=1e-8)
    np.testing.assert_allclose(family.log_prob(family.draws_at(value)), wanted, rtol=1e-8)


def test_full_rank_draws_have_its_moments():
    family = full_rank(("scalar", "real"))
    (factor,) = family.factors
    base = family.sample(20_000, SEED).base
    flat = np.concatenate([base["scalar"].numpy()[:, None], base["real"]], axis=1)
    # Whitened by scipy's own solver, the draws are standard normal.
    white = np.linalg.solve(factor.scale_tril.numpy(), (flat - factor.loc.numpy()).T)
    assert np.abs(white.mean(axis=1)).max() < 5 / np.sqrt(20_000)
    assert np.abs(white @ white.T / 20_000 - np.eye(3)).max() < 5 * np.sqrt(2 / 20_000)


def test_full_rank_of_one_dimension_and_of_none():
    assert len(FullRank(target_of(["scalar"])).trainable_variables) == 2
    mixed = shaken(FullRank(target_of(["scalar", "real", "count", "binary"])))
    draws = mixed.sample(30, SEED)
    gaussian, poisson, bernoulli = mixed.factors
    wanted = by_hand("count", draws.value["count"].numpy(), [poisson.parameters["log_rate"].numpy()])
    wanted = wanted + by_hand("binary", draws.value["binary"].numpy(), [bernoulli.parameters["logits"].numpy()])
    flat = np.concatenate([draws.value["scalar"].numpy()[:, None], draws.value["real"]], axis=1)
    scale = gaussian.scale_tril.numpy()
    wanted = wanted + stats.multivariate_normal.logpdf(flat, gaussian.loc.numpy(), scale @ scale.T)
    np.testing.assert_allclose(mixed.log_prob(draws), wanted, rtol=1e-8)
    only_discrete = FullRank(target_of(["binary"]))
    assert [name.split()[0] for name in only_discrete.parameter_names] == ["logits"]


# Wrapped.


def positive_variable(value, dtype):
    return tfp.util.TransformedVariable(np.asarray(value, dtype), tfp.bijectors.Exp(), name="scale")


def wrapped_scalar(dtype="float64"):
    loc = tf.Variable(np.asarray(0.4, dtype), name="loc")
    return Wrapped(tfd.LogNormal(loc, positive_variable(0.7, dtype)), target_of(["positive"], dtype))


def wrapped_joint(dtype="float64"):
    """positive depends on scalar, which no mean field can say."""
    c = np.dtype(dtype).type
    slope = tf.Variable(c(0.8), name="slope")
    joint = tfd.JointDistributionNamed(
        {
            "scalar": tfd.Normal(tf.Variable(c(0.3), name="loc"), positive_variable(0.5, dtype)),
            "positive": lambda scalar: tfd.LogNormal(slope * scalar, positive_scale),
            "binary": tfd.Independent(tfd.Bernoulli(logits=tf.Variable(np.zeros(2, dtype) + c(0.2), name="logits")), 1),
        }
    )
    positive_scale = positive_variable(0.4, dtype)
    joint.kept = (slope, positive_scale)  # seen by the joint's own tracking
    return Wrapped(joint, target_of(["scalar", "positive", "binary"], dtype))


def test_wrapped_scalar_log_q_by_hand():
    family = wrapped_scalar()
    draws = family.sample(40, SEED)
    x = draws.value["positive"].numpy()
    np.testing.assert_allclose(family.log_prob(draws), stats.lognorm.logpdf(x, 0.7, scale=np.exp(0.4)), rtol=1e-10)
    assert len(family.trainable_variables) == 2


def test_wrapped_joint_log_q_by_hand():
    family = wrapped_joint()
    draws = family.sample(40, SEED)
    x = {name: value.numpy() for name, value in draws.value.items()}
    wanted = (
        stats.norm.logpdf(x["scalar"], 0.3, 0.5)
        + stats.lognorm.logpdf(x["positive"], 0.4, scale=np.exp(0.8 * x["scalar"]))
        + stats.bernoulli.logpmf(x["binary"], special.expit(0.2)).sum(axis=1)
    )
    np.testing.assert_allclose(family.log_prob(draws), wanted, rtol=1e-10)
    np.testing.assert_allclose(family.log_prob(family.draws_at(x)), wanted, rtol=1e-10)
    assert len(family.trainable_variables) == 5


def test_wrapped_before_its_target_is_known():
    loc = tf.Variable(0.0)
    family = Wrapped(tfd.Normal(loc, 1.0))
    target = target_of(["scalar"], "float32")
    resolved = families.resolve(family, target)
    assert list(resolved.latents) == ["scalar"]
    assert resolved.trainable_variables[0] is loc


# What holds for all.

FAMILIES = {
    **{
        f"mean_field_{name}": (lambda dtype, name=name: shaken(MeanField(target_of([name], dtype))))
        for name in EVERY_SUPPORT
    },
    **{f"override_{case}": (lambda dtype, case=case: overridden(case, dtype)[1]) for case in OVERRIDES},
    "full_rank": lambda dtype: full_rank(dtype=dtype),
    "full_rank_mixed": lambda dtype: full_rank(("scalar", "real", "simplex", "categorical"), dtype),
    "wrapped_scalar": wrapped_scalar,
    "wrapped_joint": wrapped_joint,
}


@pytest.mark.parametrize("name", FAMILIES)
def test_scores_have_mean_zero(name):
    family = FAMILIES[name]("float64")
    size = 4_000
    scores = tf.function(lambda: family.scores(family.sample(size, SEED)).dense(), autograph=False)()
    assert [score.shape[1:] for score in scores] == [variable.shape for variable in family.trainable_variables]
    flat = np.concatenate([score.numpy().reshape(size, -1) for score in scores], axis=1)
    z = flat.mean(axis=0) / (flat.std(axis=0) / np.sqrt(size))
    assert (flat.std(axis=0) > 0).all()
    assert np.abs(z).max() < 5


@pytest.mark.parametrize("name", FAMILIES)
def test_scores_are_the_gradient_of_log_q(name):
    """Against central differences of log q at fixed draws, along random directions."""
    family = FAMILIES[name]("float64")
    draws = family.sample(3, SEED)
    scores = family.scores(draws).dense()
    start = family.parameters()
    rng = np.random.default_rng(5)
    for index, score in enumerate(scores):
        for _ in range(2):
            direction = rng.normal(size=start[index].shape)
            ends = []
            for step in (1e-5, -1e-5):
                family.assign([p + step * direction if i == index else p for i, p in enumerate(start)])
                ends.append(family.log_prob(draws).numpy())
            difference = (ends[0] - ends[1]) / 2e-5
            slope = np.sum(score.numpy().reshape(3, -1) * direction.ravel(), axis=1)
            np.testing.assert_allclose(slope, difference, rtol=1e-5, atol=1e-6)
    family.assign(start)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FAMILIES)
def test_dtype_and_seed_are_kept(name, dtype):
    family = FAMILIES[name](dtype)
    assert family.dtype.name == dtype
    assert {variable.dtype.name for variable in family.trainable_variables} == {dtype}
    draws, same, other = family.sample(4, SEED), family.sample(4, SEED), family.sample(4, tf.constant([9, 9]))
    for latent in family.latents.values():
        np.testing.assert_array_equal(draws.value[latent.name], same.value[latent.name])
        whole = latent.support.num_categories is not None
        assert draws.value[latent.name].dtype.name == ("int32" if whole else dtype)
        assert draws.value[latent.name].shape == (4, *latent.event_shape)
        assert latent.support.contains(draws.value[latent.name], len(latent.event_shape)).numpy().all()
    assert not all(np.array_equal(draws.value[latent], other.value[latent]) for latent in family.latents)
    assert family.log_prob(draws).dtype.name == dtype
    assert family.log_prob(draws).shape == (4,)
    assert {score.dtype.name for score in family.scores(draws).dense()} == {dtype}


def test_a_family_is_rebuilt_from_its_config():
    target = target_of(["positive", "scalar", "count"])
    for family in (MeanField(target, factors={"positive": tfd.Gamma}), FullRank(target), MeanField(target)):
        again = families.from_config(family.config(), target)
        assert type(again) is type(family)
        again.assign(shaken(family).parameters())
        draws = family.sample(5, SEED)
        np.testing.assert_array_equal(again.log_prob(draws), family.log_prob(draws))
