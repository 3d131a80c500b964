"""Factored scores of linear layers are the dense ones, contraction by contraction."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import bbsvi
from bbsvi.factored import factored_scores, linear
from bbsvi.scores import DenseScores

SIZES = st.integers(1, 5)


def network(seed, sizes, *, masked, calls):
    """log q [S] of a net whose middle layer is called `calls` times, its variables, and the number of draws."""
    rng = np.random.default_rng(seed)
    num_draws, inputs, hidden, outputs = sizes
    x = tf.constant(rng.normal(size=(num_draws, inputs)))
    shapes = [(inputs, hidden), (hidden, hidden), (hidden, outputs)]
    kernels = [tf.Variable(rng.normal(size=shape), name=f"kernel_{i}") for i, shape in enumerate(shapes)]
    biases = [tf.Variable(rng.normal(size=shape[1]), name=f"bias_{i}") for i, shape in enumerate(shapes)]
    masks = [tf.constant(rng.integers(0, 2, size=shape).astype(float)) if masked else None for shape in shapes]

    def log_q():
        layer = tf.tanh(linear(x, kernels[0], biases[0], masks[0]))
        for _ in range(calls):
            layer = tf.tanh(linear(layer, kernels[1], biases[1], masks[1]))
        return tf.reduce_sum(tf.sin(linear(layer, kernels[2], biases[2], masks[2])), axis=1)

    return log_q, [v for pair in zip(kernels, biases) for v in pair], rng.normal(size=num_draws)


def dense(log_q, variables):
    with tf.GradientTape() as tape:
        value = log_q()
    return DenseScores(tape.jacobian(value, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO))


def assert_same(found, expected, w):
    for name, arguments in (("weighted_sum", (w,)), ("weighted_square_sum", (w,)), ("dense", ())):
        for a, b in zip(getattr(found, name)(*arguments), getattr(expected, name)(*arguments), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-11, err_msg=name)
    for name in ("squared_norms", "gram"):
        np.testing.assert_allclose(
            getattr(found, name)(), getattr(expected, name)(), rtol=1e-10, atol=1e-11, err_msg=name
        )


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    sizes=st.tuples(SIZES, SIZES, SIZES, SIZES),
    masked=st.booleans(),
    calls=st.integers(1, 3),
)
def test_every_contraction_is_the_dense_one(seed, sizes, masked, calls):
    log_q, variables, w = network(seed, sizes, masked=masked, calls=calls)
    assert_same(factored_scores(log_q, variables), dense(log_q, variables), w)


def test_second_moment_of_a_reused_layer_has_its_cross_terms(monkeypatch):
    """The sum of the squares of each call is another number; in chunks of draws it is the same."""
    monkeypatch.setattr("bbsvi.factored._CHUNK_NUMBERS", 2 * 3 * 3)
    log_q, variables, w = network(1, (7, 2, 3, 2), masked=False, calls=2)
    found, expected = factored_scores(log_q, variables), dense(log_q, variables)
    assert_same(found, expected, w)
    part = found._parts[2]  # the kernel of the layer that is called twice
    naive = tf.einsum("s,sti,sto->io", w, part.activation**2, part.delta**2)
    assert np.abs(naive - expected.weighted_square_sum(w)[2]).max() > 0.01


def test_one_graph_without_loops_over_draws():
    log_q, variables, w = network(2, (50, 4, 6, 3), masked=False, calls=1)
    traced = tf.function(lambda: factored_scores(log_q, variables).weighted_square_sum(w)).get_concrete_function()
    assert not [op.type for op in traced.graph.get_operations() if "While" in op.type or "Map" in op.type]


def test_outside_a_recording_a_linear_layer_is_a_matrix_product():
    x, kernel, bias = tf.ones([2, 3]), tf.Variable(tf.ones([3, 4])), tf.Variable(tf.ones([4]))
    np.testing.assert_array_equal(linear(x, kernel, bias), np.full((2, 4), 4.0))


def test_a_variable_in_no_linear_layer_is_refused():
    log_q, variables, _ = network(3, (4, 2, 2, 2), masked=False, calls=1)
    extra = tf.Variable(1.0, name="temperature", dtype=tf.float64)
    with pytest.raises(bbsvi.InvalidValueError, match=r"variables \['.*temperature.*'\] are the kernel or bias of no"):
        factored_scores(lambda: log_q() * extra, [*variables, extra])


def test_a_log_density_without_the_sample_axis_is_refused():
    log_q, variables, _ = network(3, (4, 2, 2, 2), masked=False, calls=1)
    with pytest.raises(bbsvi.InvalidValueError, match=r"must have shape \[S\], got \[\]"):
        factored_scores(lambda: tf.reduce_sum(log_q()), variables)


def test_weights_of_the_wrong_length_are_refused():
    log_q, variables, _ = network(3, (4, 2, 2, 2), masked=False, calls=1)
    with pytest.raises(bbsvi.InvalidValueError, match=r"weights have shape \[3\], wanted \[4\]"):
        factored_scores(log_q, variables).weighted_sum(tf.ones(3))
