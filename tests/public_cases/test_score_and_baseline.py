"""Scores, baselines and parameters without a gradient.

C01: tensorflow/tensorflow#7236, blei-lab/edward#90, tensorflow/probability#608, tensorflow/probability#622,
normal-computing/posteriors#15. C05: jsboige/CoursIA#15256. C12: a question in the Edward forum of 2018-07-28,
izmailovpavel/understandingbdl#8.
"""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import bbsvi
from bbsvi.control_variates import LeaveOneOut, MovingAverage, OptimalCoefficients

from .models import assert_below_evidence, assert_moments, coin, fit

tfb, tfd = tfp.bijectors, tfp.distributions

FIXED_DRAWS = np.array([-3.0, -1.0, 0.0, 0.5, 4.0], np.float32)
SCORE_OF_MU = np.array([-0.75, -0.25, 0.0, 0.125, 1.0])
SCORE_OF_LOG_SIGMA = np.array([1.25, -0.75, -1.0, -0.9375, 3.0])
SOFTPLUS_SLOPE = 1 - np.exp(-2.0)  # d sigma / d raw at sigma = 2


def normal_and_bernoulli():
    """z1 ~ N(1, 1) and z2 ~ Bernoulli(0.6), normalised: the best ELBO is 0."""
    return bbsvi.Target(
        lambda z1, z2: tfd.Normal(1.0, 1.0).log_prob(z1) + tfd.Bernoulli(probs=0.6).log_prob(z2),
        event_shape={"z1": (), "z2": ()},
        support={"z2": "binary"},
    )


def mean_field_at_start(target):
    """q = N(0, 2) x Bernoulli(0.5), the scale by its logarithm."""
    family = bbsvi.families.MeanField(target)
    family.assign([np.float32(0), np.float32(np.log(2)), np.float32(0)])
    return family


def wrapped_at_start(target, scale):
    parts = {"z1": tfd.Normal(tf.Variable(0.0), scale), "z2": tfd.Bernoulli(logits=tf.Variable(0.0))}
    return bbsvi.families.Wrapped(tfd.JointDistributionNamed(parts), target)


def gradients(estimator, target, family, *, sample_size=16, repeats=4_000):
    """{variable: [repeats]} of independent gradient estimates, and the ELBO estimates, [repeats]."""
    seed = tf.constant([3, 4])
    state = estimator.init(target, family, sample_size=sample_size, seed=seed)

    @tf.function
    def all_of_them():
        def once(index):
            own = tf.random.experimental.stateless_fold_in(seed, index, alg="philox")
            estimate, _ = estimator.estimate(state, target, family, sample_size=sample_size, seed=own)
            return (*estimate.gradient, estimate.elbo)

        dtypes = (*(variable.dtype for variable in family.trainable_variables), tf.float64)
        return tf.map_fn(once, tf.range(repeats), fn_output_signature=dtypes)

    *by_variable, elbo = [np.asarray(result, np.float64) for result in all_of_them()]
    return by_variable, elbo


def assert_mean(samples, expected):
    """The mean is `expected` within four Monte Carlo standard errors, and those are small enough to tell."""
    error = samples.std(ddof=1) / np.sqrt(len(samples))
    assert error < 0.05 * max(1, abs(expected))
    assert abs(samples.mean() - expected) < 4 * error


def test_scores_at_fixed_draws_are_the_closed_form():
    """C01, for the mean-field family."""
    target = normal_and_bernoulli()
    family = mean_field_at_start(target)
    draws = family.draws_at({"z1": FIXED_DRAWS, "z2": [0, 1, 0, 1, 1]})
    by_name = dict(zip(family.parameter_names, family.scores(draws).dense(), strict=True))
    np.testing.assert_allclose(by_name["loc of z1"], SCORE_OF_MU, atol=1e-6)
    np.testing.assert_allclose(by_name["log_scale of z1"], SCORE_OF_LOG_SIGMA, atol=1e-6)
    np.testing.assert_allclose(by_name["logits of z2"], [-0.5, 0.5, -0.5, 0.5, 0.5], atol=1e-6)


@pytest.mark.parametrize(
    ("scale", "slope"),
    [
        pytest.param(lambda: tf.Variable(2.0), 1.0, id="sigma"),
        pytest.param(lambda: tfp.util.TransformedVariable(2.0, tfb.Exp()), 2.0, id="log sigma"),
        pytest.param(lambda: tfp.util.TransformedVariable(2.0, tfb.Softplus()), SOFTPLUS_SLOPE, id="softplus"),
    ],
)
def test_scores_follow_the_parameterisation_of_the_scale(scale, slope):
    """C01: by sigma, log sigma or softplus, the score differs by the chain rule's factor."""
    q = tfd.Normal(tf.Variable(0.0), scale())
    of_mu, of_scale = bbsvi.per_sample_scores(q, FIXED_DRAWS).dense()
    np.testing.assert_allclose(of_mu, SCORE_OF_MU, atol=1e-6)
    np.testing.assert_allclose(of_scale, SCORE_OF_LOG_SIGMA / 2 * slope, atol=1e-6)


