"""Bad input: one clear error of ours, before anything is compiled, saying what was got and what was wanted."""
# ruff: noqa: ARG001, ARG005 (what a log density takes is part of the case, used or not)

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import bbsvi
from bbsvi import control_variates, estimators, families
from bbsvi.examples import load
from bbsvi.optimization.loop import Steps

tfb, tfd = tfp.bijectors, tfp.distributions

Y = np.zeros(8, np.float32)


@pytest.fixture(autouse=True)
def _nothing_is_compiled(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the fit went on to compile its steps")

    monkeypatch.setattr(Steps, "__init__", refuse)


def schools(dtype=np.float32):
    scale = dtype(5.0)
    return tfd.JointDistributionNamed(
        {
            "mu": tfd.Normal(dtype(0.0), scale),
            "tau": tfd.HalfCauchy(dtype(0.0), scale),
            "theta": lambda mu, tau: tfd.Sample(tfd.Normal(mu, tau), 8),
            "y": lambda theta: tfd.Independent(tfd.Normal(theta, 3 * scale), 1),
        }
    )


def one(support="real", shape=(), log_prob=None, **options):
    """A target with the one latent z."""
    return bbsvi.Target(
        log_prob or (lambda z: -tf.reduce_sum(z * z, axis=range(1, z.shape.rank))), shape, support, **options
    )


def two(log_prob=None):
    """A target with the latents mu [] and theta [8]."""
    return bbsvi.Target(
        log_prob or (lambda mu, theta: -(mu**2) - tf.reduce_sum(theta**2, -1)), {"mu": (), "theta": (8,)}
    )


def fit(target=None, family="mean_field", **options):
    return bbsvi.fit(one() if target is None else target, family, **{"progress_bar": False, "seed": 0, **options})


def supported(support, shape=()):
    return bbsvi.Target(lambda mu: mu, {"mu": shape}, {"mu": support})


def shaped(shape):
    return bbsvi.Target(lambda mu: mu, {"mu": shape})


def mean_field(factors, target=None, **options):
    return families.MeanField(two() if target is None else target, factors=factors, **options)


def joint(**sites):
    return tfd.JointDistributionNamed(sites)


def variable(value=0.0):
    return tf.Variable(tf.convert_to_tensor(value, tf.float32))


def normal_of(shape):
    return tfd.MultivariateNormalDiag(tf.Variable(tf.zeros(shape)))


def normal_y(location):
    return tfd.Normal(location, 1.0)


DATA = [
    (
        "unknown_key",
        lambda: fit(schools(), data={"thta": Y}),
        ValueError,
        r"data: unknown name 'thta'.*'y'.*mean 'theta'",
    ),
    (
        "unknown_key_far",
        lambda: fit(schools(), data={"y": Y, "qqq": Y}),
        ValueError,
        r"unknown name 'qqq'.*\['mu', 'tau', ",
    ),
    (
        "key_of_another_type",
        lambda: fit(schools(), data={3: Y}),
        ValueError,
        r"data: unknown name 3; the known ones are",
    ),
    ("no_data", lambda: fit(schools()), ValueError, r"no data for site 'y'.*data has \[\].*Pass data=\{'y': \.\.\.\}"),
    ("site_missing", lambda: fit(schools(), data={"mu": 0.0}), ValueError, r"no data for site 'y'.*data has \['mu'\]"),
    ("only_the_parent", lambda: fit(schools(), data={"theta": Y}), ValueError, r"no data for site 'y'.*\['theta'\]"),
    ("list", lambda: fit(schools(), data=[Y]), TypeError, r"data must be a dict \{site: array\}, got list"),
    ("array", lambda: fit(schools(), data=Y), TypeError, r"data must be a dict .* got ndarray"),
    ("text", lambda: fit(schools(), data={"y": "abc"}), TypeError, r"data\['y'\] must be numbers, got dtype <U3"),
    ("none", lambda: fit(schools(), data={"y": None}), TypeError, r"data\['y'\] must be numbers, got dtype object"),
    (
        "complex",
        lambda: fit(schools(), data={"y": 1j * Y}),
        TypeError,
        r"data\['y'\] must be numbers, got dtype complex",
    ),
    (
        "ragged",
        lambda: fit(schools(), data={"y": [[1.0], [1.0, 2.0]]}),
        TypeError,
        r"data\['y'\] must be an array of num",
    ),
    ("shape", lambda: fit(schools(), data={"y": Y[:7]}), ValueError, r"data\['y'\] has shape \(7,\).* wants \(8,\)"),
    (
        "batch",
        lambda: fit(schools(), data={"y": Y[None]}),
        ValueError,
        r"data\['y'\] has shape \(1, 8\).* wants \(8,\)",
    ),
    (
        "float64_data",
        lambda: fit(schools(), data={"y": np.zeros(8)}),
        TypeError,
        r"data\['y'\] is float64 but the model's site 'y' is float32: pass data\['y'\]\.astype\('float32'\)",
    ),
    (
        "float64_tensor",
        lambda: fit(schools(), data={"y": tf.zeros(8, tf.float64)}),
        TypeError,
        r"is float64 .*is float32",
    ),
    (
        "float32_data",
        lambda: fit(schools(np.float64), data={"y": Y}),
        TypeError,
        r"data\['y'\] is float32 .* is float64",
    ),
    (
        "fraction_for_a_count",
        lambda: fit(joint(a=tfd.Normal(0.0, 1.0), k=lambda a: tfd.Bernoulli(logits=a)), data={"k": 0.5}),
        TypeError,
        r"data\['k'\] \(float64\) cannot be held exactly in the site's dtype int32",
    ),
    (
        "big_integer",
        lambda: fit(schools(), data={"y": np.full(8, 2**24 + 1)}),
        TypeError,
        r"data\['y'\] \(int64\) cannot be held exactly in the site's dtype float32",
    ),
    (
        "nan",
        lambda: fit(schools(), data={"y": Y + np.nan}),
        FloatingPointError,
        r"term 'y' is nan at draw 0: .*mu = -?\d",
    ),
    (
        "all_observed",
        lambda: fit(joint(a=normal_y(0.0)), data={"a": 0.0}),
        ValueError,
        r"every site is observed \(\['a'\]\)",
    ),
    (
        "data_for_a_target",
        lambda: fit(data={"z": 0.0}),
        ValueError,
        r"data is for joint distributions; a bbsvi\.Target has",
    ),
    (
        "pinned_twice",
        lambda: fit(schools().experimental_pin(y=Y), data={"y": Y}),
        ValueError,
        r"data\['y'\] is given but the joint distribution already pins 'y'",
    ),
    (
        "from_joint",
        lambda: bbsvi.Target.from_joint(one()),
        TypeError,
        r"joint must be a tfd\.JointDistribution\*, got Target",
    ),
    (
        "from_joint_data",
        lambda: bbsvi.Target.from_joint(schools(), [1]),
        TypeError,
        r"data must be a dict .*, got list",
    ),
]

JOINTS = [
    (
        "batch_shape",
        lambda: fit(
            joint(mu=tfd.Normal(tf.zeros(8), 1.0), y=lambda mu: tfd.Independent(normal_y(mu), 1)), data={"y": Y}
        ),
        ValueError,
        r"site 'mu' has batch shape \[8\], wanted \[\]: wrap it in tfd\.Independent",
    ),
    (
        "nested",
        lambda: fit(joint(a=joint(b=normal_y(0.0)), y=normal_y(0.0)), data={"y": 0.0}),
        TypeError,
        r"site 'a' is itself a joint distribution; flatten the model",
    ),
    (
        "nested_autobatched",
        lambda: fit(
            tfd.JointDistributionNamedAutoBatched({"a": joint(b=normal_y(0.0)), "y": normal_y(0.0)}), data={"y": 0.0}
        ),
        TypeError,
        r"site 'a' is itself a joint distribution; flatten the model",
    ),
    (
        "moving_support",
        lambda: fit(
            joint(a=tfd.Exponential(1.0), b=lambda a: tfd.Uniform(0.0, a), y=lambda b: normal_y(b)), data={"y": 0.0}
        ),
        ValueError,
        r"latent 'b': its support depends on other sites.*bbsvi\.Target",
    ),
    (
        "moving_total_count",
        lambda: fit(
            joint(
                n=tfd.Binomial(40.0, probs=0.5),
                k=lambda n: tfd.Binomial(n, probs=0.5),
                y=lambda k: normal_y(k),
            ),
            data={"y": 0.0},
        ),
        ValueError,
        r"latent 'k': its support depends on other sites",
    ),
    (
        "different_dtypes",
        lambda: fit(joint(a=normal_y(0.0), b=tfd.Normal(np.float64(0), np.float64(1))), data={}),
        TypeError,
        r"latents have different float dtypes \{.*'b': 'float64'.*\}; build the model in one",
    ),
    (
        "constant",
        lambda: fit(joint(a=tfd.Deterministic(0.0), y=lambda a: normal_y(a)), data={"y": 0.0}),
        ValueError,
        r"latent 'a' is Deterministic: a constant has no density",
    ),
    (
        "no_known_support",
        lambda: fit(joint(a=tfd.OneHotCategorical(logits=[0.0, 0.0]), y=lambda a: normal_y(1.0)), data={"y": 0.0}),
        ValueError,
        r"latent 'a': no support is known for OneHotCategorical of int32; .* support=\{'a': \.\.\.\}",
    ),
    (
        "total_counts",
        lambda: fit(joint(k=tfd.Independent(tfd.Binomial([5.0, 6.0], probs=0.5), 1)), data={}),
        ValueError,
        r"latent 'k': its elements have different total_counts \(5\.0 to 6\.0\)",
    ),
    (
        "bounds",
        lambda: fit(joint(k=tfd.Independent(tfd.TruncatedNormal(0.0, 1.0, [0.0, 1.0], [2.0, np.inf]), 1)), data={}),
        ValueError,
        r"latent 'k': its elements have different bounds, some of them infinite; give each its own",
    ),
]

TARGETS = [
    (
        "function",
        lambda: fit(lambda z: z),
        TypeError,
        r"target is a function, which has no shapes: wrap it as bbsvi\.Target\(",
    ),
    ("none", lambda: bbsvi.fit(None), TypeError, r"target must be a tfd\.Joint.*got None"),
    ("class", lambda: fit(bbsvi.Target), TypeError, r"target must be .* bbsvi\.Target, got"),
    ("distribution", lambda: fit(tfd.Normal(0.0, 1.0)), TypeError, r"target must be a tfd\.JointDist.*got .*Normal"),
    (
        "no_shapes",
        lambda: bbsvi.Target(lambda z: z),
        ValueError,
        r"event_shape is missing: .* give event_shape=\{name: shape\}",
    ),
    ("no_latents", lambda: bbsvi.Target(lambda z: z, {}), ValueError, r"event_shape is empty: there is no latent"),
    (
        "names",
        lambda: bbsvi.Target(lambda z: z, {1: ()}),
        TypeError,
        r"event_shape must be a dict .*, got 1 for a name",
    ),
    (
        "shape_int",
        lambda: bbsvi.Target(lambda z: z, 5),
        TypeError,
        r"event_shape\['z'\] must be a tuple .*\(5,\), got 5",
    ),
    ("shape_named_int", lambda: shaped(5), TypeError, r"event_shape\['mu'\] must be a tuple of ints .*\(5,\), got 5"),
    ("shape_true", lambda: shaped(True), TypeError, r"event_shape\['mu'\] must be a tuple of ints .*got True"),
    ("shape_true_inside", lambda: shaped((True,)), TypeError, r"event_shape\['mu'\] must be a tuple .*got \(True,\)"),
    ("shape_text", lambda: shaped("8"), TypeError, r"event_shape\['mu'\] must be a tuple of ints .*got '8'"),
    ("shape_none", lambda: shaped(None), TypeError, r"event_shape\['mu'\] must be a tuple of ints .*got None"),
    (
        "shape_fraction",
        lambda: shaped((2.5,)),
        TypeError,
        r"event_shape\['mu'\] must be a tuple of ints .*got \(2\.5,\)",
    ),
    ("shape_negative", lambda: shaped((-1,)), TypeError, r"event_shape\['mu'\] must be a tuple of ints .*got \(-1,\)"),
    ("shape_unknown", lambda: shaped((None,)), ValueError, r"event_shape\['mu'\] must have known dim.*got \(None,\)"),
    ("shape_empty_axis", lambda: shaped((0,)), ValueError, r"event_shape\['mu'\] .* at least 1, got \(0,\)"),
    ("dtype_half", lambda: one(dtype="float16"), TypeError, r"dtype must be 'float32' or 'float64', got 'float16'"),
    ("dtype_integer", lambda: one(dtype=tf.int32), TypeError, r"dtype must be 'float32' or 'float64', got 'int32'"),
    ("dtype_text", lambda: one(dtype="floaty"), TypeError, r"dtype must be 'float32' or 'float64', got 'floaty'"),
    ("dtype_none", lambda: one(dtype=None), TypeError, r"dtype must be 'float32' or 'float64', got None"),
    ("log_prob_number", lambda: bbsvi.Target(3.0, ()), TypeError, r"log_prob must be callable, got float"),
    (
        "log_prob_missing",
        lambda: bbsvi.Target(event_shape=()),
        ValueError,
        r"log_prob is missing: give log_prob, or both",
    ),
    (
        "both_forms",
        lambda: bbsvi.Target(lambda z: z, (), log_prior=lambda z: z),
        ValueError,
        r"give log_prob, or log_prior and log_likelihood, not both",
    ),
    (
        "half_a_split",
        lambda: bbsvi.Target(event_shape=(), log_prior=lambda z: z),
        ValueError,
        r"log_likelihood is missing: give log_prob, or both",
    ),
    (
        "other_half_of_a_split",
        lambda: bbsvi.Target(event_shape=(), log_likelihood=lambda z: z),
        ValueError,
        r"log_prior is missing: give log_prob, or both",
    ),
    (
        "argument_misspelt",
        lambda: two(lambda mu, thta: mu),
        ValueError,
        r"log_prob must take the latents by name: it is called as log_prob\(mu, theta\) .*signature is \(mu, thta\)",
    ),
    (
        "argument_missing",
        lambda: two(lambda mu: mu),
        ValueError,
        r"called as log_prob\(mu, theta\) .*signature is \(mu\)",
    ),
    ("no_arguments", lambda: one(log_prob=lambda: 0.0), ValueError, r"called as log_prob\(z\) .*signature is \(\)"),
    (
        "numpy_argument",
        lambda: bbsvi.Target.from_numpy(lambda q: q, {"a": (), "b": ()}),
        ValueError,
        r"called as log_prob\(a, b\) .*signature is \(q\)",
    ),
    ("numpy_number", lambda: bbsvi.Target.from_numpy(3, ()), TypeError, r"log_prob must be callable, got int"),
    (
        "numpy_vectorized",
        lambda: bbsvi.Target.from_numpy(lambda z: z, (), vectorized="no"),
        TypeError,
        r"vectorized must be True or False, got 'no'",
    ),
    (
        "numpy_under_xla",
        lambda: fit(bbsvi.Target.from_numpy(lambda z: -(z**2), ()), jit_compile=True),
        ValueError,
        r"jit_compile=True: XLA cannot compile a numpy log density; use 'auto' or False",
    ),
]

SUPPORTS = [
    (
        "latent",
        lambda: bbsvi.Target(lambda mu: mu, {"mu": ()}, {"mv": "real"}),
        ValueError,
        r"support: unknown name 'mv'.*'mu'",
    ),
    (
        "not_a_dict",
        lambda: bbsvi.Target(lambda mu: mu, {"mu": ()}, "real"),
        TypeError,
        r"support must be a dict.*got 'real'",
    ),
    (
        "misspelt",
        lambda: supported("positiv"),
        ValueError,
        r"support\['mu'\]: unknown name 'positiv'.* mean 'positive'\?",
    ),
    (
        "misspelt_tuple",
        lambda: supported(("intervl", 0, 1)),
        ValueError,
        r"\('intervl', 0, 1\) is no support.* 'interval'\?",
    ),
    ("interval_bare", lambda: supported("interval"), ValueError, r"'interval' is no support; .*\('interval', a, b\)"),
    ("interval_one_end", lambda: supported(("interval", 0)), ValueError, r"\('interval', 0\) is no support; .*a, b\)"),
    (
        "interval_swapped",
        lambda: supported(("interval", 2, 1)),
        ValueError,
        r"support\['mu'\]: .*a < b, got a = 2 and b = 1",
    ),
    ("interval_nan", lambda: supported(("interval", np.nan, 1)), ValueError, r"support\['mu'\]: .*a < b, got a = nan"),
    (
        "interval_text",
        lambda: supported(("interval", "a", 1)),
        TypeError,
        r"support\['mu'\]: .*wants numbers, got 'a' and 1",
    ),
    ("interval_list", lambda: supported(("interval", [0, 0], 1)), TypeError, r"wants numbers, got \[0, 0\] and 1"),
    ("categorical_1", lambda: supported(("categorical", 1)), ValueError, r"support\['mu'\]: .* at least 2, got 1"),
    (
        "categorical_true",
        lambda: supported(("categorical", True)),
        ValueError,
        r"wants an int K of at least 2, got True",
    ),
    ("categorical_float", lambda: supported(("categorical", 3.0)), ValueError, r"wants an int K .*, got 3\.0"),
    ("number", lambda: supported(3), ValueError, r"support\['mu'\]: 3 is no support; use one of \['real', 'positive'"),
    ("none", lambda: supported(None), ValueError, r"support\['mu'\]: None is no support; use one of"),
    ("bijector_class", lambda: supported(tfb.Exp), ValueError, r"support\['mu'\]: <class .*Exp'> is no support"),
    (
        "bijector_dtype",
        lambda: supported(tfb.Sigmoid(low=np.float64(0), high=np.float64(1))),
        ValueError,
        r"support\['mu'\]: bijector 'sigmoid' gives no float32 values of shape \(\)",
    ),
    (
        "bijector_shape",
        lambda: supported(tfb.FillTriangular(), (3,)),
        ValueError,
        r"\(3,\).*'fill_triangular' wants a matrix",
    ),
    (
        "bijector_size",
        lambda: supported(tfb.FillTriangular(), (2, 3)),
        ValueError,
        r"'fill_triangular' gives no .*\(2, 3\)",
    ),
    (
        "simplex_scalar",
        lambda: supported("simplex"),
        ValueError,
        r"event_shape\['mu'\] is \(\).*'simplex' wants a vector of",
    ),
    (
        "simplex_of_one",
        lambda: supported("simplex", (1,)),
        ValueError,
        r"event_shape\['mu'\] is \(1,\).*at least two parts",
    ),
    (
        "ordered_scalar",
        lambda: supported("ordered"),
        ValueError,
        r"event_shape\['mu'\] is \(\).*'ordered' wants a vector",
    ),
]

LOG_PROBS = [
    (
        "scalar",
        lambda mu, theta: tf.reduce_sum(mu) + tf.reduce_sum(theta),
        ValueError,
        r"log_prob returned shape \[\] for S = 3",
    ),
    ("column", lambda mu, theta: mu[:, None], ValueError, r"log_prob returned shape \[3, 1\] .*wanted \[3\]"),
    ("per_element", lambda mu, theta: theta, ValueError, r"log_prob returned shape \[3, 8\] .*wanted \[3\]"),
    (
        "summed_over_draws",
        lambda mu, theta: tf.reduce_sum(theta, 0),
        ValueError,
        r"returned shape \[8\] .*wanted \[3\]",
    ),
    # With sample_size=8 each of these would run, and be wrong.
    (
        "sample_axis_against_event_axis",
        lambda mu, theta: -tf.reduce_sum((theta - mu) ** 2, -1),
        ValueError,
        r"S = 3 draws, mu \[3\], theta \[3, 8\] .*Incompatible shapes: \[3,8\] vs\. \[3\]",
    ),
    (
        "draws_mixed",
        lambda mu, theta: -(mu**2) - tf.reduce_mean(theta**2),
        ValueError,
        r"log_prob mixes the draws: draw 0 has -\d.* among S = 3 draws and -\d.* among S = 4, wanted the same",
    ),
    ("python_number", lambda mu, theta: 0.0, ValueError, r"log_prob returned shape \[\] for S = 3 draws, wanted \[3\]"),
    ("none", lambda mu, theta: None, TypeError, r"log_prob must return floats of shape \[S\], got NoneType"),
    (
        "distribution",
        lambda mu, theta: tfd.Normal(mu, 1.0),
        TypeError,
        r"log_prob must return floats of .*, got Normal",
    ),
    ("pair", lambda mu, theta: (mu, mu), ValueError, r"log_prob returned shape \[2, 3\] .*wanted \[3\]"),
    ("text", lambda mu, theta: "a", TypeError, r"log_prob must return floats of shape \[S\], got dtype string"),
    ("integers", lambda mu, theta: tf.cast(mu, tf.int32), TypeError, r"log_prob must return floats .*got dtype int32"),
    ("complex", lambda mu, theta: tf.cast(mu, tf.complex64), TypeError, r"must return floats .*got dtype complex64"),
    ("exception", lambda mu, theta: {}["rho"], RuntimeError, r"log p could not be evaluated at S = 3.*KeyError: 'rho'"),
    (
        "value_error",
        lambda mu, theta: int("x"),
        ValueError,
        r"log p could not be evaluated .*ValueError: invalid literal",
    ),
    (
        "nan",
        lambda mu, theta: tf.math.log(-tf.abs(mu)) + theta[:, 0],
        FloatingPointError,
        r"for 64 of 64 draws from the initial q; term 'log_prob' is nan at draw 0: mu = -?\d\S+, theta = \[ ?-?\d",
    ),
    (
        "minus_infinity",
        lambda mu, theta: -np.inf * tf.ones_like(mu),
        FloatingPointError,
        r"not finite for 64 of 64 draws .*term 'log_prob' is -inf at draw 0: mu = ",
    ),
]

FAMILIES = [
    ("misspelt", lambda: fit(family="meanfield"), ValueError, r"family: unknown name 'meanfield'.*mean 'mean_field'\?"),
    ("hyphen", lambda: fit(family="full-rank"), ValueError, r"family: unknown name 'full-rank'.*mean 'full_rank'\?"),
    (
        "none",
        lambda: fit(family=None),
        TypeError,
        r"family must be one of \['full_rank', 'low_rank', 'mean_field'\].*got None",
    ),
    ("class", lambda: fit(family=families.MeanField), TypeError, r"family must be .*\(write MeanField\(target\)\)"),
    (
        "distribution_class",
        lambda: fit(family=tfd.Normal),
        TypeError,
        r"family must be .*tfd\.Distribution with trainable",
    ),
    (
        "of_another_target",
        lambda: fit(family=families.MeanField(two())),
        ValueError,
        r"family was built for the latents \{'mu'.*\}, the target has \{'z'",
    ),
    (
        "mean_field_of_a_joint",
        lambda: families.MeanField(schools()),
        TypeError,
        r"target must be a bbsvi\.Target, got Joint",
    ),
    ("full_rank_of_a_joint", lambda: families.FullRank(schools()), TypeError, r"target must be .*Target\.from_joint"),
    ("seed", lambda: mean_field({"mu": tfd.Laplace}, seed="a"), TypeError, r"seed must be an int, got 'a' \(str\)"),
    (
        "factor_misspelt",
        lambda: mean_field({"thta": tfd.Laplace}),
        ValueError,
        r"factors: unknown name 'thta'.* 'theta'\?",
    ),
    (
        "factor_text",
        lambda: mean_field({"mu": "Laplace"}),
        TypeError,
        r"factors\['mu'\] must be .*class, got 'Laplace'",
    ),
    (
        "factor_object",
        lambda: mean_field({"mu": normal_y(0.0)}),
        TypeError,
        r"factors\['mu'\] must be .*class, got <tfp",
    ),
    (
        "factor_list",
        lambda: mean_field([tfd.Laplace]),
        TypeError,
        r"factors must be a dict \{latent: TFP class\}, got \[",
    ),
    (
        "factor_poisson",
        lambda: mean_field({"mu": tfd.Poisson}),
        ValueError,
        r"factors\['mu'\]: Poisson does not go.*'real'",
    ),
    (
        "factor_gamma",
        lambda: mean_field({"mu": tfd.Gamma}),
        ValueError,
        r"factors\['mu'\]: Gamma .*; wanted a class over",
    ),
    (
        "factor_dirichlet",
        lambda: mean_field({"theta": tfd.Dirichlet}),
        ValueError,
        r"Dirichlet does not .*shape \(8,\)",
    ),
    ("factor_constant", lambda: mean_field({"mu": tfd.Deterministic}), ValueError, r"Deterministic does not go with"),
    (
        "factor_too_narrow",
        lambda: mean_field({"z": tfd.Beta}, one(("interval", 0, 5))),
        ValueError,
        r"Beta does not go with latent 'z', whose support is 'interval\(0, 5\)'",
    ),
    ("factor_normal", lambda: mean_field({"z": tfd.Normal}, one("count")), ValueError, r"Normal does not go .*'count'"),
    (
        "factor_untrainable",
        lambda: mean_field({"z": tfd.Uniform}, one("unit_interval")),
        ValueError,
        r"factors\['z'\]: Uniform could not be made trainable with shape \(\)",
    ),
    (
        "factor_shape",
        lambda: mean_field({"mu": tfd.MultivariateNormalTriL}),
        ValueError,
        r"factors\['mu'\]: MultivariateNormalTriL could not be made trainable with shape \(\)",
    ),
    ("wrapped_number", lambda: families.Wrapped(3), TypeError, r"distribution must be a tfd\.Distribution, got int"),
    (
        "not_trainable",
        lambda: fit(family=tfd.Normal(0.0, 1.0)),
        ValueError,
        r"family Wrapped has no trainable variables: parameters must be tf\.Variables",
    ),
    (
        "eager_softplus",
        lambda: fit(family=tfd.Normal(0.0, tf.nn.softplus(variable()))),
        ValueError,
        r"no trainable variables: .*TransformedVariable .*\(tf\.nn\.softplus\(variable\) is a constant\)",
    ),
    (
        "normal_on_positive",
        lambda: fit(one("positive"), tfd.Normal(variable(), 1.0)),
        ValueError,
        r"family: \d+ of 256 draws of latent 'z' fall outside its support 'positive', e\.g\. -",
    ),
    (
        "normal_on_interval",
        lambda: fit(one("unit_interval"), tfd.Normal(variable(), 1.0)),
        ValueError,
        r"\d+ of 256 draws of latent 'z' fall outside its support 'interval\(0, 1\)'",
    ),
    (
        "normal_on_simplex",
        lambda: fit(one("simplex", (3,)), normal_of([3])),
        ValueError,
        r"256 of 256 draws of latent 'z' fall outside its support 'simplex'",
    ),
    (
        "unsorted",
        lambda: fit(one("ordered", (3,)), normal_of([3])),
        ValueError,
        r"\d+ of 256 draws of latent 'z' fall outside its support 'ordered'",
    ),
    (
        "latent_not_covered",
        lambda: fit(two(), joint(mu=tfd.Normal(variable(), 1.0))),
        ValueError,
        r"family covers the latents \['mu'\], the target has \['mu', 'theta'\]: 'theta' is not covered",
    ),
    (
        "latent_too_many",
        lambda: fit(two(), joint(mu=normal_y(variable()), theta=normal_of([8]), zeta=normal_y(0.0))),
        ValueError,
        r"family covers .*'zeta'\], the target has \['mu', 'theta'\]: 'zeta' is one too many",
    ),
    (
        "latent_misspelt",
        lambda: fit(two(), joint(mu=normal_y(variable()), thta=normal_of([8]))),
        ValueError,
        r"'theta' is not covered; 'thta' is one too many",
    ),
    (
        "one_for_two",
        lambda: fit(two(), normal_of([8])),
        ValueError,
        r"family: Multiv.* one value.*latents \['mu', 'theta'\]",
    ),
    (
        "unnamed_parts",
        lambda: fit(two(), tfd.JointDistributionSequential([normal_y(variable()), normal_of([8])])),
        ValueError,
        r"family: the parts of a joint distribution used as q must have names",
    ),
    (
        "nested_q",
        lambda: fit(two(), joint(mu=normal_y(variable()), theta=joint(a=normal_y(0.0)))),
        TypeError,
        r"family: part 'theta' is itself a joint distribution",
    ),
    (
        "batched_part",
        lambda: fit(two(), joint(mu=normal_y(variable()), theta=normal_y(variable(np.zeros(8))))),
        ValueError,
        r"family: 'theta' has batch shape \[8\], wanted \[\]: wrap it in tfd\.Independent",
    ),
    (
        "batched_scalar_part",  # its event shape is right
        lambda: fit(
            bbsvi.Target(lambda a, b: a, {"a": (), "b": ()}), joint(a=normal_y(variable(np.zeros(8))), b=normal_y(0.0))
        ),
        ValueError,
        r"family: 'a' has batch shape \[8\], wanted \[\]",
    ),
    (
        "batched",
        lambda: fit(one(shape=(3,)), normal_y(variable(np.zeros(3)))),
        ValueError,
        r"family: 'Normal' has batch shape \[3\], wanted \[\]: wrap it in tfd\.Independent",
    ),
    (
        "shape",
        lambda: fit(one(shape=(3,)), normal_of([4])),
        ValueError,
        r"family: latent 'z' is float32 \[4\] in q and float32 \[3\] in the target",
    ),
    (
        "dtype",
        lambda: fit(family=tfd.Normal(tf.Variable(np.float64(0)), np.float64(1))),
        ValueError,
        r"family: latent 'z' is float64 \[\] in q and float32 \[\] in the target",
    ),
    (
        "negative_scale",
        lambda: fit(family=tfd.Normal(0.0, variable(-1.0))),
        FloatingPointError,
        r"log q is not finite for 64 of 64 draws of the initial q",
    ),
]


def score_function(control_variate):
    return estimators.ScoreFunction(control_variate=control_variate)


OPTIONS = [
    (
        "sample_size_0",
        lambda: fit(sample_size=0),
        ValueError,
        r"sample_size must be at least 2 \(LeaveOneOut .*, got 0",
    ),
    (
        "sample_size_1",
        lambda: fit(sample_size=1),
        ValueError,
        r"sample_size must be at least 2 \(LeaveOneOut .*, got 1",
    ),
    ("sample_size_true", lambda: fit(sample_size=True), TypeError, r"sample_size must be an integer, got True"),
    (
        "sample_size_float",
        lambda: fit(sample_size=8.0),
        TypeError,
        r"sample_size must be an integer, got 8\.0 \(float\)",
    ),
    ("sample_size_text", lambda: fit(sample_size="8"), TypeError, r"sample_size must be an integer, got '8' \(str\)"),
    (
        "sample_size_0_moving_average",
        lambda: fit(sample_size=0, estimator=score_function(control_variates.MovingAverage())),
        ValueError,
        r"sample_size must be at least 1, got 0",
    ),
    (
        "sample_size_below_folds",
        lambda: fit(sample_size=3, estimator=score_function(control_variates.OptimalCoefficients(folds=4))),
        ValueError,
        r"sample_size must be at least 4 \(OptimalCoefficients .*, got 3",
    ),
    ("num_steps_0", lambda: fit(num_steps=0), ValueError, r"num_steps must be at least 1, got 0"),
    ("num_steps_negative", lambda: fit(num_steps=-5), ValueError, r"num_steps must be at least 1, got -5"),
    ("num_steps_float", lambda: fit(num_steps=1e3), TypeError, r"num_steps must be an integer, got 1000\.0 \(float\)"),
    ("num_steps_true", lambda: fit(num_steps=True), TypeError, r"num_steps must be an integer, got True"),
    ("num_steps_none", lambda: fit(num_steps=None), TypeError, r"num_steps must be an integer, got None"),
    (
        "convergence_case",
        lambda: fit(convergence="Auto"),
        ValueError,
        r"convergence: unknown name 'Auto'.*mean 'auto'\?",
    ),
    ("convergence_true", lambda: fit(convergence=True), TypeError, r"convergence must be 'auto', None or .*got True"),
    ("convergence_class", lambda: fit(convergence=bbsvi.Convergence), TypeError, r"convergence must be .*got <class"),
    ("convergence_array", lambda: fit(convergence=np.zeros(3)), TypeError, r"convergence must be .*got array"),
    ("rhat", lambda: bbsvi.Convergence(rhat=1.0), ValueError, r"rhat must be above 1, got 1\.0"),
    ("rhat_nan", lambda: bbsvi.Convergence(rhat=np.nan), ValueError, r"rhat must be above 1, got nan"),
    ("tolerance", lambda: bbsvi.Convergence(tolerance=0), ValueError, r"tolerance must be above 0 nats, got 0"),
    ("tolerance_text", lambda: bbsvi.Convergence(tolerance="a"), TypeError, r"tolerance must be a number, got 'a'"),
    ("seed_float", lambda: fit(seed=1.0), TypeError, r"seed must be an int, got 1\.0 \(float\)"),
    ("seed_numpy_float", lambda: fit(seed=np.float64(1)), TypeError, r"seed must be an int, got .*1\.0.*\(float64\)"),
    ("seed_true", lambda: fit(seed=True), TypeError, r"seed must be an int, got True \(bool\)"),
    ("seed_pair", lambda: fit(seed=(0, 1)), TypeError, r"seed must be an int, got \(0, 1\) \(tuple\)"),
    ("seed_too_large", lambda: fit(seed=2**70), ValueError, r"seed must fit in 64 bits, got 1180591620717411303424"),
    ("jit_text", lambda: fit(jit_compile="yes"), ValueError, r"jit_compile must be True, False or 'auto', got 'yes'"),
    ("jit_none", lambda: fit(jit_compile=None), ValueError, r"jit_compile must be True, False or 'auto', got None"),
    ("jit_int", lambda: fit(jit_compile=1), ValueError, r"jit_compile must be True, False or 'auto', got 1"),
    ("jit_array", lambda: fit(jit_compile=np.zeros(3)), ValueError, r"jit_compile must be .*got array"),
    ("progress_bar", lambda: fit(progress_bar="no"), TypeError, r"progress_bar must be True or False, got 'no'"),
    (
        "callbacks_number",
        lambda: fit(callbacks=3),
        TypeError,
        r"callbacks must be .*functions of a bbsvi\.Progress, got 3",
    ),
    ("callbacks_none", lambda: fit(callbacks=None), TypeError, r"callbacks must be .*functions .*, got None"),
    (
        "callbacks_list",
        lambda: fit(callbacks=[3]),
        TypeError,
        r"callbacks must be functions of a bbsvi\.Progress, got 3",
    ),
    (
        "optimizer_class",
        lambda: fit(optimizer=keras.optimizers.Adam),
        TypeError,
        r"optimizer must be a keras.*write Adam\(\)",
    ),
    ("optimizer_text", lambda: fit(optimizer="adam"), TypeError, r"optimizer must be a keras\.optimizers.*got 'adam'"),
    ("optimizer_rate", lambda: fit(optimizer=0.1), TypeError, r"optimizer must be a keras\.optimizers.*got 0\.1"),
    (
        "optimizer_ema",
        lambda: fit(optimizer=keras.optimizers.Adam(use_ema=True)),
        ValueError,
        r"use_ema=True is not wanted",
    ),
    ("estimator_class", lambda: fit(estimator=estimators.ScoreFunction), TypeError, r"estimator must be .*got <class"),
    (
        "estimator_text",
        lambda: fit(estimator="score"),
        TypeError,
        r"estimator must be a bbsvi\.estimators.*got 'score'",
    ),
    (
        "estimator_other",
        lambda: fit(estimator=control_variates.LeaveOneOut()),
        TypeError,
        r"estimator must be .*LeaveOneOut",
    ),
    (
        "control_variate_text",
        lambda: score_function("loo"),
        ValueError,
        r"control_variate must be 'auto', None.*got 'loo'",
    ),
    (
        "control_variate_class",
        lambda: score_function(control_variates.LeaveOneOut),
        TypeError,
        r"write LeaveOneOut\(\)",
    ),
    ("decay", lambda: control_variates.MovingAverage(decay=1.0), ValueError, r"decay must lie in \[0, 1\), got 1\.0"),
    ("decay_text", lambda: control_variates.MovingAverage(decay="a"), TypeError, r"decay must be a number, got 'a'"),
    ("folds", lambda: control_variates.OptimalCoefficients(folds=1), ValueError, r"folds must be at least 2, got 1"),
    (
        "folds_true",
        lambda: control_variates.OptimalCoefficients(folds=True),
        TypeError,
        r"folds must be an integer, got Tr",
    ),
    ("example", lambda: load("eight_school"), ValueError, r"unknown name 'eight_school'.*mean 'eight_schools'\?"),
]


def scores():
    return bbsvi.DenseScores([tf.ones([4, 2]), tf.ones([4])])


def gradients(fn, samples=None, **options):
    return bbsvi.per_sample_gradients(fn, tf.ones([3, 2]) if samples is None else samples, **options)


SCORES = [
    (
        "too_few_weights",
        lambda: scores().weighted_sum(tf.ones(3)),
        ValueError,
        r"weights have shape \[3\], wanted \[4\]",
    ),
    ("column", lambda: scores().weighted_square_sum(tf.ones([4, 1])), ValueError, r"shape \[4, 1\], wanted \[4\]"),
    ("text", lambda: scores().weighted_sum(["a"] * 4), TypeError, r"weights must be numbers, got dtype string"),
    ("none", lambda: bbsvi.DenseScores([]), ValueError, r"scores want at least one array"),
    ("scalar", lambda: bbsvi.DenseScores([tf.ones([])]), ValueError, r"scores want at least one array, each \[S, "),
    (
        "sizes",
        lambda: bbsvi.DenseScores([tf.ones(3), tf.ones(4)]),
        ValueError,
        r"different numbers of draws: \['3', '4'\]",
    ),
    ("fn_vector", lambda: gradients(lambda x: x), ValueError, r"fn of one sample must .*scalar.*, got .*shape \(2,\)"),
    (
        "fn_integer",
        lambda: gradients(lambda x: tf.size(x)),
        ValueError,
        r"fn of one sample must return a scalar float.*int32",
    ),
    ("fn_none", lambda: gradients(lambda x: None), TypeError, r"fn of one sample must return a scalar .*got NoneType"),
    ("fn_number", lambda: gradients(3), TypeError, r"fn must be a function of one sample, got int"),
    ("no_sample_axis", lambda: gradients(lambda x: x, 1.0), ValueError, r"samples must all begin with one sample axis"),
    ("sample_axes", lambda: gradients(sum, (tf.ones(3), tf.ones(4))), ValueError, r"one sample axis.*\[\[3\], \[4\]\]"),
    ("integers", lambda: gradients(lambda x: x, np.arange(3)), TypeError, r"samples must be floats .*got \['int64'\]"),
    (
        "bare_variable",
        lambda: gradients(lambda x: x[0], variables=variable()),
        TypeError,
        r"variables must be None or a list",
    ),
    (
        "not_variables",
        lambda: gradients(lambda x: x[0], variables=[3.0]),
        TypeError,
        r"list of tf\.Variables, got \[3\.0\]",
    ),
    ("distribution", lambda: bbsvi.per_sample_scores(3, tf.ones(3)), TypeError, r"distribution must be .*got int"),
    (
        "untrainable",
        lambda: bbsvi.per_sample_scores(normal_y(0.0), tf.ones(3)),
        ValueError,
        r"has no trainable variables",
    ),
    (
        "batched",
        lambda: bbsvi.per_sample_scores(normal_y(variable(np.zeros(2))), tf.ones([3, 2])),
        ValueError,
        r"distribution has batch shape \[2\], wanted \[\]: wrap it in tfd\.Independent",
    ),
]


def posterior():
    return bbsvi.Posterior(two(), families.MeanField(two()), {"step": np.zeros(0)}, True, "", 0)


def log_q(**changed):
    values = {"mu": np.zeros(5), "theta": np.zeros((5, 8)), **changed}
    return posterior().log_prob({name: value for name, value in values.items() if value is not None})


POSTERIORS = [
    ("missing", lambda: log_q(theta=None), ValueError, r"values: latent 'theta' is missing; wanted \['mu', 'theta'\]"),
    ("extra", lambda: log_q(thta=0.0), ValueError, r"values: unknown name 'thta'.*mean 'theta'\?"),
    (
        "event_shape",
        lambda: log_q(theta=np.zeros((5, 7))),
        ValueError,
        r"values\['theta'\] .*\[5, 7\], wanted \[S, 8\]",
    ),
    ("no_sample_axis", lambda: log_q(mu=0.0), ValueError, r"values\['mu'\] has shape \[\], wanted \[S\]"),
    ("sizes", lambda: log_q(mu=np.zeros(4)), ValueError, r"different numbers of draws: \{'mu': 4, 'theta': 5\}"),
    ("list", lambda: posterior().log_prob([0.0]), TypeError, r"values must be a dict .*got list"),
    ("text", lambda: log_q(mu=["a"] * 5), TypeError, r"values\['mu'\] must be an array of numbers, got .*'a'"),
    ("ragged", lambda: log_q(mu=[[1], [1, 2]]), TypeError, r"values\['mu'\] must be an array of numbers"),
    ("sample_0", lambda: posterior().sample(0), ValueError, r"sample_size must be at least 1, got 0"),
    ("sample_float", lambda: posterior().sample(1.5), TypeError, r"sample_size must be an integer, got 1\.5"),
    ("sample_seed", lambda: posterior().sample(3, seed=1.0), TypeError, r"seed must be an int, got 1\.0"),
    ("elbo_of_1", lambda: posterior().elbo(1), ValueError, r"sample_size must be at least 2, got 1"),
    ("diagnose_of_10", lambda: posterior().diagnose(10), ValueError, r"sample_size must be at least 100, got 10"),
]

TABLES = {
    "data": DATA,
    "joint": JOINTS,
    "target": TARGETS,
    "support": SUPPORTS,
    "log_prob": [
        (name, lambda fn=fn: fit(two(fn), sample_size=8), builtin, pattern) for name, fn, builtin, pattern in LOG_PROBS
    ],
    "family": FAMILIES,
    "option": OPTIONS,
    "scores": SCORES,
    "posterior": POSTERIORS,
}


@pytest.mark.parametrize(
    ("call", "builtin", "pattern"),
    [pytest.param(*case, id=f"{table}-{name}") for table, cases in TABLES.items() for name, *case in cases],
)
def test_one_clear_error(call, builtin, pattern):
    with pytest.raises(bbsvi.BBSVIError) as caught:
        call()
    message = str(caught.value)
    assert isinstance(caught.value, builtin), type(caught.value)
    assert re.search(pattern, message), message
    assert "\n" not in message
    assert "function_node" not in message
    assert message[-1] in ".?)", message


def test_the_harness_notices_a_fit_that_goes_on():
    with pytest.raises(AssertionError, match="went on to compile"):
        fit()


def test_split_terms_are_named():
    target = bbsvi.Target(
        event_shape={"mu": ()},
        log_prior=lambda mu: -(mu**2),
        log_likelihood=lambda mu: tf.math.log(-tf.abs(mu))[:, None] * tf.ones(3),
    )
    with pytest.raises(bbsvi.NonFiniteError, match=r"term 'log_likelihood' is nan at draw 0: mu = -?\d"):
        fit(target)


def test_likelihood_with_its_axes_swapped():
    target = bbsvi.Target(
        event_shape={"mu": ()},
        log_prior=lambda mu: -(mu**2),
        log_likelihood=lambda mu: -((mu - tf.zeros([3])[:, None]) ** 2),  # [N, S], and N is the first S tried
    )
    with pytest.raises(bbsvi.InvalidValueError, match=r"log_likelihood returned shape \[3, 4\].*wanted \[4\] or"):
        fit(target)


def test_exceptions_of_the_model_are_kept():
    def log_prob(z):
        raise KeyError("rho")

    with pytest.raises(bbsvi.LogProbError) as caught:
        fit(one(log_prob=log_prob))
    assert isinstance(caught.value.__cause__, KeyError)


def test_exceptions_in_fn_are_the_users_own():
    def fn(x):
        raise KeyError("rho")

    with pytest.raises(KeyError, match="rho"):
        gradients(fn)


@pytest.mark.parametrize("seed", [-1, np.int64(3), 2**63, 0])
def test_good_seeds_get_as_far_as_compiling(seed):
    with pytest.raises(AssertionError, match="went on to compile"):
        fit(seed=seed)


@pytest.mark.parametrize("value", [list(range(8)), np.arange(8), np.ones(8, bool), [0.5] * 8])
def test_data_that_the_site_can_hold_is_taken(value):
    target = bbsvi.Target.from_joint(schools(), {"y": value})
    assert target.observed["y"].dtype == np.float32
    np.testing.assert_array_equal(target.observed["y"], np.asarray(value, np.float32))


def test_a_switch_between_two_sites_is_not_taken_for_forgotten_data():
    # z is a coin: half of all pairs of draws show no difference between its two faces.
    model = joint(
        mu=tfd.Normal(0.0, 1.0),
        z=lambda mu: tfd.Bernoulli(logits=mu),
        w=lambda z: tfd.Bernoulli(logits=tf.cast(z, tf.float32)),
        y=lambda w: tfd.Normal(tf.cast(w, tf.float32), 1.0),
    )
    assert list(bbsvi.Target.from_joint(model, {"y": 0.0}).latents) == ["mu", "z", "w"]


def test_latents_without_children_are_taken_when_said_outright():
    model = joint(mu=tfd.Normal(0.0, 1.0), y=lambda mu: tfd.Normal(mu, 1.0))
    assert sorted(bbsvi.Target.from_joint(model, {}).latents) == ["mu", "y"]
