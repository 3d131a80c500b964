"""Amortised inference: scores through an encoder, an exactly known posterior, and encoders that do not fit."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
import tf_keras
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import bbsvi
from bbsvi.factored import linear
from bbsvi.families import Amortized
from bbsvi.families.amortized import EncoderScores
from tests.scores_by_jacobian import assert_same, jacobian, loops, shaken, zero_target

SEED = tf.constant([3, 4])
N = 5
ROWS = np.random.default_rng(0).normal(size=(N, 3))


def dense_encoder(library, num_outputs, dtype="float64", num_inputs=3):
    layers = [library.layers.Dense(4, "tanh", dtype=dtype), library.layers.Dense(num_outputs, dtype=dtype)]
    return library.Sequential([library.Input((num_inputs,), dtype=dtype), *layers])


def amortized(shape, library=keras, support="real", num_outputs=None, seed=0):
    """q over z, [N, *shape], by a network on ROWS, at random weights."""
    target = zero_target({"z": (N, *shape)}, {"z": support})
    num_outputs = 2 * int(np.prod(shape)) if num_outputs is None else num_outputs
    return shaken(Amortized(target, encoder=dense_encoder(library, num_outputs), inputs=ROWS), seed)


@pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras", "tf_keras"])
@pytest.mark.parametrize(
    ("support", "shape", "num_outputs"),
    [("real", (2,), 4), ("positive", (), 2), ("binary", (3,), 3), (("categorical", 4), (2,), 8), ("count", (), 1)],
    ids=["real", "positive", "binary", "categorical", "count"],
)
def test_contractions_are_those_of_the_dense_jacobian(library, support, shape, num_outputs):
    family = amortized(shape, library, support, num_outputs)
    draws = family.sample(6, SEED)
    scores = family.scores(draws)
    assert scores.kind == ("encoder",) * 4
    assert_same(scores, jacobian(family, draws), np.random.default_rng(0).normal(size=6))


@settings(max_examples=8, deadline=None)
@given(width=st.integers(1, 4), num_draws=st.integers(1, 6), seed=st.integers(0, 10_000))
def test_contractions_of_any_size(width, num_draws, seed):
    family = amortized((width,), seed=seed)
    draws = family.sample(num_draws, tf.constant([seed, 1]))
    assert_same(family.scores(draws), jacobian(family, draws), np.random.default_rng(seed).normal(size=num_draws))


def test_the_first_moment_is_one_backward_pass_whatever_the_number_of_draws():
    def operations(num_draws):
        family = amortized((2,))

        @tf.function(autograph=False)
        def moment(z, w):
            return family.scores(family.draws_at({"z": z})).weighted_sum(w)

        z, w = tf.TensorSpec([num_draws, N, 2], tf.float64), tf.TensorSpec([num_draws], tf.float64)
        graph = moment.get_concrete_function(z, w).graph
        shapes = [tuple(x.shape.as_list()) for op in graph.get_operations() for x in op.outputs if x.shape.rank]
        assert not loops(graph)
        assert not any(shape[0] == num_draws and shape[1:] in ((3, 4), (4, 4)) for shape in shapes)
        return sum(op.type == "MatMul" for op in graph.get_operations())

    assert operations(7) == operations(700) < 12


def test_latents_of_several_kinds_some_by_the_encoder():
    class Encoder(tf.Module):
        def __init__(self):
            super().__init__()
            self.kernel = tf.Variable(np.full((3, 6), 0.1), name="kernel")
            self.unused = tf.Variable([1.0, 2.0], dtype=tf.float64, name="unused")

        def __call__(self, x):
            output = linear(x, self.kernel)
            return {"z": output[:, :4], "a": tf.reduce_sum(output[:, 4:], axis=0)}

    target = zero_target({"b": (2,), "a": (), "z": (N, 2)}, {"b": "binary", "a": "positive"})
    family = shaken(Amortized(target, encoder=Encoder(), inputs=ROWS))
    draws = family.sample(6, SEED)
    assert draws.value["a"].shape == [6]
    assert draws.value["z"].shape == [6, N, 2]
    scores = family.scores(draws)
    assert scores.kind == ("encoder", "zero", "dense")
    assert_same(scores, jacobian(family, draws), np.random.default_rng(0).normal(size=6))
    encoded, bernoulli = family.factors
    values = encoded._encoder(tf.constant(ROWS))
    loc, log_scale = np.split(values["z"].numpy(), 2, axis=1)
    wanted = stats.norm.logpdf(draws.base["z"], loc, np.exp(log_scale)).sum(axis=(1, 2))
    loc, log_scale = values["a"].numpy()
    wanted += stats.norm.logpdf(draws.base["a"], loc, np.exp(log_scale)) - draws.log_det["a"]
    np.testing.assert_allclose(family.log_prob(draws), wanted + bernoulli.log_prob(draws.base), rtol=1e-10)
    assert family.learning_rate == 0.001


def regression(num_rows=20):
    """z_n ~ N(0, 1), x_n ~ N(2 z_n, 0.5^2): (target, x, log evidence). z_n | x_n ~ N(2 x_n / 4.25, 0.25 / 4.25)."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(num_rows, 1)) * np.sqrt(4.25)

    def log_prob(z):
        log_z = tf.reduce_sum(-0.5 * z**2 - 0.5 * np.log(2 * np.pi), axis=[1, 2])
        return log_z + tf.reduce_sum(-0.5 * ((x - 2 * z) / 0.5) ** 2 - np.log(0.5 * np.sqrt(2 * np.pi)), axis=[1, 2])

    target = bbsvi.Target(log_prob, event_shape=(num_rows, 1), dtype="float64")
    return target, x, stats.norm.logpdf(x, scale=np.sqrt(4.25)).sum()


