"""Which scores a log density's graph yields factored, and that they are those of single draws, one by one."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import bbsvi
from bbsvi import per_sample, recording
from bbsvi import scores as scores_module
from bbsvi.recording import recorded_scores, tf_variables
from bbsvi.scores import DenseScores
from tests.scores_by_jacobian import assert_same, loops, one_by_one, operations

S = 5  # draws
F64 = {"dtype": "float64"}
DENSE = "dense"


def rng(seed=0):
    return np.random.default_rng(seed)


def normal(*shape, seed=0):
    return tf.constant(rng(seed).normal(size=shape))


def variable(*shape, seed=1):
    return tf.Variable(rng(seed).normal(size=shape))


def total(h):
    """A number for each draw, in which every element has a slope of its own."""
    return tf.reduce_sum(tf.sin(h), axis=list(range(1, h.shape.rank)))


def check(log_prob, samples, variables, kind):
    num_draws = tf.nest.flatten(samples)[0].shape[0]
    found = recorded_scores(log_prob, samples, variables)
    assert found.kind == tuple(kind)
    assert_same(found, one_by_one(log_prob, samples, variables), rng(9).normal(size=num_draws))
    return found


def stacked(layers, samples):
    """log q of a stack of layers, and their variables off their start, where biases are zero."""

    def log_prob(x):
        for layer in layers:
            x = layer(x)
        return total(x)

    log_prob(samples)
    variables = [v for layer in layers for v in layer.trainable_variables]
    for seed, v in enumerate(variables):
        v.assign(np.asarray(v) + 0.5 * rng(seed).normal(size=v.shape))
    return log_prob, variables


FLAT, SEQUENCE, IMAGE = normal(S, 3), normal(S, 4, 3), normal(S, 6, 5, 2)
IDS = tf.constant([[0, 1, 0], [2, 2, 2], [3, 1, 0], [1, 1, 3], [0, 3, 3]])

# name: (layers of a Keras, samples, kinds)
LAYERS = {
    "two dense": (
        lambda k: [k.Dense(4, activation="tanh", **F64), k.Dense(2, **F64)],
        FLAT,
        ["factored", DENSE, "factored", DENSE],
    ),
    "no bias": (lambda k: [k.Dense(4, use_bias=False, **F64)], FLAT, ["factored"]),
    "dense along a sequence": (lambda k: [k.Dense(4, activation="tanh", **F64)], SEQUENCE, ["shared", DENSE]),
    "dense after flattening": (lambda k: [k.Flatten(), k.Dense(2, **F64)], SEQUENCE, ["factored", DENSE]),
    "conv2d, same": (
        lambda k: [k.Conv2D(3, (2, 3), strides=(2, 1), padding="same", **F64)],
        IMAGE,
        ["shared", DENSE],
    ),
    "conv2d, valid": (lambda k: [k.Conv2D(3, 2, activation="tanh", **F64)], IMAGE, ["shared", DENSE]),
    "conv2d, dilated": (lambda k: [k.Conv2D(3, 2, dilation_rate=2, **F64)], IMAGE, [DENSE, DENSE]),
    "conv2d, by depth": (lambda k: [k.DepthwiseConv2D(2, **F64)], IMAGE, [DENSE, DENSE]),
    "conv2d, transposed": (lambda k: [k.Conv2DTranspose(2, 2, **F64)], IMAGE, [DENSE, DENSE]),
    "conv1d": (lambda k: [k.Conv1D(2, 2, **F64)], SEQUENCE, ["shared", DENSE]),
    "conv1d, causal": (lambda k: [k.Conv1D(2, 3, padding="causal", **F64)], SEQUENCE, ["shared", DENSE]),
    "image to dense": (
        lambda k: [k.Conv2D(2, 3, **F64), k.MaxPooling2D(2), k.Flatten(), k.Dense(2, **F64)],
        IMAGE,
        ["shared", DENSE, "factored", DENSE],
    ),
    "embedding": (
        lambda k: [k.Embedding(5, 3, **F64), k.Dense(2, **F64)],
        IDS,
        ["embedding", "shared", DENSE],
    ),
    "layer normalisation": (
        lambda k: [k.Dense(4, **F64), k.LayerNormalization(**F64), k.Dense(2, **F64)],
        FLAT,
        ["factored", DENSE, DENSE, DENSE, "factored", DENSE],
    ),
    "batch normalisation at its averages": (
        lambda k: [k.Dense(4, **F64), k.BatchNormalization(**F64)],
        FLAT,
        ["factored", DENSE, DENSE, DENSE],
    ),
    "recurrent, unrolled": (lambda k: [k.GRU(2, unroll=True, **F64)], SEQUENCE, ["shared", "shared", DENSE]),
}


@pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras", "tf_keras"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_have_the_scores_of_single_draws(name, library):
    layers, samples, kind = LAYERS[name]
    log_prob, variables = stacked(layers(library.layers), samples)
    check(log_prob, samples, variables, kind)


@pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_a_layer_called_twice_has_one_score(library):
    layer = library.layers.Dense(3, activation="tanh", **F64)
    _, variables = stacked([layer], FLAT)
    check(lambda z: total(layer(layer(z)) + layer(0.3 * z)), FLAT, variables, ["shared", DENSE])


@pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_a_table_looked_up_twice_has_one_score(library):
    layer = library.layers.Embedding(5, 2, **F64)
    _, variables = stacked([layer], IDS)
    check(lambda z: total(layer(z)[:, 0] * layer(z[:, ::-1])[:, 0] + layer(z[:, 1])), IDS, variables, ["embedding"])


def test_attention_goes_by_vectorized_map():
    layer = keras.layers.MultiHeadAttention(2, 2, **F64)
    layer(SEQUENCE, SEQUENCE)
    check(lambda z: total(layer(z, z)), SEQUENCE, layer.trainable_variables, [DENSE] * 8)


W, T, SQUARE, B, C = variable(3, 4), variable(4, 3), variable(3, 3), variable(4), tf.Variable(0.3, dtype="float64")
MASK = tf.constant([[1.0, 0, 1, 0], [0, 1, 1, 0], [1, 0, 0, 1]], tf.float64)
DATA = normal(S, 3, seed=5)


@tf.custom_gradient
def doubled(x, w):
    """Says that its gradient by w is twice what it is, which the matrix product alone does not know."""
    return x @ w, lambda upstream: (upstream @ tf.transpose(w), 2 * tf.transpose(x) @ upstream)


recomputed = tf.recompute_grad(lambda z: tf.tanh(z @ W))
nested = tf.function(lambda z: z @ W, autograph=False)

# name: (log q of FLAT, variables, kinds)
BY_HAND = {
    "masked": (lambda z: total(bbsvi.factored.linear(z, W, B, MASK)), [W, B], ["factored", DENSE]),
    "masked twice alike": (lambda z: total(z @ (W * MASK) + tf.tanh(z) @ (MASK * W)), [W], ["shared"]),
    "masked twice otherwise": (lambda z: total(z @ (W * MASK) + tf.tanh(z) @ (W * (1 - MASK))), [W], [DENSE]),
    "masked by rows": (lambda z: total(z @ (W * MASK[:, :1])), [W], ["factored"]),
    "masked and turned": (lambda z: total(tf.matmul(z, T * tf.transpose(MASK), transpose_b=True)), [T], ["factored"]),
    "scaled by another": (lambda z: total(z @ (W * tf.exp(B))), [W, B], ["factored", DENSE]),
    "normalised": (lambda z: total(z @ (B * W / tf.norm(W, axis=0))), [W, B], [DENSE, DENSE]),
    "tied": (lambda z: total(tf.matmul(tf.tanh(z @ W), W, transpose_b=True)), [W], ["shared"]),
    "tied by transposing": (lambda z: total(tf.tanh(z @ W) @ tf.transpose(W)), [W], [DENSE]),
    "squared": (lambda z: total(z @ (SQUARE * SQUARE)), [SQUARE], [DENSE]),
    "through exp": (lambda z: total(z @ tf.exp(W)), [W], [DENSE]),
    "by einsum": (lambda z: total(tf.einsum("si,io->so", z, W)), [W], [DENSE]),
    "reshaped": (lambda z: total(z @ tf.reshape(T, [3, 4])), [T], ["factored"]),
    "also in a penalty": (lambda z: total(z @ W + B) - tf.reduce_sum(W**2), [W, B], [DENSE, DENSE]),
    "also added": (lambda z: total(z @ W) + total(z[:, :, None] + W), [W], [DENSE]),
    "kernel held fixed": (lambda z: total(z @ tf.stop_gradient(W) + B), [W, B], ["zero", DENSE]),
    "output held fixed": (lambda z: total(tf.stop_gradient(z @ W) + B), [W, B], ["factored", DENSE]),
    "a gradient of its own": (lambda z: total(doubled(z, W)), [W], [DENSE]),
    "recomputed": (lambda z: total(recomputed(z)), [W], [DENSE]),
    "inside a function": (lambda z: total(nested(z)), [W], [DENSE]),
    "a bias taken away": (lambda z: total(z @ W - B), [W, B], ["factored", DENSE]),
    "not touched": (lambda z: total(z @ W), [T, W, C], ["zero", "factored", "zero"]),
    "nothing touched": (lambda z: total(z), [T, C], ["zero", "zero"]),
    # The data are as many as the draws, and every draw sees all of them.
    "data alone": (
        lambda z: tf.reduce_sum(tf.sin(DATA @ W + B)) * total(z @ SQUARE),
        [W, B, SQUARE],
        [DENSE, DENSE, "factored"],
    ),
    "data and draws": (lambda z: tf.reduce_sum(tf.sin(DATA @ W)) * total(z) + total(z @ W), [W], [DENSE]),
    "every pair of them": (lambda z: total(tf.sin(DATA @ W)[None] * tf.cos(z @ W)[:, None]), [W], [DENSE]),
    "a table of positions": (lambda z: total(z[:, :, None] + tf.gather(T, range(3))), [T], [DENSE]),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_handwritten_layers_have_the_scores_of_single_draws(name):
    log_prob, variables, kind = BY_HAND[name]
    check(log_prob, FLAT, variables, kind)


def test_a_plain_convolution_is_taken_apart():
    kernel, bias = variable(2, 2, 2, 3), variable(3)
    check(lambda z: total(tf.nn.conv2d(z, kernel, [1, 2], "SAME") + bias), IMAGE, [bias, kernel], [DENSE, "shared"])


@pytest.mark.parametrize(
    "options", [{"padding": "VALID", "dilations": 2}, {"padding": [[0, 0], [2, 0], [0, 1], [0, 0]]}]
)
def test_other_convolutions_are_left_to_vectorized_map(monkeypatch, options):
    """Which is not run: on a CPU TensorFlow has no gradient for the first, and no batched one for the second."""
    kernel, bias, left = variable(2, 2, 2, 3), variable(3), []

    def mapped(_log_prob, _samples, variables):
        left.extend(variables)
        return DenseScores([tf.zeros([S, *v.shape], v.dtype) for v in variables])

    monkeypatch.setattr(recording, "mapped_scores", mapped)
    recorded_scores(lambda z: total(tf.nn.conv2d(z, kernel, 1, **options) + bias), IMAGE, [bias, kernel])
    assert [v.ref() for v in left] == [kernel.ref()]


def test_biases_of_every_shape_need_no_vectorized_map(monkeypatch):
    row, block = variable(1, 3), variable(2, 1, 4)

    def log_prob(z):
        return total((z @ W + B + C)[:, None, None] + block) + total(row + z) + total(tf.nn.bias_add(z @ W, B))

    expected = one_by_one(log_prob, FLAT, [C, block, B, row, W])
    monkeypatch.delattr(recording, "mapped_scores")
    found = recorded_scores(log_prob, FLAT, [C, block, B, row, W])
    assert found.kind == (DENSE, DENSE, DENSE, DENSE, "shared")
    assert_same(found, expected, rng(9).normal(size=S))


@pytest.mark.parametrize("turned", [[1, 0, 2], [0, 1, 2]])
def test_positions_before_draws_are_not_taken_for_draws(turned):
    """Of five positions and five draws only the shapes at six draws tell them apart."""
    x = normal(S, S, 3)

    def log_prob(z):
        rows = tf.reshape(tf.reshape(tf.transpose(z, turned), [-1, 3]) @ W, [*tf.transpose(z, turned).shape[:2], 4])
        return total(tf.transpose(rows, turned))

    check(log_prob, x, [W], [DENSE if turned[0] else "shared"])


def test_a_single_draw_of_a_structure():
    samples = {"k": IDS[:1], "x": FLAT[:1]}
    check(
        lambda z: total(tf.gather(T, z["k"])) + total(z["x"] @ W + B),
        samples,
        [B, T, W],
        [DENSE, "embedding", "factored"],
    )


def test_tables_are_read_by_every_lookup():
    table = variable(4, 2, 3)
    lookups = {
        "gather": lambda ids: tf.gather(table, ids),
        "lookup": lambda ids: tf.nn.embedding_lookup(table, ids),
        "value": lambda ids: tf.gather(tf.convert_to_tensor(table), ids),
    }
    for lookup in lookups.values():
        check(lambda z, lookup=lookup: total(lookup(z)), IDS, [table], ["embedding"])
    check(lambda z: total(tf.gather(W, z, axis=1)[0]), IDS, [W], [DENSE])


def every_contraction(scores, w, v):
    moments = [*scores.weighted_sum(w), *scores.weighted_square_sum(w)]
    return [*moments, scores.squared_norms(), scores.gram(), scores.matvec(v)]


@pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_a_network_of_100_000_weights_is_never_held_for_every_draw(library):
    draws, units = 256, 400
    x, w = normal(draws, 248), rng().normal(size=draws)
    layers = [library.layers.Dense(units, activation="tanh", **F64), library.layers.Dense(1, **F64)]
    log_prob, variables = stacked(layers, x)
    assert sum(math.prod(v.shape) for v in variables) == 100_001
    v = [rng(index).normal(size=v.shape) for index, v in enumerate(variables)]

    def contracted(x):
        scores = recorded_scores(log_prob, x, variables)
        assert scores.kind == ("factored", DENSE, "factored", DENSE)
        return every_contraction(scores, w, v)

    compiled = tf.function(contracted, autograph=False).get_concrete_function(x)
    assert max(operations(compiled.graph)[1]) < 2 * 100_000
    assert not loops(compiled.graph)
    # What is looked for would be seen.
    dense = tf.function(lambda x: recorded_scores(log_prob, x, variables).dense(), autograph=False)
    assert max(operations(dense.get_concrete_function(x).graph)[1]) == draws * 248 * units
    found = compiled(x)
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(w * log_prob(x))
    for a, b in zip(found, tape.gradient(value, tf_variables(variables))):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)
    assert np.isfinite(np.concatenate([np.ravel(part) for part in found])).all()


@pytest.mark.parametrize("name", ["two dense", "dense along a sequence", "conv2d, same", "embedding"])
def test_factored_scores_take_no_loops(name):
    layers, samples, _ = LAYERS[name]
    log_prob, variables = stacked(layers(keras.layers), samples)
    w, v = np.ones(S), [np.ones(v.shape) for v in variables]
    compiled = tf.function(lambda x: every_contraction(recorded_scores(log_prob, x, variables), w, v), autograph=False)
    assert not loops(compiled.get_concrete_function(samples).graph)


def test_variables_beside_layers_are_streamed_where_there_are_many(monkeypatch):
    for module in (per_sample, scores_module):
        monkeypatch.setattr(module, "CHUNK_NUMBERS", 25)
    found = check(lambda z: total(z @ W) + total(z @ tf.exp(SQUARE)), FLAT, [SQUARE, W], ["streamed", "factored"])
    assert found.shapes == [SQUARE.shape, W.shape]


@pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_batch_normalisation_in_training_is_refused(library):
    first, norm = library.layers.Dense(4, **F64), library.layers.BatchNormalization(**F64)
    _, variables = stacked([first, norm], FLAT)
    with pytest.raises(bbsvi.InvalidValueError, match=r"log q mixes the draws: draw \d has .* Batch normalisation"):
        recorded_scores(lambda z: total(norm(first(z), training=True)), FLAT, variables)


def test_a_log_density_of_the_wrong_shape_is_refused():
    for log_prob, shape in ((lambda z: tf.reduce_sum(z @ W), r"\[\]"), (lambda z: z @ W, r"\[6, 4\]")):
        with pytest.raises(bbsvi.InvalidValueError, match=rf"log q of 6 draws must have shape \[6\], got {shape}"):
            recorded_scores(log_prob, FLAT, [W])
    with pytest.raises(bbsvi.InvalidValueError, match=r"log q of 1 draw must have shape \[1\], got \[1, 3\]"):
        recorded_scores(lambda z: z * C, FLAT, [C])
