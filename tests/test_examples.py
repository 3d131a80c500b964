"""The bundled examples reach their family's optimum, seed after seed, by the score function alone."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import bbsvi
from bbsvi.__main__ import main

SEEDS = range(5)
# The best ELBO of each family, by deterministic optimization over quasi-random draws; the log evidence is -31.3113.
EIGHT_SCHOOLS = {"mean_field": -31.595, "full_rank": -31.526}
# Coordinate ascent on the conjugate mean-field updates.
COAL_ELBO, COAL_1892 = -176.9365, 0.25295


def test_names_and_unknown_names():
    assert bbsvi.examples.names() == ["eight_schools", "eight_schools_centered", "coal_mining", "beta_binomial"]
    with pytest.raises(bbsvi.InvalidValueError, match="Did you mean 'coal_mining'"):
        bbsvi.examples.load("coalmining")


@functools.cache
def fitted(name, family, seed):
    example = bbsvi.examples.load(name)
    return example, bbsvi.fit(example.target, family, data=example.data, seed=seed, progress_bar=False)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", list(EIGHT_SCHOOLS))
def test_eight_schools_reaches_the_optimum_of_the_family(family, seed):
    _, posterior = fitted("eight_schools", family, seed)
    assert posterior.converged
    elbo = posterior.elbo(100_000)
    assert elbo.standard_error < 0.005
    assert abs(elbo.value - EIGHT_SCHOOLS[family]) < 0.03


@pytest.mark.parametrize("seed", SEEDS)
def test_coal_mining_reaches_the_mean_field_optimum(seed):
    example, posterior = fitted("coal_mining", "mean_field", seed)
    assert posterior.converged
    assert abs(posterior.elbo(100_000).value - COAL_ELBO) < 0.05
    (logits,) = (v for v in posterior.family.trainable_variables if v.shape == (111,))
    assert abs(float(tf.nn.softmax(logits)[1892 - 1851]) - COAL_1892) < 0.02
    mean = posterior.mean()
    for rate in ("early", "late"):
        assert abs(mean[rate] - example.reference.mean[rate]) < 0.1 * example.reference.stddev[rate]


@pytest.mark.parametrize("name", bbsvi.examples.names())
def test_elbo_stays_below_the_log_evidence(name):
    example, posterior = fitted(name, "mean_field", 0)
    elbo = posterior.elbo(20_000)
    assert elbo.value < example.reference.log_evidence + 3 * elbo.standard_error


@pytest.mark.parametrize("name", bbsvi.examples.names())
def test_quantities_are_those_of_the_reference(name):
    example, posterior = fitted(name, "mean_field", 0)
    quantities = example.quantities(posterior.sample(100))
    assert set(quantities) == set(example.reference.mean) == set(example.reference.stddev)
    assert {draws.shape for draws in quantities.values()} == {(100,)}


def test_beta_binomial_has_the_closed_form():
    _, posterior = fitted("beta_binomial", "mean_field", 0)
    np.testing.assert_allclose(posterior.mean()["p"], 8 / 18, atol=0.005)
    np.testing.assert_allclose(posterior.stddev()["p"], 0.113998, atol=0.01)


def test_centred_eight_schools_is_not_to_be_trusted_and_says_so():
    _, posterior = fitted("eight_schools_centered", "mean_field", 0)
    diagnostics = posterior.diagnose()
    assert diagnostics.k_hat > diagnostics.k_hat_threshold
    assert any("Do not trust variances" in message for message in diagnostics.messages)


def test_command_line_prints_the_fit_beside_its_reference(capsys):
    main(["beta_binomial", "--seed", "1"])
    printed = capsys.readouterr().out
    assert "Converged after" in printed
    assert "reference: conjugate: Beta(8, 10)" in printed
    row = next(line.split() for line in printed.splitlines() if line.split()[:1] == ["p"])
    assert abs(float(row[1]) - float(row[3])) < 0.01
