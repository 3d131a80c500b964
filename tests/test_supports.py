"""Supports: draws land where they should, and the volume they are charged is the right one."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from scipy import integrate

import bbsvi
from bbsvi import supports
from bbsvi.supports import IsometricLogRatio

tfb, tfd = tfp.bijectors, tfp.distributions

INF = np.inf

# name: (support, event shape, a value outside it)
CONTINUOUS = {
    "real": ("real", (3,), [0.0, np.nan, 1.0]),
    "positive": ("positive", (3,), [1.0, -1e-3, 2.0]),
    "unit_interval": ("unit_interval", (3,), [0.5, 1.001, 0.2]),
    "interval": (("interval", -2.0, 5.0), (2,), [0.0, 5.1]),
    "interval_far": (("interval", 1000.0, 1001.0), (2,), [1000.5, 999.9]),
    "interval_above": (("interval", 3.0, INF), (2,), [4.0, 2.9]),
    "interval_below": (("interval", -INF, -1.0), (2,), [-4.0, -0.9]),
    "interval_all": (("interval", -INF, INF), (2,), [INF, 0.0]),
    "simplex": ("simplex", (4,), [0.4, 0.3, 0.2, 0.2]),
    "simplex_of_two": ("simplex", (2,), [1.2, -0.2]),
    "ordered": ("ordered", (4,), [0.0, 1.0, 0.9, 2.0]),
    "softplus": (tfb.Softplus(), (3,), [1.0, -1.0, 2.0]),
    "correlation": (tfb.CorrelationCholesky(), (3, 3), 2 * np.eye(3)),
    "scale_tril": (
        tfb.FillScaleTriL(diag_shift=np.float64(0)),
        (2, 2),
        [[1.0, 0.5], [0.0, 1.0]],
    ),
}


def predicate(name, values):
    """Whether values [S, *event] lie in the support, written down without any bijector."""
    axes = tuple(range(1, values.ndim))
    match name:
        case "real" | "interval_all":
            inside = np.isfinite(values)
        case "positive" | "softplus":
            inside = values > 0
        case "unit_interval":
            inside = (values > 0) & (values < 1)
        case "interval":
            inside = (values > -2) & (values < 5)
        case "interval_far":
            inside = (values > 1000) & (values < 1001)
        case "interval_above":
            inside = values > 3
        case "interval_below":
            inside = values < -1
        case "simplex" | "simplex_of_two":
            return np.all(values > 0, axis=1) & (np.abs(values.sum(axis=1) - 1) < 1e-12)
        case "ordered":
            return np.all(np.diff(values, axis=1) > 0, axis=1)
        case "correlation":
            gram = values @ np.swapaxes(values, 1, 2)
            unit = np.allclose(np.diagonal(gram, axis1=1, axis2=2), 1)
            return np.full(len(values), unit) & np.all(np.triu(values, 1) == 0, axis=(1, 2))
        case "scale_tril":
            return np.all(np.diagonal(values, axis1=1, axis2=2) > 0, axis=1) & (values[:, 0, 1] == 0)
    return np.all(inside, axis=axes)


def resolved(name, dtype=tf.float64):
    spec, shape, _ = CONTINUOUS[name]
    support = supports.resolve(spec, dtype, "z")
    base_shape = support.bijector.inverse_event_shape(tf.TensorShape(shape))
    return support, shape, tuple(base_shape)


def free_coordinates(name, value):
    """The coordinates that a density is written in: all, but K - 1 parts or a triangle's entries."""
    if name.startswith("simplex"):
        return value[..., :-1]
    if name == "correlation":
        return tf.stack([value[..., i, j] for i, j in [(1, 0), (2, 0), (2, 1)]], axis=-1)
    if name == "scale_tril":
        return tf.stack([value[..., i, j] for i, j in [(0, 0), (1, 0), (1, 1)]], axis=-1)
    return value


@pytest.mark.parametrize("name", CONTINUOUS)
def test_forward_lands_in_the_support(name):
    support, shape, base_shape = resolved(name)
    base = np.random.default_rng(0).normal(size=(200, *base_shape)) * 2
    value = support.bijector.forward(base).numpy()
    assert value.shape == (200, *shape)
    assert predicate(name, value).all()
    assert support.contains(value, len(shape)).numpy().all()


