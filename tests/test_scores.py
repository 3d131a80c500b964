"""Per-sample gradients, per-sample scores and their contractions."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import bbsvi
from bbsvi import per_sample
from bbsvi import scores as scores_module
from bbsvi.factored import KernelScores
from bbsvi.families import forms
from bbsvi.per_sample import mapped_scores
from bbsvi.scores import BlockScores, DenseScores, StreamedScores
from tests.scores_by_jacobian import assert_same

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


def streamed(num_draws, seed=0):
    """Scores of 7 numbers a draw by two variables, and the same ones held."""
    rng = np.random.default_rng(seed)
    arrays = [tf.constant(rng.normal(size=(num_draws, *shape))) for shape in ((2, 3), ())]
    held = DenseScores(arrays)
    found = StreamedScores(
        lambda positions: [tf.gather(array, positions) for array in arrays],
        held.weighted_sum,
        num_draws=num_draws,
        shapes=held.shapes,
        dtype=tf.float64,
    )
    return found, held


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("chunk_numbers", [1, 14, 21, 35, 76, 77, 10_000])
def test_streamed_scores_are_those_held_whatever_the_chunks(monkeypatch, chunk_numbers, graph):
    """Eleven draws in chunks of 1, 2, 3, 5, 10 and 11: the last one whole, short by one or of a single draw."""
    monkeypatch.setattr(scores_module, "CHUNK_NUMBERS", chunk_numbers)
    found, held = streamed(11)
    assert found.kind == ("streamed", "streamed")
    w = np.random.default_rng(1).normal(size=11)
    if not graph:
        return assert_same(found, held, w)
    v = [np.ones((2, 3)), np.ones(())]
    for name, arguments in {"weighted_power_sum": (w, 3), "squared_norms": (), "matvec": (v,)}.items():
        call = tf.function(lambda name=name, arguments=arguments: getattr(found, name)(*arguments), autograph=False)
        for a, b in zip(tf.nest.flatten(call()), tf.nest.flatten(getattr(held, name)(*arguments)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("chunk_numbers", [1, 14, 30])
def test_no_chunk_holds_more_than_its_numbers(monkeypatch, chunk_numbers):
    monkeypatch.setattr(scores_module, "CHUNK_NUMBERS", chunk_numbers)
    asked = []

    def rows(positions):
        asked.append(np.asarray(positions))
        return [tf.zeros([len(positions), 2, 3], tf.float64), tf.zeros([len(positions)], tf.float64)]

    shapes = [tf.TensorShape([2, 3]), tf.TensorShape([])]
    scores = StreamedScores(rows, lambda _: [], num_draws=11, shapes=shapes, dtype=tf.float64)
    scores.squared_norms()
    assert {len(positions) for positions in asked} == {max(1, chunk_numbers // 7)}
    assert set(np.concatenate(asked)) == set(range(11))


def test_each_variables_streamed_scores_are_its_own():
    found, held = streamed(5)
    w = np.random.default_rng(1).normal(size=5)
    for part, expected in zip(found.by_variable(), held.by_variable(), strict=True):
        assert part.kind == ("streamed",)
        assert_same(part, expected, w)


@pytest.mark.parametrize("chunk_numbers", [1, 11, 22, 10_000])
def test_mapped_scores_are_streamed_where_they_are_many(monkeypatch, chunk_numbers):
    loc, scale, unused = (tf.Variable(np.linspace(1.0, 2.0, 4) + k) for k in range(3))
    x = tf.constant(np.random.default_rng(0).normal(size=(7, 4)))

    def log_prob(x):
        return tf.reduce_sum(tfd.Normal(loc, scale).log_prob(x), axis=1)

    expected = mapped_scores(log_prob, x, [loc, scale, unused])
    assert expected.kind == ("dense", "dense", "zero")
    for module in (per_sample, scores_module):
        monkeypatch.setattr(module, "CHUNK_NUMBERS", chunk_numbers)
    found = mapped_scores(log_prob, x, [loc, scale, unused])
    assert isinstance(found, StreamedScores) == (chunk_numbers < 7 * 12)
    assert_same(found, expected, np.random.default_rng(1).normal(size=7))


def blocks(num_draws=6):
    """Three parts of two, one and one variables, of different kinds, and their scores held."""
    rng = np.random.default_rng(4)
    first = DenseScores([rng.normal(size=(num_draws, 3)), rng.normal(size=num_draws)])
    activation, delta = (tf.constant(rng.normal(size=(num_draws, 2, width))) for width in (3, 2))
    parts = [first, KernelScores(activation, delta), DenseScores([rng.normal(size=(num_draws, 2))], ["zero"])]
    return BlockScores(parts), DenseScores([array for part in parts for array in part.dense()])


def test_block_scores_are_those_of_their_parts_together():
    found, held = blocks()
    assert found.kind == ("dense", "dense", "shared", "zero")
    assert_same(found, held, np.random.default_rng(1).normal(size=6))


def test_block_scores_take_weights_for_each_part():
    found, held = blocks()
    w = np.random.default_rng(1).normal(size=(6, 3))
    by_variable = w[:, [0, 0, 1, 2]]
    for power, sums in enumerate(
        (found.weighted_sum(w), found.weighted_square_sum(w), found.weighted_power_sum(w, 3)), start=1
    ):
        for found_sum, array, own in zip(sums, held.dense(), by_variable.T, strict=True):
            np.testing.assert_allclose(found_sum, np.einsum("s,s...->...", own, array**power), rtol=1e-10)


# (what is asked of the scores by [2, 3] and () of 11 draws, error, words)
FAULTS = {
    "too many weights": (lambda h: h.weighted_sum(np.ones(12)), ValueError, r"shape \[12\], wanted \[11\]"),
    "one weight": (lambda h: h.weighted_square_sum(2.0), ValueError, r"shape \[\], wanted \[11\]"),
    "truths": (lambda h: h.weighted_sum([True] * 11), TypeError, "must be numbers, got dtype bool"),
    "no power": (lambda h: h.weighted_power_sum(np.ones(11), 0), ValueError, "power must be at least 1, got 0"),
    "half a power": (lambda h: h.weighted_power_sum(np.ones(11), 0.5), TypeError, "power must be an integer"),
    "one direction": (lambda h: h.matvec([np.ones((2, 3))]), ValueError, r"the variables have \[\[2, 3\], \[\]\]"),
    "turned": (lambda h: h.matvec([np.ones((3, 2)), 1.0]), ValueError, r"v has shapes \[\[3, 2\], \[\]\]"),
    "no list": (lambda h: h.matvec(np.ones(7)), TypeError, "v must be a list of arrays shaped like the variables"),
}
KINDS = {
    "held": lambda: streamed(11)[1],
    "streamed": lambda: streamed(11)[0],
    "blocks": lambda: BlockScores(streamed(11)[1].by_variable()),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", KINDS)
def test_weights_and_directions_that_do_not_fit_are_refused(kind, fault):
    call, error, match = FAULTS[fault]
    with pytest.raises(error, match=match) as caught:
        call(KINDS[kind]())
    assert isinstance(caught.value, bbsvi.BBSVIError)


def test_weights_of_a_wrong_number_of_parts_are_refused():
    found, _ = blocks()
    for name in ("weighted_sum", "weighted_square_sum"):
        with pytest.raises(
            bbsvi.InvalidValueError, match=r"\[6, 2\], wanted \[6\] or \[6, 3\], a column for each of 3"
        ):
            getattr(found, name)(np.ones((6, 2)))
    with pytest.raises(bbsvi.InvalidValueError, match=r"shape \[5\], wanted \[6\]"):
        found.weighted_sum(np.ones((5, 3)))


def test_arrays_that_are_no_scores_are_refused():
    for arrays, error, match in (
        ([], ValueError, "at least one array"),
        ([np.float64(1.0)], ValueError, r"each \[S, \*variable\.shape\]"),
        ([np.ones((2, 3)), np.ones(3)], ValueError, r"different numbers of draws: \['2', '3'\]"),
        ([np.ones(2), np.ones(2, np.float32)], TypeError, r"different dtypes: \['float32', 'float64'\]"),
    ):
        with pytest.raises(error, match=match):
            DenseScores(arrays)


def differentiated(form, value, parameters):
    """A form's scores by the gradient of TFP's log density at each draw."""
    variables = [tf.Variable(parameter) for parameter in parameters]
    rows = []
    for one in tf.unstack(value):
        with tf.GradientTape() as tape:
            log_q = tf.reduce_sum(form.distribution(variables).log_prob(one))
        rows.append(tape.gradient(log_q, variables))
    return DenseScores([tf.stack(column) for column in zip(*rows)])


@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
@pytest.mark.parametrize("name", ["NORMAL", "BERNOULLI", "CATEGORICAL", "POISSON"])
def test_scores_in_closed_form_are_the_gradients_of_log_q(name, shape):
    form, rng = getattr(forms, name), np.random.default_rng(len(shape))
    shapes = [(*shape, 4)] if name == "CATEGORICAL" else [shape] * len(form.parameters)
    parameters = [tf.constant(rng.normal(size=parameter)) for parameter in shapes]
    value = form.sample(8, tf.constant([1, 2]), parameters)
    assert value.shape == (8, *shape)
    found = form.scores(value, parameters)
    assert set(found.kind) == {"dense"}
    assert_same(found, differentiated(form, value, parameters), rng.normal(size=8))


@pytest.mark.parametrize("log_scale", [-20.0, -2.0, 3.0, 20.0])
def test_a_normals_scores_at_any_scale(log_scale):
    """By numpy's long doubles: z / scale - loc / scale, as TFP has it, loses eight digits at the least scale here."""
    rng = np.random.default_rng(0)
    loc, scale = rng.normal(size=3), np.exp(np.longdouble(log_scale))
    value = np.asarray(loc + scale * rng.normal(size=(8, 3)), float)
    noise = (value - np.asarray(loc, np.longdouble)) / scale
    found = forms.NORMAL.scores(
        tf.constant(value), [tf.constant(loc), tf.fill([3], tf.constant(log_scale, tf.float64))]
    )
    expected = DenseScores([np.asarray(noise / scale, float), np.asarray(noise**2 - 1, float)])
    assert_same(found, expected, rng.normal(size=8))
    for a, b in zip(found.dense(), expected.dense(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_a_normals_scores_at_the_floor_of_its_scale_are_finite_and_do_not_move_it():
    """Below exp(-69) in float64 the floor is the scale, which log_scale has no say in."""
    parameters = [tf.zeros([2], tf.float64), tf.fill([2], tf.constant(-100.0, tf.float64))]
    found = forms.NORMAL.scores(tf.constant([[1e-30, -2e-30]], tf.float64), parameters).dense()
    np.testing.assert_allclose(found[0], [[1e30, -2e30]], rtol=1e-10)
    assert np.abs(found[1]).max() < 1e-12


ONE_SAMPLE_FAULTS = {
    "no function": (3.0, np.ones(4), None, TypeError, "fn must be a function of one sample, got float"),
    "no samples' axis": (lambda v: v, 1.0, None, ValueError, r"one sample axis, \[S, \*event\]; got shapes \[\[\]\]"),
    "a list": (lambda v: v, [1.0, 2.0], None, ValueError, "A list is taken as a structure"),
    "not one S": (lambda v: v["a"], {"a": np.ones(2), "b": np.ones(3)}, None, ValueError, r"\[\[2\], \[3\]\]"),
    "no scalar": (lambda v: v, np.ones((4, 2)), None, ValueError, r"a scalar float, got float64 of shape \(2,\)"),
    "no float": (lambda v: tf.cast(v, tf.int32), np.ones(4), None, ValueError, "a scalar float, got int32"),
    "no tensor": (lambda _: 1.0, np.ones(4), None, TypeError, "must return a scalar tensor, got float"),
    "integers": (lambda v: tf.cast(v, tf.float32), np.arange(4), None, TypeError, "floats to differentiate by, got"),
    "no variables": (lambda v: v, np.ones(4), [1.0], TypeError, "variables must be None or a list of tf.Variables"),
    "one variable": (lambda v: v, np.ones(4), tf.Variable(1.0), TypeError, "variables must be None or a list"),
}


@pytest.mark.parametrize("fault", ONE_SAMPLE_FAULTS)
def test_impossible_gradients_are_refused(fault):
    fn, samples, variables, error, match = ONE_SAMPLE_FAULTS[fault]
    with pytest.raises(error, match=match) as caught:
        bbsvi.per_sample_gradients(fn, samples, variables)
    assert isinstance(caught.value, bbsvi.BBSVIError)
