"""Data under a wrong name, empty data and silent broadcasting.

C14: blei-lab/edward#913. C28: pyro-ppl/pyro#3407, pyro-ppl/pyro#3451, pyro-ppl/pyro#3477, pyro-ppl/pyro#2737.
C29: tensorflow/probability#1013, tensorflow/probability#1341, tensorflow/probability#1365, aesara-devs/aeppl#49,
christiaanjs/treeflow#60, pyro-ppl/pyro#418, pyro-ppl/pyro#1895, pyro-ppl/pyro#712, pyro-ppl/numpyro#1119.
"""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import bbsvi
from bbsvi.control_variates import LeaveOneOut, MovingAverage, OptimalCoefficients

from .models import assert_below_evidence, assert_moments, fit

tfd = tfp.distributions


def waiting_times():
    """w ~ Exponential(mean 10); two waits y ~ Exponential(mean w)."""
    return tfd.JointDistributionNamed(
        {"w": tfd.Exponential(0.1), "y": lambda w: tfd.Independent(tfd.Exponential(tf.fill([2], 1 / w)), 1)}
    )


def waiting_times_apart():
    """The same with a site for each wait."""
    return tfd.JointDistributionNamed(
        {"w": tfd.Exponential(0.1), "y1": lambda w: tfd.Exponential(1 / w), "y2": lambda w: tfd.Exponential(1 / w)}
    )


@pytest.mark.parametrize(
    ("joint", "data"),
    [(waiting_times(), {"y": [100.0, 100.0]}), (waiting_times_apart(), {"y1": 100.0, "y2": 100.0})],
    ids=["stacked", "apart"],
)
def test_data_are_used_however_they_are_stacked(joint, data):
    """C14: mean 42.41046, sd 14.18989, log evidence -15.184092; without the data 10 and 10."""
    posterior = fit(joint, data=data)
    assert_moments(posterior, "w", 42.41046, 14.18989, spread=0.1)
    assert_below_evidence(posterior, -15.184092, gap=0.05)


@pytest.mark.parametrize("data", [{"x": [100.0, 100.0]}, {"Y": [100.0, 100.0]}, {"y": [100.0, 100.0], "x": 1.0}])
def test_wrong_key_lists_the_known_names(data):
    """C14."""
    with pytest.raises(bbsvi.InvalidValueError, match=r"data: unknown name .*known ones are \['w', 'y'\]"):
        fit(waiting_times(), data=data)


@pytest.mark.parametrize(
    ("joint", "data", "missing"),
    [
        (waiting_times(), None, "y"),
        (waiting_times_apart(), {"y1": 100.0}, "y2"),
        (waiting_times_apart(), None, "y[12]"),
    ],
)
def test_forgotten_data_list_the_sites(joint, data, missing):
    """C14: left latent, the prior would come back."""
    with pytest.raises(bbsvi.InvalidValueError, match=rf"no data for site '{missing}'.*sites are \["):
        fit(joint, data=data)


@pytest.mark.parametrize("data", [np.array([100.0, 100.0], np.float32), [100.0, 100.0], [("y", [100.0, 100.0])]])
def test_data_without_names_are_refused(data):
    """C14: given as an object, they belong to no site."""
    with pytest.raises(bbsvi.InvalidTypeError, match="data must be a dict"):
        fit(waiting_times(), data=data)


def test_data_beside_a_target_are_refused():
    """C14: a function has its data inside, these would be ignored."""
    target = bbsvi.Target(lambda w: -w, event_shape={"w": ()}, support={"w": "positive"})
    with pytest.raises(bbsvi.InvalidValueError, match="data is for joint distributions"):
        fit(target, data={"y": [100.0, 100.0]})


@pytest.mark.parametrize("data", [[100.0], [100.0, 100.0, 100.0], [[100.0, 100.0]], 100.0])
def test_data_of_a_wrong_shape_name_the_shapes(data):
    """C14 and C29: never broadcast."""
    with pytest.raises(bbsvi.InvalidValueError, match=r"data\['y'\] has shape .*wants \(2,\)"):
        fit(waiting_times(), data={"y": data})


def rows_joint(y):
    joint = tfd.JointDistributionNamed(
        {"m": tfd.Normal(1.0, 2.0), "y": lambda m: tfd.Independent(tfd.Normal(m * tf.ones(len(y)), 1.0), 1)}
    )
    return bbsvi.Target.from_joint(joint, {"y": y})


def rows_sampled(y):
    joint = tfd.JointDistributionNamedAutoBatched(
        {"m": tfd.Normal(1.0, 2.0), "y": lambda m: tfd.Sample(tfd.Normal(m, 1.0), len(y))}
    )
    return bbsvi.Target.from_joint(joint, {"y": y})


def rows_function(y):
    return bbsvi.Target(
        log_prior=lambda m: tfd.Normal(1.0, 2.0).log_prob(m),
        log_likelihood=lambda m: tfd.Normal(m[:, None], 1.0).log_prob(y),  # [S, N]
        event_shape={"m": ()},
    )