@pytest.mark.parametrize("name", CONTINUOUS)
def test_contains_refuses_what_is_outside(name):
    support, shape, base_shape = resolved(name)
    inside = support.bijector.forward(np.full((1, *base_shape), 0.3)).numpy()
    outside = np.asarray([CONTINUOUS[name][2]], np.float64)
    assert not predicate(name, outside).any()
    both = np.concatenate([inside, outside])
    assert support.contains(both, len(shape)).numpy().tolist() == [True, False]
    # Asked again: a bijector remembers what it mapped before.
    assert support.contains(tf.constant(both), len(shape)).numpy().tolist() == [True, False]


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@pytest.mark.parametrize("name", [name for name in CONTINUOUS if name != "scale_tril"])
def test_inverse_round_trip(name, dtype):
    support, _, base_shape = resolved(name, dtype)
    base = tf.constant(np.random.default_rng(1).normal(size=(50, *base_shape)), dtype)
    value = support.bijector.forward(base)
    assert value.dtype == dtype
    back = support.bijector.inverse(tf.identity(value))  # a copy, which the bijector has not seen
    # An interval 1 wide at 1000 leaves a float32 only 4 digits.
    tolerance = {tf.float32: 1e-2 if name == "interval_far" else 1e-4, tf.float64: 1e-9}[dtype]
    np.testing.assert_allclose(back, base, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", CONTINUOUS)
def test_log_det_agrees_with_autodiff(name):
    support, _, base_shape = resolved(name)
    base = tf.constant(np.random.default_rng(2).normal(size=(20, *base_shape)))
    with tf.GradientTape() as tape:
        tape.watch(base)
        value = free_coordinates(name, support.bijector.forward(base))
    jacobian = tape.batch_jacobian(value, base).numpy()
    size = int(np.prod(base_shape))
    _, wanted = np.linalg.slogdet(jacobian.reshape(20, size, size))
    got = support.bijector.forward_log_det_jacobian(base, event_ndims=len(base_shape)).numpy()
    np.testing.assert_allclose(np.broadcast_to(got, wanted.shape), wanted, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_half_infinite_intervals_run_from_their_end(dtype):
    z = tf.constant([-3.0, 0.0, 2.0], dtype)
    above = supports.interval(3.0, INF, tf.as_dtype(dtype))
    below = supports.interval(-INF, -1.0, tf.as_dtype(dtype))
    np.testing.assert_allclose(above.bijector.forward(z), 3 + np.exp([-3.0, 0.0, 2.0]), rtol=1e-6)
    np.testing.assert_allclose(below.bijector.forward(z), -1 - np.exp([-3.0, 0.0, 2.0]), rtol=1e-6)
    assert above.bijector.forward(z).dtype == below.bijector.forward(z).dtype == tf.as_dtype(dtype)
    assert (above.name, below.name) == ("interval(3, inf)", "interval(-inf, -1)")
    assert supports.interval(-INF, INF, tf.float32).name == "real"


def test_the_ends_of_an_interval_count_as_inside():
    unit = supports.resolve("unit_interval", tf.float32, "z")
    assert unit.contains(tf.constant([0.0, 1.0, -0.01, 1.01]), 0).numpy().tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("spec", "values", "inside"),
    [
        ("binary", [0, 1, 2, -1], [True, True, False, False]),
        (("categorical", 3), [0, 2, 3, -1], [True, True, False, False]),
        ("count", [0.0, 7.0, 0.5, -1.0], [True, True, False, False]),
        ("count", [1e6, np.nan, 3.0, -0.5], [True, False, True, False]),
    ],
)
def test_discrete_supports_contain_whole_numbers_only(spec, values, inside):
    support = supports.resolve(spec, tf.float32, "k")
    assert support.is_discrete
    assert support.contains(tf.constant(values), 0).numpy().tolist() == inside
    vectors = tf.constant([[values[0], values[1]], [values[0], values[3]]])
    assert support.contains(vectors, 1).numpy().tolist() == [inside[0] and inside[1], inside[0] and inside[3]]


def test_value_dtypes():
    for dtype in (tf.float32, tf.float64):
        assert supports.resolve("count", dtype, "k").value_dtype(dtype) == dtype
        assert supports.resolve("positive", dtype, "k").value_dtype(dtype) == dtype
        assert supports.resolve("binary", dtype, "k").value_dtype(dtype) == tf.int32
        assert supports.resolve(("categorical", 5), dtype, "k").value_dtype(dtype) == tf.int32


# The isometric log-ratio.


def test_simplex_density_integrates_to_one():
    """A standard normal carried to the simplex of three parts, integrated over the first two."""
    ratio = IsometricLogRatio()

    # Gauss-Legendre on a triangle, by x and y = (1 - x) t.
    nodes, weights = np.polynomial.legendre.leggauss(80)
    x, t = (grid.ravel() for grid in np.meshgrid((nodes + 1) / 2, (nodes + 1) / 2, indexing="ij"))
    area = np.outer(weights / 2, weights / 2).ravel() * (1 - x)
    parts = np.stack([x, (1 - x) * t, (1 - x) * (1 - t)], axis=-1)
    z = ratio.inverse(tf.constant(parts))
    log_det = ratio.forward_log_det_jacobian(tf.identity(z), event_ndims=1)
    density = np.exp(-0.5 * np.sum(z.numpy() ** 2, axis=1) - log_det.numpy()) / (2 * np.pi)
    assert abs(np.sum(area * density) - 1) < 1e-6


def test_simplex_volume_against_the_dirichlet():
    """The Dirichlet's own density, pulled back to the reals, integrates to one there."""
    dirichlet = tfd.Dirichlet(np.array([1.5, 2.0, 3.0]))
    ratio = IsometricLogRatio()
    grid = np.linspace(-18.0, 18.0, 361)
    z = tf.constant(np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1).reshape(-1, 2))
    log_density = dirichlet.log_prob(ratio.forward(z)) + ratio.forward_log_det_jacobian(z, event_ndims=1)
    density = np.exp(log_density).reshape(361, 361)
    assert abs(integrate.trapezoid(integrate.trapezoid(density, grid), grid) - 1) < 1e-6