@pytest.mark.parametrize("in_graph", [False, True])
def test_scores_at_reparameterised_draws_of_q_itself_do_not_follow_the_sampling_path(in_graph):
    """C01: followed, the score would be 0 for the location and -1 for the log scale."""
    q = tfd.Normal(tf.Variable(0.0), tfp.util.TransformedVariable(2.0, tfb.Exp()))

    def draws_and_scores():
        draws = q.sample(5, seed=[1, 2])
        return draws, bbsvi.per_sample_scores(q, draws).dense()

    z, (of_mu, of_log_sigma) = (tf.function(draws_and_scores) if in_graph else draws_and_scores)()
    np.testing.assert_allclose(of_mu, z / 4, atol=1e-6)
    np.testing.assert_allclose(of_log_sigma, z**2 / 4 - 1, atol=1e-5)


@pytest.mark.parametrize(
    "control_variate",
    [None, LeaveOneOut(), MovingAverage(), OptimalCoefficients(), OptimalCoefficients(folds=4)],
    ids=["none", "leave-one-out", "moving-average", "optimal", "optimal-4-folds"],
)
def test_average_gradient_is_the_elbo_gradient(control_variate):
    """C01, with every control variate."""
    target = normal_and_bernoulli()
    estimator = bbsvi.estimators.ScoreFunction(control_variate=control_variate)
    (mu, log_sigma, logit), elbo = gradients(estimator, target, mean_field_at_start(target))
    assert_mean(mu, 1.0)
    assert_mean(log_sigma, -3.0)
    assert_mean(logit, 0.101366)
    assert_mean(elbo, -1.32726)


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        pytest.param(lambda: tf.Variable(2.0), -1.5, id="sigma"),
        pytest.param(lambda: tfp.util.TransformedVariable(2.0, tfb.Softplus()), -1.29700, id="softplus"),
    ],
)
def test_average_gradient_follows_the_parameterisation_of_the_scale(scale, expected):
    """C01, for a wrapped TFP distribution."""
    target = normal_and_bernoulli()
    family = wrapped_at_start(target, scale())
    by_variable, elbo = gradients(bbsvi.estimators.ScoreFunction(), target, family)
    assert sorted(samples.mean().round(1) for samples in by_variable) == sorted([1.0, round(expected, 1), 0.1])
    for expected_gradient in (1.0, expected, 0.101366):
        assert_mean(min(by_variable, key=lambda samples: abs(samples.mean() - expected_gradient)), expected_gradient)
    assert_mean(elbo, -1.32726)


def test_fit_arrives_at_the_target():
    """C01: mu = 1, sigma = 1, p = 0.6, ELBO 0."""
    target = normal_and_bernoulli()
    family = mean_field_at_start(target)
    posterior = fit(target, family, convergence=bbsvi.Convergence(tolerance=1e-4))  # 0.02 of mu is 2e-4 nats
    loc, log_scale, logit = family.parameters()
    np.testing.assert_allclose([loc, np.exp(log_scale), 1 / (1 + np.exp(-logit))], [1, 1, 0.6], atol=0.02)
    assert_below_evidence(posterior, 0.0, gap=0.0005)


CASES = {  # probabilities of the categories, f in each, gradient by the last logit
    "binary": (np.array([0.5, 0.5]), np.array([0.0, 1.0]), 0.25),
    "ternary": (np.array([0.7, 0.2, 0.1]), np.array([-3.0, -1.0, 2.0]), 0.41),
}


class OwnMean:
    """The mistake: the baseline is the mean of the batch that it corrects."""

    def apply(self, _, f, scores):
        return scores.weighted_sum((f - tf.reduce_mean(f)) / scores.num_draws)


def enumerated_gradients(control_variate, state, case, num_draws):
    """The gradient for every one of the K^S sets of draws, and the probability of each set."""
    probs, f, _ = CASES[case]
    sets = np.array(list(itertools.product(range(len(probs)), repeat=num_draws)))
    scores = (sets == len(probs) - 1) - probs[-1]

    @tf.function
    def all_of_them(f, scores):
        def one(args):
            (gradient,) = control_variate.apply(state, args[0], bbsvi.DenseScores([args[1]]))
            return gradient

        return tf.map_fn(one, (f, scores), fn_output_signature=tf.float64)

    return all_of_them(tf.constant(f[sets]), tf.constant(scores)).numpy(), probs[sets].prod(axis=1)


def state_with_a_past(control_variate):
    f, scores = tf.constant([3.0, -2.0, 0.5, 1.0], tf.float64), tf.constant([0.3, -0.2, 0.1, 0.4], tf.float64)
    return control_variate.update(control_variate.init(), f, bbsvi.DenseScores([scores]))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("num_draws", [2, 4, 8])