@pytest.mark.parametrize("make", [rows_joint, rows_sampled, rows_function])
def test_no_rows_give_the_prior(make):
    """C28: N(1, 2), ELBO 0, no NaN."""
    posterior = fit(make(np.zeros(0, np.float32)))
    assert np.isfinite(posterior.history["elbo"]).all()
    assert_moments(posterior, "m", 1.0, 2.0)
    assert_below_evidence(posterior, 0.0, gap=0.005)


@pytest.mark.parametrize("make", [rows_joint, rows_sampled, rows_function])
def test_one_row(make):
    """C28: 2.6 (0.894427), log evidence -2.123657."""
    posterior = fit(make(np.array([3.0], np.float32)))
    assert_moments(posterior, "m", 2.6, 0.894427)
    assert_below_evidence(posterior, -2.123657, gap=0.005)


N = 20
X = np.linspace(-1, 1, N).astype(np.float32)
Y = (1 + 2 * X + 0.1 * np.cos(7 * np.arange(N))).astype(np.float32)
LOG_JOINT_AT_1_2 = -11.191258  # -2471.616 where x and y are paired in all ways


def line_sequential():
    prior = tfd.Normal(0.0, 10.0)
    return tfd.JointDistributionSequential(
        [prior, prior, lambda b, a: tfd.Independent(tfd.Normal(a + b * X, 0.5), 1, name="y")]
    )


def line_named():
    return tfd.JointDistributionNamed(
        {
            "a": tfd.Normal(0.0, 10.0),
            "b": tfd.Normal(0.0, 10.0),
            "y": lambda a, b: tfd.Independent(tfd.Normal(a + b * X, 0.5), 1),
        }
    )


def line_coroutine():
    root = tfd.JointDistributionCoroutine.Root

    def model():
        a = yield root(tfd.Normal(0.0, 10.0, name="a"))
        b = yield root(tfd.Normal(0.0, 10.0, name="b"))
        yield tfd.Independent(tfd.Normal(a + b * X, 0.5), 1, name="y")

    return tfd.JointDistributionCoroutine(model)


def line_auto_batched():
    return tfd.JointDistributionNamedAutoBatched(
        {
            "a": tfd.Normal(0.0, 10.0),
            "b": tfd.Normal(0.0, 10.0),
            "y": lambda a, b: tfd.Normal(a + b * X, 0.5),
        }
    )


def line_function():
    return bbsvi.Target(line_log_prob, event_shape={"a": (), "b": ()})


def line_log_prob(a, b):
    prior = tfd.Normal(0.0, 10.0)
    likelihood = tfd.Normal(a[:, None] + b[:, None] * X, 0.5).log_prob(Y)
    return prior.log_prob(a) + prior.log_prob(b) + tf.reduce_sum(likelihood, axis=1)


LINES = [line_sequential, line_named, line_coroutine, line_auto_batched, line_function]


def line_target(make):
    line = make()
    if isinstance(line, bbsvi.Target):
        return line
    return bbsvi.Target.from_joint(line, {line._flat_resolve_names()[-1]: Y})


@pytest.mark.parametrize("make", LINES)
@pytest.mark.parametrize("num_draws", [1, N, N + 1])
def test_log_joint_of_every_draw_is_its_own(make, num_draws):
    """C29: S = 1, S = n and S = n + 1 draws, of which the last is (1, 2)."""
    target = line_target(make)
    values = {"a": tf.linspace(0.0, 1.0, num_draws), "b": tf.linspace(5.0, 2.0, num_draws)}
    if num_draws == 1:
        values = {"a": tf.constant([1.0]), "b": tf.constant([2.0])}
    log_p = target.log_prob(values).numpy()
    assert log_p.shape == (num_draws,)
    np.testing.assert_allclose(log_p[-1], LOG_JOINT_AT_1_2, rtol=1e-5)
    one_by_one = [line_log_prob(values["a"][i : i + 1], values["b"][i : i + 1]).numpy()[0] for i in range(num_draws)]
    np.testing.assert_allclose(log_p, one_by_one, rtol=1e-5)


@pytest.mark.parametrize("num_draws", [1, 2, 3])
def test_three_terms_stay_three(num_draws):
    """C29: x ~ N(0, 1), y1, y2 ~ N(x, 1), all at 0: -2.756816, where a term counted twice gives -3.675754."""
    joint = tfd.JointDistributionSequential(
        [tfd.Normal(0.0, 1.0), lambda x: tfd.Normal(x, 1.0, name="y1"), lambda _, x: tfd.Normal(x, 1.0, name="y2")]
    )
    x, *others = joint._flat_resolve_names()
    target = bbsvi.Target.from_joint(joint, dict.fromkeys(others, 0.0))
    np.testing.assert_allclose(target.log_prob({x: tf.zeros(num_draws)}), np.full(num_draws, -2.756816), rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "sample_size"),
    [(line_sequential, N), (line_auto_batched, N + 1), (line_function, N), (line_function, 1)],
)
def test_line_fit(make, sample_size):
    """C29: a 1.009411 (0.111796), b 2.010166 (0.184166), log evidence -13.231309; broadcast, b would be 0."""
    control_variate = MovingAverage() if sample_size == 1 else LeaveOneOut()
    estimator = bbsvi.estimators.ScoreFunction(control_variate=control_variate)
    posterior = fit(line_target(make), estimator=estimator, sample_size=sample_size)
    assert_moments(posterior, "a", 1.009411, 0.111796)
    assert_moments(posterior, "b", 2.010166, 0.184166)
    assert_below_evidence(posterior, -13.231309, gap=0.01)


