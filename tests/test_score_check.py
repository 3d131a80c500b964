"""`check_score` passes sound q's and finds the faults that it is for."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import bbsvi

tfb, tfd = tfp.bijectors, tfp.distributions


def positive(value):
    return tfp.util.TransformedVariable(value, tfb.Exp())


def mixed_target():
    return bbsvi.Target(
        lambda x, rate, k, n: -tf.reduce_sum(x**2, axis=-1) - rate - tf.cast(k, x.dtype) - n,
        event_shape={"x": (3,), "rate": (), "k": (), "n": ()},
        support={"rate": "positive", "k": ("categorical", 4), "n": "count"},
    )


SOUND = {
    "mean field": lambda: bbsvi.families.MeanField(mixed_target()),
    "full rank": lambda: bbsvi.families.FullRank(mixed_target()),
    "gamma": lambda: tfd.Gamma(positive(3.0), positive(0.5)),
    "student": lambda: tfd.StudentT(positive(5.0), tf.Variable(1.0), positive(2.0)),
    "mixture": lambda: tfd.MixtureSameFamily(
        tfd.Categorical(logits=tf.Variable([0.1, -0.3])),
        tfd.Normal(tf.Variable([-1.0, 2.0]), positive([1.0, 0.5])),
    ),
}


@pytest.mark.parametrize("name", list(SOUND))
def test_a_sound_q_passes(name):
    found = bbsvi.check_score(SOUND[name]())
    assert found.passed, str(found)
    assert "average to zero within their noise" in str(found)


def test_false_alarms_are_rare():
    passed = [bbsvi.check_score(SOUND["gamma"](), sample_size=1_000, seed=seed).passed for seed in range(40)]
    assert sum(passed) >= 39


def test_table_has_a_row_for_each_variable():
    found = bbsvi.check_score(SOUND["mean field"]())
    assert list(found.table.index) == [
        "loc of x",
        "log_scale of x",
        "loc of rate",
        "log_scale of rate",
        "logits of k",
        "log_rate of n",
    ]
    assert list(found.table["elements"]) == [3, 3, 1, 1, 4, 1]
    assert np.all(found.table["z"].abs() < 5)


def test_a_detached_parameter_is_found():
    """The softmax of one number is 1, whatever the number."""
    stuck = tfp.util.DeferredTensor(tf.Variable([0.3], name="stuck"), tf.nn.softmax)
    found = bbsvi.check_score(tfd.Independent(tfd.Gamma(stuck, tf.Variable([2.0], name="rate")), 1))
    assert not found.passed
    assert [message for message in found.messages if "'stuck' is zero at every draw" in message]


class Unnormalised(tfd.Normal):
    """A normal that has lost its log scale."""

    def _log_prob(self, x):
        return -0.5 * tf.square((x - self.loc) / self.scale)


class OtherSampler(tfd.Normal):
    """A normal whose draws are three hundredths of a standard deviation off."""

    def _sample_n(self, n, seed=None):
        return super()._sample_n(n, seed) + 0.06 * self.scale


def test_a_density_that_is_not_normalised_is_found():
    found = bbsvi.check_score(Unnormalised(tf.Variable(0.0, name="loc"), tf.Variable(2.0, name="scale")))
    (message,) = found.messages
    assert message.startswith("The score of 'scale' averages to 0.5")
    assert "not normalised" in message


def test_a_sampler_that_does_not_follow_log_q_is_found():
    found = bbsvi.check_score(OtherSampler(tf.Variable(0.0, name="loc"), tf.Variable(2.0, name="scale")))
    assert not found.passed
    assert "'loc' averages to 0.0" in found.messages[0]


def test_draws_at_the_edge_of_a_support_are_found():
    found = bbsvi.check_score(tfd.Beta(positive(0.05), positive(0.05)))
    assert not found.passed
    assert any("not finite at" in message and "edge of a support" in message for message in found.messages)


def test_a_fit_that_begins_where_tensorflow_is_wrong_is_not_warned_of():
    """At a concentration of exactly 1 TensorFlow's derivative of xlogy is zero, where log x is right."""
    begins_at_one = tfd.Beta(positive(1.0), positive(1.0))
    assert not bbsvi.check_score(begins_at_one).passed
    target = bbsvi.Target(lambda p: 3 * tf.math.log(p), event_shape=(), support="unit_interval")
    posterior = bbsvi.fit(target, begins_at_one, num_steps=20, convergence=None, seed=0, progress_bar=False)
    assert len(posterior.history["elbo"]) == 20


@pytest.mark.parametrize("wrong", [3, "normal", tfd.Normal])
def test_what_is_no_distribution_is_refused(wrong):
    with pytest.raises(bbsvi.InvalidTypeError, match="wants a family or a tfd"):
        bbsvi.check_score(wrong)


def test_no_variables_is_refused():
    with pytest.raises(bbsvi.InvalidValueError, match="no trainable variables"):
        bbsvi.check_score(tfd.Normal(0.0, 1.0))