def test_simplex_parts_are_exchangeable():
    """A rotation of the reals permutes the parts, so that every part has one distribution."""
    ratio = IsometricLogRatio()
    z = np.random.default_rng(3).normal(size=(50, 4))
    parts = ratio.forward(z).numpy()
    for shift in range(1, 5):
        turned = ratio.inverse(tf.constant(np.roll(parts, shift, axis=1)))
        np.testing.assert_allclose(np.linalg.norm(turned, axis=1), np.linalg.norm(z, axis=1), rtol=1e-10)
        np.testing.assert_allclose(
            ratio.forward_log_det_jacobian(turned, event_ndims=1),
            ratio.forward_log_det_jacobian(tf.constant(z), event_ndims=1),
            rtol=1e-10,
        )
    np.testing.assert_allclose(ratio.forward(np.zeros(4)), np.full(5, 0.2), rtol=1e-12)


def test_simplex_is_an_isometry():
    """Distances between the reals are Aitchison distances between the parts."""
    z = np.random.default_rng(4).normal(size=(2, 3))
    logs = np.log(IsometricLogRatio().forward(z).numpy())
    centred = logs - logs.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(np.linalg.norm(centred[0] - centred[1]), np.linalg.norm(z[0] - z[1]), rtol=1e-10)


# Supports read off distributions.