def test_single_draw_without_a_baseline_for_it_is_refused():
    """C29: S = 1 under leave-one-out, which would divide by zero."""
    with pytest.raises(bbsvi.InvalidValueError, match=r"sample_size must be at least 2 \(LeaveOneOut"):
        fit(line_function(), sample_size=1)


@pytest.mark.parametrize("make", [line_sequential, line_named, line_auto_batched])
def test_column_of_data_is_refused(make):
    """C29: y of shape (20, 1) against (20,)."""
    joint = make()
    with pytest.raises(bbsvi.InvalidValueError, match=r"has shape \(20, 1\).*wants \(20,\)"):
        fit(joint, data={joint._flat_resolve_names()[-1]: Y[:, None]})


def test_site_left_as_a_batch_is_refused():
    """C29: a plain joint whose site is 20 distributions rather than one over 20 numbers."""
    joint = tfd.JointDistributionNamed(
        {"a": tfd.Normal(0.0, 10.0), "b": tfd.Normal(0.0, 10.0), "y": lambda a, b: tfd.Normal(a + b * X, 0.5)}
    )
    with pytest.raises(bbsvi.InvalidValueError, match=r"site 'y' has batch shape \[20\]"):
        fit(joint, data={"y": Y})


def no_sample_axis(a, b):
    """Right for one draw; with S = n the draws line up with the data."""
    prior = tfd.Normal(0.0, 10.0).log_prob(a) + tfd.Normal(0.0, 10.0).log_prob(b)
    return prior + tf.reduce_sum(tfd.Normal(a + b * X, 0.5).log_prob(Y))


def column_of_data(a, b):
    """y is (20, 1): with S = n every x meets every y."""
    likelihood = tfd.Normal(a[:, None] + b[:, None] * X, 0.5).log_prob(Y[:, None])
    return tf.reduce_sum(likelihood, axis=1)


def column_of_results(a, b):
    return line_log_prob(a, b)[:, None]


def sum_over_draws(a, b):
    return tf.reduce_sum(line_log_prob(a, b))


def mixed_draws(a, b):
    """[S], but every draw gets the sum over all of them."""
    return line_log_prob(a, b) + tf.reduce_sum(a)


@pytest.mark.parametrize("sample_size", [N, N + 1])
@pytest.mark.parametrize("log_prob", [no_sample_axis, column_of_data, column_of_results, sum_over_draws, mixed_draws])
def test_function_that_mixes_axes_is_refused(log_prob, sample_size):
    """C29: S equal to n does not hide it; the error tells shapes or draws."""
    with pytest.raises(bbsvi.InvalidValueError, match=r"shape|mixes the draws"):
        fit(bbsvi.Target(log_prob, event_shape={"a": (), "b": ()}), sample_size=sample_size)


@pytest.mark.parametrize("dim", [3, 4, 5])
def test_sum_over_the_wrong_axis_is_refused_though_draws_equal_dimensions(dim):
    """C29: [S, dim] summed over the draws is [dim], which passes for [S] where S = dim."""
    target = bbsvi.Target(
        lambda theta: tf.reduce_sum(tfd.Normal(0.0, 1.0).log_prob(theta), axis=0), event_shape={"theta": (dim,)}
    )
    with pytest.raises(bbsvi.InvalidValueError, match="log_prob returned shape"):
        fit(target, sample_size=dim)


def test_vector_latent_keeps_its_order_where_draws_equal_dimensions():
    """C29: posterior means came out in the wrong order."""
    means = np.array([-2.0, 0.0, 3.0], np.float32)
    joint = tfd.JointDistributionNamed({"theta": tfd.Independent(tfd.Normal(means, [0.5, 1.0, 2.0]), 1)})
    posterior = fit(joint, data={}, sample_size=3)
    assert_moments(posterior, "theta", means, np.array([0.5, 1.0, 2.0]), within=0.15)


@pytest.mark.parametrize(
    "control_variate", [LeaveOneOut(), MovingAverage(), OptimalCoefficients(), OptimalCoefficients(folds=2)]
)
def test_column_of_f_is_refused_or_right(control_variate):
    """C29: f of shape (S, 1) against scores (S,) would broadcast to (S, S)."""
    f = tf.constant([1.0, -2.0, 0.5, 3.0])
    scores = bbsvi.DenseScores([tf.constant([0.1, 0.4, -0.3, 0.2])])
    (right,) = control_variate.apply(control_variate.init(), f, scores)
    assert right.shape == ()
    try:
        (column,) = control_variate.apply(control_variate.init(), f[:, None], scores)
    except bbsvi.InvalidValueError:
        return
    assert column.shape == ()
    np.testing.assert_allclose(column, right)
