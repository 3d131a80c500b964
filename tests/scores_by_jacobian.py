"""What scores are tested against: the dense Jacobian of log q, or the gradients of single draws."""

import math

import numpy as np
import tensorflow as tf

import bbsvi
from bbsvi.recording import tf_variables
from bbsvi.scores import DenseScores


def zero_target(shapes, support=None, dtype="float64"):
    """log p = 0: families need only its latents."""
    return bbsvi.Target(
        lambda **z: tf.add_n([tf.reduce_sum(0 * tf.cast(x, dtype), axis=range(1, x.shape.rank)) for x in z.values()]),
        event_shape=shapes,
        support=support or {},
        dtype=dtype,
    )


def shaken(family, seed=0, scale=0.5):
    """The family with random parameters."""
    rng = np.random.default_rng(seed)
    family.assign([p + scale * rng.normal(size=p.shape).astype(p.dtype) for p in family.parameters()])
    return family


def jacobian(family, draws):
    with tf.GradientTape() as tape:
        log_q = family.log_prob(draws)
    return DenseScores(tape.jacobian(log_q, family.trainable_variables, unconnected_gradients="zero"))


def one_by_one(log_prob, samples, variables):
    """The scores by an ordinary gradient for each draw."""
    variables = tf_variables(variables)
    with tf.GradientTape(persistent=True) as tape:
        values = tf.unstack(log_prob(samples))
    rows = [tape.gradient(value, variables, unconnected_gradients="zero") for value in values]
    return DenseScores([tf.stack([tf.convert_to_tensor(h) for h in column]) for column in zip(*rows)])


def assert_same(found, expected, w, rtol=1e-10):
    """Each contraction to `rtol` of its largest element."""
    assert found.num_draws == len(w)
    assert [tuple(shape) for shape in found.shapes] == [tuple(shape) for shape in expected.shapes]
    assert len(found.kind) == len(found.shapes)
    v = [np.random.default_rng(7).normal(size=shape) for shape in found.shapes]
    lists = {"weighted_sum": (w,), "weighted_square_sum": (w,), "weighted_power_sum": (w, 3), "dense": ()}
    for name, arguments in lists.items():
        for a, b in zip(getattr(found, name)(*arguments), getattr(expected, name)(*arguments), strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * (1 + np.abs(b).max()), err_msg=name)
    for name, arguments in {"squared_norms": (), "gram": (), "matvec": (v,)}.items():
        a, b = getattr(found, name)(*arguments), getattr(expected, name)(*arguments)
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * np.abs(b).max(), err_msg=name)


def operations(graph):
    """Types of a graph's operations, those of the functions it calls among them, and their outputs' sizes."""
    definition = graph.as_graph_def(add_shapes=True)
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    shapes = [shape for node in nodes for shape in node.attr["_output_shapes"].list.shape]
    sizes = [math.prod(dim.size for dim in shape.dim) for shape in shapes if not shape.unknown_rank]
    return {node.op for node in nodes}, sizes


def loops(graph):
    return {op for op in operations(graph)[0] if "While" in op or "Map" in op}