def test_an_encoder_that_can_finds_the_exact_posterior():
    target, x, log_evidence = regression()
    layer = keras.layers.Dense(2, kernel_initializer="zeros", dtype="float64")
    family = Amortized(target, encoder=keras.Sequential([keras.Input((1,)), layer]), inputs=x)
    options = {"num_steps": 1_500, "sample_size": 64, "convergence": None, "progress_bar": False, "seed": 0}
    posterior = bbsvi.fit(target, family, optimizer=keras.optimizers.Adam(0.02), **options)
    assert abs(posterior.elbo().value - log_evidence) < 0.01
    new = np.array([[-1.0], [0.5], [3.0]])
    at = posterior.family.at(new)["z"]
    assert at.batch_shape == [3]
    np.testing.assert_allclose(at.mean(), 2 * new / 4.25, atol=0.02)
    np.testing.assert_allclose(at.stddev(), np.full((3, 1), np.sqrt(0.25 / 4.25)), atol=0.01)


def test_the_inputs_are_the_observed_values_by_default():
    tfd = tfp.distributions
    joint = tfd.JointDistributionNamed(
        {
            "z": tfd.Sample(tfd.Exponential(np.float64(1)), N),
            "x": lambda z: tfd.Independent(tfd.Normal(z[..., None], tf.ones([3], tf.float64)), 2),
        }
    )
    target = bbsvi.Target.from_joint(joint, {"x": ROWS})
    encoder = dense_encoder(keras, 2)
    default, given = Amortized(target, encoder=encoder), Amortized(target, encoder=encoder, inputs=ROWS)
    z = default.sample(4, SEED).value["z"]
    np.testing.assert_array_equal(z, given.sample(4, SEED).value["z"])
    assert (z.numpy() > 0).all()
    at = default.at(ROWS[:2])["z"]
    assert at.batch_shape == [2]
    draw = default.draws_at({"z": z})
    np.testing.assert_allclose(np.sum(default.at(ROWS)["z"].log_prob(z), axis=1), default.log_prob(draw), rtol=1e-10)


