"""Scores kept as activations and deltas: each contraction is that of the outer products written out."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import bbsvi
from bbsvi import scores as scores_module
from bbsvi.factored import EmbeddingScores, KernelScores, linear, patches
from bbsvi.scores import DenseScores
from tests.scores_by_jacobian import assert_same

SMALL = st.integers(1, 5)
SEEDS = st.integers(0, 10_000)


def kernel(draws, positions, inputs, outputs, *, mask=False, shape=None, seed=0):
    """KernelScores of random numbers, and the same scores by an outer product for each draw and position."""
    rng = np.random.default_rng(seed)
    a, delta = rng.normal(size=(draws, positions, inputs)), rng.normal(size=(draws, positions, outputs))
    m = rng.integers(0, 2, size=(inputs, outputs)) * rng.normal(size=(inputs, outputs)) if mask else None
    dense = np.zeros((draws, inputs, outputs))
    for s in range(draws):
        for t in range(positions):
            dense[s] += np.outer(a[s, t], delta[s, t])
    dense = dense if m is None else dense * m
    found = KernelScores(tf.constant(a), tf.constant(delta), shape, m if m is None else tf.constant(m))
    return found, DenseScores([dense.reshape(draws, *(shape or (inputs, outputs)))])


def embedding(ids, num_rows, row=(3,), seed=0):
    """EmbeddingScores at the given ids, and the same scores by adding row after row."""
    ids = np.asarray(ids)
    delta = np.random.default_rng(seed).normal(size=(*ids.shape, *row))
    dense = np.zeros((ids.shape[0], num_rows, *row))
    for s, t in np.ndindex(*ids.shape):
        dense[s, ids[s, t]] += delta[s, t]
    return EmbeddingScores(tf.constant(ids), tf.constant(delta), num_rows), DenseScores([dense])


def weights(draws, seed=0):
    return np.random.default_rng([seed, 1]).normal(size=draws)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(draws=SMALL, positions=SMALL, inputs=SMALL, outputs=SMALL, mask=st.booleans(), seed=SEEDS)
def test_a_kernels_contractions_are_the_dense_ones(draws, positions, inputs, outputs, mask, seed):
    found, expected = kernel(draws, positions, inputs, outputs, mask=mask, seed=seed)
    assert found.kind == (("shared",) if positions > 1 else ("factored",))
    assert_same(found, expected, weights(draws, seed))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(sides=st.tuples(SMALL, SMALL, SMALL, SMALL), positions=SMALL, mask=st.booleans(), seed=SEEDS)
def test_a_kernel_keeps_the_shape_of_its_variable(sides, positions, mask, seed):
    """As a convolution's [height, width, channels, outputs]."""
    inputs, outputs = sides[0] * sides[1] * sides[2], sides[3]
    found, expected = kernel(4, positions, inputs, outputs, mask=mask, shape=sides, seed=seed)
    assert found.shapes == [tf.TensorShape(sides)]
    assert_same(found, expected, weights(4, seed))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(draws=SMALL, positions=SMALL, num_rows=SMALL, row=st.lists(SMALL, max_size=2), seed=SEEDS)
def test_an_embeddings_contractions_are_the_dense_ones(draws, positions, num_rows, row, seed):
    ids = np.random.default_rng([seed, 2]).integers(0, num_rows, size=(draws, positions))
    found, expected = embedding(ids, num_rows, tuple(row), seed)
    assert found.kind == ("embedding",)
    assert_same(found, expected, weights(draws, seed))


@pytest.mark.parametrize(
    "ids",
    [[[0, 0, 0], [2, 2, 2]], [[0, 1, 0], [1, 0, 0]], [[0, 1, 2], [2, 1, 0]], [[2, 0, 2], [1, 1, 3]]],
    ids=["one row only", "first and last", "none twice", "some"],
)
def test_a_row_looked_up_again_is_summed_before_it_is_squared(ids):
    found, expected = embedding(ids, 4)
    assert_same(found, expected, weights(2))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_an_embedding_takes_ids_of_either_width(dtype):
    found, expected = embedding(np.array([[3, 1, 3], [0, 0, 2]], dtype), 5)
    assert_same(found, expected, weights(2))


@pytest.mark.parametrize("power", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("kind", ["factored", "masked", "shared", "embedding"])
def test_every_power_is_that_of_the_dense_scores(kind, power):
    found, expected = (
        embedding([[0, 1, 0], [2, 2, 2]], 4)
        if kind == "embedding"
        else kernel(2, 4 if kind == "shared" else 1, 3, 2, mask=kind == "masked")
    )
    w = weights(2)
    (a,), (b,) = found.weighted_power_sum(w, power), expected.weighted_power_sum(w, power)
    np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mask", [False, True])
def test_the_second_moment_of_shared_weights_has_the_cross_terms_between_positions(mask):
    """sum_st w_s a_st^2 delta_st^2 lacks them, and is half as large or less where the positions agree."""
    a = np.random.default_rng(0).uniform(0.5, 1.5, size=(6, 3, 4))
    delta = np.random.default_rng(1).uniform(0.5, 1.5, size=(6, 3, 2))
    m = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [2.0, 1.0]]) if mask else np.ones((4, 2))
    w = np.random.default_rng(2).uniform(size=6)
    naive = np.einsum("s,sti,sto->io", w, a**2, delta**2) * m**2
    true = np.einsum("s,sio->io", w, np.einsum("sti,sto->sio", a, delta) ** 2) * m**2
    found = KernelScores(tf.constant(a), tf.constant(delta), mask=tf.constant(m) if mask else None)
    np.testing.assert_allclose(found.weighted_square_sum(w)[0], true, rtol=1e-12)
    assert (naive[m > 0] < 0.6 * true[m > 0]).all()


