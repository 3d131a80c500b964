"""The small models that more than one case needs, and the one way the cases call `fit`."""

import functools

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import bbsvi

tfd = tfp.distributions

fit = functools.partial(bbsvi.fit, progress_bar=False, seed=1)


def coin(prior_ones, prior_zeros, ones, zeros):
    """p ~ Beta(prior_ones, prior_zeros), and a sequence of ones and zeros."""

    def log_prob(p):
        return tfd.Beta(prior_ones, prior_zeros).log_prob(p) + ones * tf.math.log(p) + zeros * tf.math.log1p(-p)

    return bbsvi.Target(log_prob, event_shape={"p": ()}, support={"p": "unit_interval"})


def scalar_mean(shape=(), y=(0.2, 1.1, -0.4)):
    """mu ~ N(0, 1), y ~ N(mu, 1); mu has shape () or (1,)."""
    data = tf.constant(y, tf.float32)

    def log_prob(mu):
        mu = tf.reshape(mu, [-1, 1])
        return tfd.Normal(0.0, 1.0).log_prob(mu[:, 0]) + tf.reduce_sum(tfd.Normal(mu, 1.0).log_prob(data), axis=1)

    return bbsvi.Target(log_prob, event_shape={"mu": shape})


def counted_parts(counts=(4, 3, 2)):
    """x ~ Dirichlet(1, 1, 1), and a sequence in which each part came up so many times."""
    counts = tf.constant(counts, tf.float32)

    def log_prob(x):
        return tfd.Dirichlet(tf.ones_like(counts)).log_prob(x) + tf.linalg.matvec(tf.math.log(x), counts)

    return bbsvi.Target(log_prob, event_shape={"x": counts.shape}, support={"x": "simplex"})


def assert_moments(posterior, name, mean, stddev, *, within=0.1, spread=0.05):
    """The mean lies within `within` posterior sds of the right one, the sd within a fraction `spread`."""
    mean, stddev = np.asarray(mean), np.asarray(stddev)
    np.testing.assert_array_less(np.abs(posterior.mean()[name] - mean), within * stddev)
    np.testing.assert_allclose(posterior.stddev()[name], np.broadcast_to(stddev, mean.shape), rtol=spread)


def assert_below_evidence(posterior, log_evidence, *, gap):
    """The ELBO is at most the log evidence (3 standard errors), and at most `gap` nats below it."""
    elbo = posterior.elbo(20_000)
    assert elbo.value <= log_evidence + 3 * elbo.standard_error + 1e-4  # 1e-4: the rounding of float32
    assert elbo.value >= log_evidence - gap - 3 * elbo.standard_error