def test_a_saved_fit_is_loaded_around_the_same_encoder(tmp_path):
    target, x, _ = regression(4)
    family = Amortized(target, encoder=dense_encoder(keras, 2, num_inputs=1), inputs=x)
    posterior = bbsvi.fit(target, family, num_steps=20, convergence=None, progress_bar=False, seed=0)
    posterior.save(tmp_path / "fit.npz")
    z = posterior.sample(3)
    again = Amortized(target, encoder=dense_encoder(keras, 2, num_inputs=1), inputs=x)
    loaded = bbsvi.load(tmp_path / "fit.npz", target, family=again)
    np.testing.assert_allclose(loaded.log_prob(z), posterior.log_prob(z), rtol=1e-12)
    with pytest.raises(bbsvi.BBSVIError, match="pass family="):
        bbsvi.load(tmp_path / "fit.npz", target)


def named(outputs):
    """An encoder that returns `outputs` of the right number of columns, with something to train."""

    class Encoder(tf.Module):
        def __init__(self):
            super().__init__()
            self.shift = tf.Variable(0.0, dtype=tf.float64)

        def __call__(self, x):
            return outputs(tf.zeros([x.shape[0], 2], tf.float64) + self.shift)

    return Encoder()


BAD = {
    "not callable": ("a network", bbsvi.InvalidTypeError, "encoder must be a Keras model"),
    "a class": (keras.Sequential, bbsvi.InvalidTypeError, "encoder must be a Keras model"),
    "too many columns": (dense_encoder(keras, 3), bbsvi.InvalidValueError, r"shape \[5, 3\] for latent 'z', wanted"),
    "one row": (named(lambda y: y[:1]), bbsvi.InvalidValueError, r"shape \[1, 2\] for latent 'z', wanted \[5, 2\]"),
    "float32": (dense_encoder(keras, 2, "float32"), bbsvi.InvalidTypeError, "must return float64 tensors"),
    "no tensor": (named(lambda y: y.shape), bbsvi.InvalidTypeError, "for latent 'z' it returned TensorShape"),
    "another latent": (named(lambda y: {"zz": y}), bbsvi.InvalidValueError, "'zz'"),
    "no latent": (named(lambda _: {}), bbsvi.InvalidValueError, "returned no latent"),
    "nothing to train": (lambda x: x[:, :2], bbsvi.InvalidValueError, "has no trainable_variables"),
    "other inputs": (dense_encoder(keras, 2, num_inputs=7), bbsvi.InvalidValueError, r"inputs float64 \[5, 3\]"),
}


@pytest.mark.parametrize(("encoder", "error", "match"), BAD.values(), ids=BAD.keys())
def test_encoders_that_do_not_fit_are_refused(encoder, error, match):
    with pytest.raises(error, match=match):
        Amortized(zero_target({"z": (N,)}), encoder=encoder, inputs=ROWS)


def test_inputs_and_several_latents_must_be_said():
    with pytest.raises(bbsvi.InvalidValueError, match="inputs: the target has no observed values"):
        Amortized(zero_target({"z": (N,)}), encoder=dense_encoder(keras, 2))
    with pytest.raises(bbsvi.InvalidTypeError, match=r"must return a dict.*\['a', 'z'\]"):
        Amortized(zero_target({"a": (), "z": (N,)}), encoder=dense_encoder(keras, 2), inputs=ROWS)
    with pytest.raises(bbsvi.InvalidTypeError, match=r"target must be a bbsvi\.Target"):
        Amortized("z", encoder=dense_encoder(keras, 2))


def test_weights_and_directions_of_wrong_shapes_are_refused():
    family = amortized((2,))
    scores = family.factors[0].scores(family.sample(6, SEED).base)
    assert isinstance(scores, EncoderScores)
    for name in ("weighted_sum", "weighted_square_sum"):
        with pytest.raises(bbsvi.InvalidValueError, match=r"weights have shape \[5\], wanted \[6\]"):
            getattr(scores, name)(np.ones(5))
    with pytest.raises(bbsvi.InvalidValueError, match="v has shapes"):
        scores.matvec([np.ones(2)] * 4)
