"""Scores of TFP's own distributions: those of single draws, in one batched pass, and what is refused."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import bbsvi
from tests.scores_by_jacobian import assert_same, loops, one_by_one

tfb, tfd = tfp.bijectors, tfp.distributions
S = 6


def real(*values):
    return tf.Variable(np.array(values if len(values) != 1 else values[0], float))


def positive(*values):
    return tfp.util.TransformedVariable(np.array(values if len(values) != 1 else values[0], float), tfb.Exp())


def masked_flow():
    """Its kernels hold zeros where they are masked."""
    network = tfb.AutoregressiveNetwork(params=2, event_shape=[3], hidden_units=[4], activation="tanh", dtype="float64")
    flow = tfb.MaskedAutoregressiveFlow(network)
    flow.forward(np.zeros((1, 3)))
    base = tfd.Sample(tfd.Normal(real(0.1), positive(1.2)), [3])
    q = tfd.TransformedDistribution(base, flow)
    for index, variable in enumerate(q.trainable_variables):
        rng = np.random.default_rng(index)
        variable.assign(np.asarray(variable) * rng.uniform(0.5, 1.5, size=variable.shape))
    return q


DISTRIBUTIONS = {
    "normal": lambda: tfd.Normal(real(0.3), positive(0.7)),
    "gamma": lambda: tfd.Gamma(positive(2.0), positive(0.5)),
    "inverse_gamma": lambda: tfd.InverseGamma(positive(3.0), positive(0.5)),
    "beta": lambda: tfd.Independent(tfd.Beta(positive(2.0, 0.7), positive(1.0, 3.0)), 1),
    "student_t": lambda: tfd.StudentT(positive(5.0), real(0.1), positive(2.0)),
    "laplace": lambda: tfd.Laplace(real(0.1), positive(2.0)),
    "weibull": lambda: tfd.Weibull(positive(1.5), positive(2.0)),
    "von_mises": lambda: tfd.VonMises(real(0.5), positive(2.0)),
    "log_normal": lambda: tfd.LogNormal(real(0.1), positive(0.5)),
    "dirichlet": lambda: tfd.Dirichlet(positive(2.0, 0.7, 1.5)),
    "diagonal_normal": lambda: tfd.MultivariateNormalDiag(real(0.1, -0.2), positive(1.5, 0.5)),
    "full_normal": lambda: tfd.MultivariateNormalTriL(real(0.1, -0.2), real([[1.0, 0.0], [0.5, 2.0]])),
    "bernoulli": lambda: tfd.Independent(tfd.Bernoulli(logits=real(0.1, -0.5)), 1),
    "categorical": lambda: tfd.Categorical(logits=real(0.1, 0.2, -0.5)),
    "categoricals": lambda: tfd.Independent(tfd.Categorical(logits=tf.Variable(np.eye(2, 3))), 1),
    "poisson": lambda: tfd.Poisson(log_rate=real(0.4)),
    "negative_binomial": lambda: tfd.NegativeBinomial(positive(3.0), logits=real(0.2)),
    "mixture": lambda: tfd.MixtureSameFamily(
        tfd.Categorical(logits=real(0.1, -0.3)), tfd.Normal(real(-1.0, 2.0), positive(1.0, 0.5))
    ),
    "masked_flow": masked_flow,
    "joint": lambda: tfd.JointDistributionNamed(
        {"k": tfd.Poisson(log_rate=real(0.3)), "x": tfd.Normal(real(0.2), positive(1.5))}
    ),
}


def single(q, draws):
    """By an ordinary gradient for each draw; of copies, as TFP remembers what its own draws came from."""
    return one_by_one(q.log_prob, tf.nest.map_structure(tf.identity, draws), q.trainable_variables)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_stock_distributions_have_the_scores_of_single_draws_without_a_loop(name):
    q = DISTRIBUTIONS[name]()
    draws = q.sample(S, seed=[0, 1])
    scores = bbsvi.per_sample_scores(q, draws)
    assert len(scores.kind) == len(q.trainable_variables)
    assert_same(scores, single(q, draws), np.random.default_rng(0).normal(size=S))
    compiled = tf.function(lambda draws: bbsvi.per_sample_scores(q, draws).dense(), autograph=False)
    assert not loops(compiled.get_concrete_function(draws).graph)
    for a, b in zip(compiled(draws), scores.dense(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_the_layers_of_a_flow_stay_factored():
    """They are called twice, for the base value and for the volume."""
    q = masked_flow()
    kind = bbsvi.per_sample_scores(q, q.sample(S, seed=[0, 1])).kind
    assert {word for word, v in zip(kind, q.trainable_variables) if v.shape.rank == 2} == {"shared"}
    assert {word for word, v in zip(kind, q.trainable_variables) if v.shape.rank < 2} == {"dense"}


FAULTS = {
    "no distribution": (lambda: (3.0, np.zeros(4)), TypeError, r"must be a tfd\.Distribution, got float"),
    "nothing to train": (lambda: (tfd.Normal(0.0, 1.0), np.zeros(4)), ValueError, "no trainable variables"),
    "a batch": (
        lambda: (tfd.Normal(real(0.0, 1.0), positive(1.0)), np.zeros((4, 2))),
        ValueError,
        r"batch shape \[2\], wanted \[\]: wrap it in tfd\.Independent",
    ),
    "no draws' axis": (
        lambda: (DISTRIBUTIONS["diagonal_normal"](), np.zeros(2)),
        ValueError,
        r"samples must be \[S, 2\] under .*, got shapes \[\[2\]\]",
    ),
    "one number": (lambda: (DISTRIBUTIONS["normal"](), 0.5), ValueError, r"samples must be \[S\] under Normal, got"),
    "another event": (
        lambda: (DISTRIBUTIONS["diagonal_normal"](), np.zeros((4, 3))),
        ValueError,
        r"samples must be \[S, 2\] under .*, got shapes \[\[4, 3\]\]",
    ),
    "two numbers of draws": (
        lambda: (DISTRIBUTIONS["joint"](), {"k": np.zeros(5), "x": np.zeros(4)}),
        ValueError,
        r"samples must be \[S\], \[S\] under .*, got shapes",
    ),
    "outside": (
        lambda: (DISTRIBUTIONS["gamma"](), np.array([1.0, -2.0, 3.0, -1.0])),
        ValueError,
        r"2 of 4 samples of Gamma lie outside the support 'positive', the first at 1: -2\.0",
    ),
    "outside what is not known": (
        lambda: (
            tfd.MixtureSameFamily(tfd.Categorical(logits=real(0.1, 0.2)), tfd.Uniform(np.zeros(2), np.array([1.0, 2]))),
            np.array([0.5, 1.5, 2.5]),
        ),
        ValueError,
        "log q is -inf at sample 2 of 3: it lies outside the support of MixtureSameFamily",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_impossible_arguments_are_refused(fault):
    make, error, match = FAULTS[fault]
    with pytest.raises(error, match=match) as caught:
        bbsvi.per_sample_scores(*make())
    assert isinstance(caught.value, bbsvi.BBSVIError)