@pytest.mark.parametrize("chunk_numbers", [1, 13, 25, 1_000])
def test_shared_weights_are_streamed_in_chunks_of_any_size(monkeypatch, chunk_numbers):
    monkeypatch.setattr(scores_module, "CHUNK_NUMBERS", chunk_numbers)  # of 6 numbers a draw: 1, 2, 4 and all 7 draws
    found, expected = kernel(7, 3, 3, 2, mask=True)
    assert_same(found, expected, weights(7))


def test_norms_of_shared_weights_by_either_road():
    """By products of positions where there are few of them, by the kernel's own numbers where there are many."""
    for positions in (2, 40):
        found, expected = kernel(5, positions, 8, 6)
        np.testing.assert_allclose(found.squared_norms(), expected.squared_norms(), rtol=1e-10)


def test_a_masked_weight_has_no_score_and_others_have_it_all():
    rng = np.random.default_rng(0)
    x, w, b = rng.normal(size=(5, 3)), tf.Variable(rng.normal(size=(3, 4))), tf.Variable(rng.normal(size=4))
    mask = tf.constant([[1.0, 0, 1, 0], [0, 1, 1, 0], [1, 1, 0, 0]], tf.float64)
    np.testing.assert_allclose(linear(tf.constant(x), w, b, mask), x @ (w * mask).numpy() + b.numpy(), rtol=1e-12)
    np.testing.assert_allclose(linear(tf.constant(x), w), x @ w.numpy(), rtol=1e-12)
    delta = rng.normal(size=(5, 4))
    found = KernelScores(tf.constant(x[:, None]), tf.constant(delta[:, None]), w.shape, mask)
    (dense,) = found.dense()
    np.testing.assert_array_equal(dense.numpy() == 0, np.broadcast_to(mask == 0, dense.shape))
    assert not np.any(found.weighted_square_sum(np.ones(5))[0].numpy()[mask == 0])
    # A mask may have any shape of as many numbers, as that of a kernel reshaped on its way.
    flat = KernelScores(found.activation, found.delta, tf.TensorShape([12]), tf.reshape(mask, [12]))
    np.testing.assert_array_equal(flat.dense()[0], tf.reshape(dense, [5, 12]))


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_is_the_product_of_its_patches_and_its_kernel(padding, stride):
    rng = np.random.default_rng(0)
    x, w = tf.constant(rng.normal(size=(2, 5, 6, 3))), tf.constant(rng.normal(size=(3, 2, 3, 4)))
    strides = [1, stride, stride, 1]
    found = patches(x, w.shape.as_list(), strides, padding) @ tf.reshape(w, [18, 4])
    wanted = tf.nn.conv2d(x, w, strides, padding)
    np.testing.assert_allclose(found, tf.reshape(wanted, [2, -1, 4]), rtol=1e-10, atol=1e-12)


FAULTS = {
    "too few weights": (lambda h: h.weighted_sum(np.ones(3)), ValueError, r"shape \[3\], wanted \[4\]"),
    "weights of two axes": (lambda h: h.weighted_square_sum(np.ones((4, 1))), ValueError, r"wanted \[4\]"),
    "one weight": (lambda h: h.weighted_power_sum(1.0, 3), ValueError, r"shape \[\], wanted \[4\]"),
    "words": (lambda h: h.weighted_sum(["a"] * 4), TypeError, "weights must be numbers"),
    "truths": (lambda h: h.weighted_sum([True] * 4), TypeError, "weights must be numbers, got dtype bool"),
    "power of zero": (lambda h: h.weighted_power_sum(np.ones(4), 0), ValueError, "power must be at least 1"),
    "power of a half": (lambda h: h.weighted_power_sum(np.ones(4), 0.5), TypeError, "power must be an integer"),
    "no list": (lambda h: h.matvec(np.ones((3, 2))), TypeError, "v must be a list of arrays shaped like"),
    "two arrays": (lambda h: h.matvec([np.ones((3, 2))] * 2), ValueError, r"the variables have \[\[3, 2\]\]"),
    "turned": (lambda h: h.matvec([np.ones((2, 3))]), ValueError, r"shapes \[\[2, 3\]\], the variables have"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ["factored", "shared", "embedding"])
def test_impossible_arguments_are_refused(kind, fault):
    call, error, match = FAULTS[fault]
    if kind == "embedding":
        scores, _ = embedding([[0, 1], [2, 2], [1, 0], [0, 0]], 3, (2,))
    else:
        scores, _ = kernel(4, 3 if kind == "shared" else 1, 3, 2)
    with pytest.raises(error, match=match) as caught:
        call(scores)
    assert isinstance(caught.value, bbsvi.BBSVIError)


def test_a_layer_whose_input_and_output_differ_in_dtype_is_refused():
    with pytest.raises(bbsvi.InvalidTypeError, match="input is float32, its output float64"):
        KernelScores(tf.zeros([2, 1, 3]), tf.zeros([2, 1, 3], tf.float64))


def test_float32_is_kept_and_whole_weights_are_taken():
    found, expected = kernel(6, 3, 4, 2)
    single = KernelScores(tf.cast(found.activation, tf.float32), tf.cast(found.delta, tf.float32))
    w = np.arange(6)
    for name in ("weighted_sum", "weighted_square_sum"):
        (a,), (b,) = getattr(single, name)(w), getattr(expected, name)(w)
        assert a.dtype == tf.float32
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    assert single.squared_norms().dtype == single.gram().dtype == single.matvec([np.ones((4, 2))]).dtype == tf.float32
