"""Per-sample gradients, per-sample scores and their contractions."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import bbsvi

tfd = tfp.distributions


def test_gradient_at_every_sample_is_one_graph_call():
    x = tf.random.stateless_normal([100_000], [0, 1])
    compiled = tf.function(lambda x: bbsvi.per_sample_gradients(lambda v: v**2, x))
    np.testing.assert_array_equal(compiled(x), 2 * x)
    graph = compiled.get_concrete_function(x).graph
    names = [op.type for op in graph.get_operations()]
    names += [node.op for function in graph.as_graph_def().library.function for node in function.node_def]
    assert not [name for name in names if "While" in name or "Map" in name]


def test_gradient_by_samples_of_any_shape():
    x = tf.constant(np.random.default_rng(0).normal(size=(7, 3, 2)))
    found = bbsvi.per_sample_gradients(lambda v: tf.reduce_sum(tf.sin(v)) * v[0, 0], x)
    expected = np.cos(x) * x.numpy()[:, :1, :1]
    expected[:, 0, 0] += np.sin(x).sum(axis=(1, 2))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_gradient_by_variables_is_that_of_single_calls():
    a, b = tf.Variable([1.0, -2.0], dtype=tf.float64), tf.Variable(0.5, dtype=tf.float64)
    unused = tf.Variable([3.0], dtype=tf.float64)
    x = tf.constant(np.random.default_rng(1).normal(size=(9, 2)))

    def fn(v):
        return tf.reduce_sum(tf.sin(a * v)) * tf.exp(b * v[0])

    found = bbsvi.per_sample_gradients(fn, x, [a, b, unused])
    assert [g.shape.as_list() for g in found] == [[9, 2], [9], [9, 1]]
    for s in range(9):
        with tf.GradientTape() as tape:
            value = fn(x[s])
        da, db = tape.gradient(value, [a, b])
        np.testing.assert_allclose(found[0][s], da, rtol=1e-12)
        np.testing.assert_allclose(found[1][s], db, rtol=1e-12)
    assert not np.any(found[2])


def test_gradient_of_structured_samples():
    samples = {"k": tf.constant([0, 1, 1]), "x": tf.constant([1.0, 2.0, 3.0])}
    scale = tf.Variable([2.0, 5.0])
    (found,) = bbsvi.per_sample_gradients(lambda s: tf.gather(scale, s["k"]) * s["x"], samples, [scale])
    np.testing.assert_array_equal(found, [[1, 0], [0, 2], [0, 3]])


@pytest.fixture(scope="module")
def distribution():
    return tfd.JointDistributionNamed(
        {
            "x": tfd.MultivariateNormalDiag(
                tf.Variable([0.1, -0.2], dtype=tf.float64), tf.Variable([1.5, 0.5], dtype=tf.float64)
            ),
            "k": tfd.Categorical(logits=tf.Variable([0.1, 0.2, -0.5], dtype=tf.float64)),
        }
    )


def test_scores_of_any_tfp_distribution_are_the_jacobian(distribution):
    draws = distribution.sample(11, seed=[0, 1])
    scores = bbsvi.per_sample_scores(distribution, draws)
    # TFP remembers the inverse of its own draws, as if it did not depend on the parameters; copies it does not know.
    copies = tf.nest.map_structure(tf.identity, draws)
    with tf.GradientTape() as tape:
        log_q = distribution.log_prob(copies)
    expected = tape.jacobian(log_q, distribution.trainable_variables)
    for found, wanted in zip(scores.dense(), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)


def test_contractions_are_those_of_the_dense_scores():
    rng = np.random.default_rng(2)
    arrays = [rng.normal(size=(6, 4)), rng.normal(size=6), rng.normal(size=(6, 2, 3))]
    scores, w = bbsvi.DenseScores(arrays), rng.normal(size=6)
    flat = np.concatenate([a.reshape(6, -1) for a in arrays], axis=1)
    for power, found in ((1, scores.weighted_sum(w)), (2, scores.weighted_square_sum(w))):
        for part, array in zip(found, arrays, strict=True):
            np.testing.assert_allclose(part, np.einsum("s,s...->...", w, array**power), rtol=1e-12)
    np.testing.assert_allclose(scores.squared_norms(), (flat**2).sum(axis=1), rtol=1e-12)
    np.testing.assert_allclose(scores.gram(), flat @ flat.T, rtol=1e-12)


def test_scores_hold_the_draws_fixed():
    """Differentiating through the draw as well gives 0 and -1, whatever the draw."""
    loc, log_scale = tf.Variable(0.0), tf.Variable(np.log(2.0).astype(np.float32))
    q = tfd.Normal(loc, tfp.util.DeferredTensor(log_scale, tf.exp))
    with tf.GradientTape():
        draws = loc + tf.exp(log_scale) * tf.constant([-1.5, 0.0, 2.0])
        scores = bbsvi.per_sample_scores(q, draws)
    np.testing.assert_allclose(scores.dense()[0], [-0.75, 0.0, 1.0], atol=1e-6)
    np.testing.assert_allclose(scores.dense()[1], [1.25, -1.0, 3.0], atol=1e-6)