DISTRIBUTIONS = {
    "normal": (lambda c: tfd.Normal(c(0.5), c(2)), "real"),
    "student_t": (lambda c: tfd.StudentT(c(5), c(0), c(1)), "real"),
    "laplace": (lambda c: tfd.Laplace(c(0), c(1)), "real"),
    "gumbel": (lambda c: tfd.Gumbel(c(0), c(1)), "real"),
    "half_normal": (lambda c: tfd.HalfNormal(c(2)), "positive"),
    "half_cauchy": (lambda c: tfd.HalfCauchy(c(0), c(1)), "positive"),
    "half_cauchy_from_2": (lambda c: tfd.HalfCauchy(c(2), c(1)), None),
    "half_student_t": (lambda c: tfd.HalfStudentT(c(5), c(0), c(2)), "positive"),
    "gamma": (lambda c: tfd.Gamma(c(2), c(1)), "positive"),
    "inverse_gamma": (lambda c: tfd.InverseGamma(c(3), c(1)), "positive"),
    "log_normal": (lambda c: tfd.LogNormal(c(0), c(1)), "positive"),
    "exponential": (lambda c: tfd.Exponential(c(1)), "positive"),
    "chi2": (lambda c: tfd.Chi2(c(3)), "positive"),
    "weibull": (lambda c: tfd.Weibull(c(2), c(1)), "positive"),
    "pareto": (lambda c: tfd.Pareto(c(3), c(2)), None),
    "inverse_gaussian": (lambda c: tfd.InverseGaussian(c(1), c(1)), "positive"),
    "beta": (lambda c: tfd.Beta(c(2), c(3)), None),
    "kumaraswamy": (lambda c: tfd.Kumaraswamy(c(2), c(3)), None),
    "uniform": (lambda c: tfd.Uniform(c(-1), c(2)), "interval(-1, 2)"),
    "triangular": (lambda c: tfd.Triangular(c(0), c(4), c(1)), None),
    "truncated_normal": (lambda c: tfd.TruncatedNormal(c(0), c(1), c(-1), c(2)), "interval(-1, 2)"),
    "truncated_above": (lambda c: tfd.TruncatedNormal(c(0), c(1), c(-INF), c(1)), "interval(-inf, 1)"),
    "truncated_below": (lambda c: tfd.TruncatedNormal(c(1), c(1), c(0), c(INF)), "interval(0, inf)"),
    "truncated_cauchy": (lambda c: tfd.TruncatedCauchy(c(0), c(1), c(0), c(5)), "interval(0, 5)"),
    "von_mises": (lambda c: tfd.VonMises(c(0), c(1)), None),
    "logit_normal": (lambda c: tfd.LogitNormal(c(0), c(1)), None),
    "shifted_log_normal": (
        lambda c: tfd.TransformedDistribution(tfd.Normal(c(0), c(1)), tfb.Chain([tfb.Shift(c(2)), tfb.Exp()])),
        None,
    ),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_distribution_integrates_to_one_over_its_support(name):
    """The density pulled back to the reals has mass one: the map covers the support, and its volume is right."""
    make, wanted = DISTRIBUTIONS[name]
    distribution = make(np.float64)
    support = supports.of_distribution(distribution, tf.float64, "z")
    if wanted is not None:
        assert support.name == wanted
    # sinh-spaced, for the tails of what decays like exp(-|z|) or slower.
    t = np.linspace(-7.0, 7.0, 20_001)
    z = tf.constant(np.sinh(t))
    value = support.bijector.forward(z)
    log_density = distribution.log_prob(value) + support.bijector.forward_log_det_jacobian(z, event_ndims=0)
    density = np.nan_to_num(np.exp(log_density.numpy()) * np.cosh(t), nan=0.0)  # NaN: value at an end or infinite
    assert abs(integrate.trapezoid(density, t) - 1) < 1e-4
    assert support.contains(distribution.sample(100, seed=(0, 1)), 0).numpy().all()


def test_one_name_is_one_transform():
    """TFP has softplus for some positive distributions and exp for others."""
    z = tf.constant([-1.0, 0.0, 2.0])
    for distribution in (tfd.HalfCauchy(0.0, 1.0), tfd.Gamma(1.0, 1.0), tfd.LogNormal(0.0, 1.0), tfd.Exponential(1.0)):
        support = supports.of_distribution(distribution, tf.float32, "z")
        np.testing.assert_allclose(support.bijector.forward(z), np.exp(z), rtol=1e-6)


MATRICES = {
    "multivariate_normal": lambda: tfd.MultivariateNormalTriL(np.zeros(2), np.array([[1.0, 0.0], [0.5, 2.0]])),
    "dirichlet": lambda: tfd.Dirichlet(np.array([2.0, 3.0, 4.0])),
    "sample_of_dirichlet": lambda: tfd.Sample(tfd.Dirichlet(np.array([2.0, 3.0])), 2),
    "relaxed_one_hot": lambda: tfd.RelaxedOneHotCategorical(np.float64(2.0), logits=np.zeros(3)),
    "cholesky_lkj": lambda: tfd.CholeskyLKJ(3, np.float64(2.0)),
    "wishart": lambda: tfd.WishartTriL(np.float64(6.0), np.eye(2) / 2),
    "sample": lambda: tfd.Sample(tfd.Gamma(np.float64(2.0), np.float64(1.0)), 3),
    "independent_uniforms": lambda: tfd.Independent(tfd.Uniform(np.array([-1.0, 0.0]), np.array([2.0, 3.0])), 1),
    "sorted": lambda: tfd.TransformedDistribution(
        tfd.Sample(tfd.Normal(np.float64(0), np.float64(1)), 3), tfb.Ascending()
    ),
}


@pytest.mark.parametrize("name", MATRICES)
def test_a_matrix_or_vector_has_mass_one_over_its_support(name):
    """As above, by importance sampling: the mean of density / proposal is one, within 5 standard errors."""
    distribution = MATRICES[name]()
    event = distribution.event_shape
    support = supports.of_distribution(distribution, distribution.dtype, "z")
    base_shape = support.bijector.inverse_event_shape(event)
    # A proposal fitted to the distribution's own draws, with heavier tails.
    own = support.bijector.inverse(distribution.sample(2_000, seed=(0, 1)))
    own = np.asarray(own, np.float64).reshape(2_000, -1)
    own = own[np.isfinite(own).all(axis=1)]
    proposal = tfd.MultivariateStudentTLinearOperator(
        np.float64(5), own.mean(axis=0), tf.linalg.LinearOperatorLowerTriangular(np.linalg.cholesky(np.cov(own.T)))
    )
    flat = proposal.sample(40_000, seed=(0, 2))
    z = tf.cast(tf.reshape(flat, [40_000, *base_shape]), distribution.dtype)
    log_density = distribution.log_prob(support.bijector.forward(z))
    log_density += support.bijector.forward_log_det_jacobian(z, event_ndims=base_shape.rank)
    ratio = np.exp(log_density - tf.cast(proposal.log_prob(flat), distribution.dtype))
    standard_error = ratio.std() / np.sqrt(len(ratio))
    assert standard_error < 0.02
    assert abs(ratio.mean() - 1) < 5 * standard_error


@pytest.mark.parametrize(
    ("make", "name", "num_categories"),
    [
        (lambda: tfd.Bernoulli(0.3), "binary", 2),
        (lambda: tfd.Bernoulli(0.3, dtype=tf.float32), "binary", 2),
        (lambda: tfd.Sample(tfd.Bernoulli(0.3), 4), "binary", 2),
        (lambda: tfd.Categorical(logits=[0.0, 0.0, 0.0]), "categorical(3)", 3),
        (lambda: tfd.Categorical(probs=[0.5, 0.5]), "categorical(2)", 2),
        (lambda: tfd.Binomial(5.0, probs=0.5), "categorical(6)", 6),
        (lambda: tfd.Independent(tfd.Binomial([5.0, 5.0], probs=0.5), 1), "categorical(6)", 6),
        (lambda: tfd.BetaBinomial(5.0, 1.0, 1.0), "categorical(6)", 6),
        (lambda: tfd.Poisson(2.0), "count", None),
        (lambda: tfd.NegativeBinomial(3.0, probs=0.5), "count", None),
        (lambda: tfd.Geometric(probs=0.5), "count", None),
        (lambda: tfd.Independent(tfd.Poisson([1.0, 2.0]), 1), "count", None),
    ],
)
def test_discrete_distributions(make, name, num_categories):
    distribution = make()
    support = supports.of_distribution(distribution, tf.float32, "k")
    assert (support.name, support.num_categories) == (name, num_categories)
    draws = distribution.sample(100, seed=(0, 1))
    assert support.contains(draws, distribution.event_shape.rank).numpy().all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: tfd.OneHotCategorical(logits=[0.0, 0.0]),
        lambda: tfd.Multinomial(5.0, logits=[0.0, 0.0]),
        lambda: tfd.DirichletMultinomial(5.0, [1.0, 1.0]),
        lambda: tfd.Zipf(3.0),
        lambda: tfd.Skellam(1.0, 2.0),
        lambda: tfd.OrderedLogistic([0.0, 1.0], 0.0),
        lambda: tfd.VonMisesFisher([1.0, 0.0, 0.0], 1.0),
        lambda: tfd.SphericalUniform(3),
        lambda: tfd.FiniteDiscrete([1.0, 2.5], [0.5, 0.5]),
        lambda: tfd.Mixture(tfd.Categorical(logits=[0.0, 0.0]), [tfd.Normal(0.0, 1.0), tfd.Gamma(1.0, 1.0)]),
        lambda: tfd.Empirical([1.0, 2.0]),
        lambda: tfd.Blockwise([tfd.Normal(0.0, 1.0), tfd.Gamma(1.0, 1.0)]),
    ],
)
def test_a_distribution_without_a_known_support_is_refused_by_name(make):
    distribution = make()
    with pytest.raises(
        bbsvi.InvalidValueError, match=rf"latent 'k': no support is known for {type(distribution).__name__}"
    ):
        supports.of_distribution(distribution, tf.float32, "k")


def test_lkj_is_refused_for_its_cholesky_form():
    with pytest.raises(bbsvi.InvalidValueError, match=r"latent 'k' is LKJ, .*use tfd.CholeskyLKJ"):
        supports.of_distribution(tfd.LKJ(3, 2.0), tf.float32, "k")


def test_wishart_by_its_cholesky_factor_is_refused():
    """TFP leaves the density that of the matrix, so that over L it does not have mass one."""
    wishart = tfd.WishartTriL(4.0, tf.eye(2), input_output_cholesky=True)
    with pytest.raises(bbsvi.InvalidValueError, match="latent 'k' is WishartTriL with input_output_cholesky=True"):
        supports.of_distribution(wishart, tf.float32, "k")


def test_a_constant_is_refused():
    for constant in (tfd.Deterministic(1.0), tfd.VectorDeterministic([1.0])):
        with pytest.raises(bbsvi.InvalidValueError, match=r"latent 'k' is .*Deterministic: a constant has no density"):
            supports.of_distribution(constant, tf.float32, "k")