@pytest.mark.parametrize(
    "control_variate",
    [LeaveOneOut(), MovingAverage(), OptimalCoefficients(), OptimalCoefficients(folds=2)],
    ids=["leave-one-out", "moving-average", "optimal", "optimal-2-folds"],
)
def test_no_control_variate_moves_the_expected_gradient(control_variate, case, num_draws):
    """C05: exact over all sample sets, those where all draws agree included: no NaN there either."""
    values, probability = enumerated_gradients(control_variate, state_with_a_past(control_variate), case, num_draws)
    assert np.isfinite(values).all()
    np.testing.assert_allclose(np.sum(values * probability), CASES[case][2], rtol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_a_running_baseline_is_unbiased_with_a_single_draw(case):
    """C05: S = 1, where a baseline from the batch itself would leave nothing."""
    control_variate = MovingAverage()
    values, probability = enumerated_gradients(control_variate, state_with_a_past(control_variate), case, 1)
    np.testing.assert_allclose(np.sum(values * probability), CASES[case][2], rtol=1e-12)


@pytest.mark.parametrize(
    ("case", "num_draws", "biased"),
    [
        ("binary", 2, 0.125),
        ("binary", 4, 0.1875),
        ("binary", 8, 0.21875),
        ("ternary", 2, 0.205),
        ("ternary", 4, 0.3075),
    ],
)
def test_the_enumeration_shows_the_bias_of_a_mean_of_the_same_batch(case, num_draws, biased):
    """C05, the control of the two tests above: the mistake is seen."""
    values, probability = enumerated_gradients(OwnMean(), (), case, num_draws)
    np.testing.assert_allclose(np.sum(values * probability), biased, rtol=1e-12)


@pytest.mark.parametrize("control_variate", [LeaveOneOut(), OptimalCoefficients()], ids=["leave-one-out", "optimal"])
def test_the_whole_estimator_is_unbiased_for_a_categorical_q(control_variate):
    """C05 (b) through target, family and estimator: every pair of draws enumerated."""
    probs, f, expected = CASES["ternary"]
    log_p = tf.constant(f + np.log(probs), tf.float32)
    target = bbsvi.Target(lambda z: tf.gather(log_p, z), event_shape=(), support=("categorical", 3))
    family = bbsvi.families.MeanField(target)
    family.assign([np.log(probs).astype(np.float32)])
    estimator = bbsvi.estimators.ScoreFunction(control_variate=control_variate)
    state = estimator.init(target, family, sample_size=2, seed=tf.constant([0, 0]))

    @tf.function
    def gradient(pair):
        return estimator.estimate_at(state, target, family, family.draws_at({"z": pair}))[0].gradient[0]

    pairs = np.array(list(itertools.product(range(3), repeat=2)), np.int32)
    values = np.array([gradient(tf.constant(pair)).numpy()[-1] for pair in pairs])
    np.testing.assert_allclose(np.sum(values * probs[pairs].prod(axis=1)), expected, rtol=1e-5)


def softmax_of_one(name):
    """A positive number that is 1 whatever its variable is."""
    return tfp.util.DeferredTensor(tf.Variable([0.3], name=name), lambda raw: tf.nn.softmax(raw)[0], shape=())


@pytest.mark.parametrize("in_graph_of_p", [True, False], ids=["plain", "likelihood without a graph"])
def test_a_proper_q_gets_the_answer(in_graph_of_p):
    """C12: Beta(10, 3); and no graph from log p to q is needed, where pathwise only the KL term would pull."""

    def log_prob(p):
        value = p if in_graph_of_p else tf.stop_gradient(p)
        return tfd.Beta(2.0, 1.0).log_prob(p) + 8 * tf.math.log(value) + 2 * tf.math.log1p(-value)

    target = bbsvi.Target(log_prob, event_shape={"p": ()}, support={"p": "unit_interval"})
    posterior = fit(target)
    assert_moments(posterior, "p", 0.769231, 0.112604)
    assert_below_evidence(posterior, -5.799093, gap=0.02)


def test_parameters_without_gradient_are_named_in_a_warning():
    """C12: both concentrations are softmax of one number; q stays Beta(1, 1)."""
    stuck = tfd.Beta(softmax_of_one("u"), softmax_of_one("v"))
    with pytest.warns(bbsvi.BBSVIWarning, match="zero at every draw") as caught:
        posterior = fit(coin(2.0, 1.0, 8, 2), stuck, num_steps=50, convergence=None, jit_compile=False)
    messages = " ".join(str(warning.message) for warning in caught)
    assert "'u of p'" in messages
    assert "'v of p'" in messages
    elbo = posterior.elbo(20_000)
    assert abs(elbo.value - -10.306853) < 4 * elbo.standard_error


def test_only_the_parameter_without_gradient_is_named():
    """C12: beside a live one."""
    half_stuck = tfd.Beta(softmax_of_one("u"), tfp.util.TransformedVariable(1.0, tfb.Exp(), name="v"))
    with pytest.warns(bbsvi.BBSVIWarning, match="zero at every draw") as caught:
        fit(coin(2.0, 1.0, 8, 2), half_stuck, num_steps=10, convergence=None, jit_compile=False)
    (message,) = [str(warning.message) for warning in caught if issubclass(warning.category, bbsvi.BBSVIWarning)]
    assert "'u of p'" in message
