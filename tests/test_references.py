"""The examples' reference posteriors, computed anew with numpy and scipy."""

import numpy as np
import pytest
from scipy import special, stats

import bbsvi


def assert_reference(reference, mean, stddev, log_evidence):
    assert set(mean) == set(reference.mean)
    for name, value in mean.items():
        assert reference.mean[name] == pytest.approx(value, abs=6e-5), name
    for name, value in stddev.items():
        assert reference.stddev[name] == pytest.approx(value, abs=6e-5), name
    assert reference.log_evidence == pytest.approx(log_evidence, abs=6e-5)


@pytest.mark.parametrize("name", ["eight_schools", "eight_schools_centered"])
def test_eight_schools_by_quadrature_over_log_tau(name):
    """Given tau, mu and theta are normal."""
    example = bbsvi.examples.load(name)
    y = example.data["y"].astype(float)
    s = np.array([15, 10, 16, 11, 9, 11, 10, 18], float)
    log_tau = np.linspace(np.log(1e-10), np.log(1e6), 100_001)
    tau = np.exp(log_tau)
    marginal = s**2 + tau[:, None] ** 2  # variance of y_j about mu
    precision = 1 / 25 + (1 / marginal).sum(axis=1)
    centre = (y / marginal).sum(axis=1) / precision
    log_density = stats.halfcauchy.logpdf(tau, 0, 5) + log_tau - 0.5 * np.log(2 * np.pi * marginal).sum(axis=1)
    log_density -= 0.5 * np.log(25 * precision) + 0.5 * ((y**2 / marginal).sum(axis=1) - centre**2 * precision)
    step = log_tau[1] - log_tau[0]
    log_evidence = special.logsumexp(log_density) + np.log(step)
    weight = np.exp(log_density - log_evidence) * step
    shrink = tau[:, None] ** 2 / marginal
    theta = shrink * y + (1 - shrink) * centre[:, None]
    theta_variance = shrink * s**2 + (1 - shrink) ** 2 / precision[:, None]

    def moments(conditional_mean, conditional_variance):
        mean = weight @ conditional_mean
        return mean, np.sqrt(weight @ (conditional_variance + conditional_mean**2) - mean**2)

    found = {"mu": moments(centre, 1 / precision), "log tau": moments(log_tau, 0), "tau": moments(tau, 0)}
    found |= {f"theta[{j}]": moments(theta[:, j], theta_variance[:, j]) for j in range(8)}
    mean, stddev = ({name: pair[i] for name, pair in found.items()} for i in (0, 1))
    assert_reference(example.reference, mean, stddev, log_evidence)


def test_coal_mining_by_summing_over_the_switch_year():
    """Given the switch year, the two rates are gamma."""
    example = bbsvi.examples.load("coal_mining")
    counts = example.data["disasters"].astype(float)
    assert len(counts) == 111
    assert counts.sum() == 191
    years = np.arange(111)
    before = np.concatenate([[0], np.cumsum(counts)])[:111]
    after = counts.sum() - before
    log_joint = -np.log(111) - special.gammaln(counts + 1).sum()
    shape, rate = np.stack([1 + before, 1 + after]), np.stack([1 + years, 1 + 111 - years]).astype(float)
    log_joint = log_joint + (special.gammaln(shape) - shape * np.log(rate)).sum(axis=0)
    log_evidence = special.logsumexp(log_joint)
    probability = np.exp(log_joint - log_evidence)
    first = (shape / rate) @ probability
    second = (shape * (shape + 1) / rate**2) @ probability
    mean = {"early": first[0], "late": first[1]}
    stddev = dict(zip(("early", "late"), np.sqrt(second - first**2)))
    mean |= {name: probability[int(name[-5:-1]) - 1851] for name in example.reference.mean if name.startswith("P(")}
    assert_reference(example.reference, mean, stddev, log_evidence)


def test_beta_binomial_is_conjugate():
    reference = bbsvi.examples.load("beta_binomial").reference
    grid = (np.arange(200_000) + 0.5) / 200_000
    joint = stats.beta(3, 3).pdf(grid) * stats.binom(12, grid).pmf(5) / len(grid)
    mean = joint @ grid / joint.sum()
    stddev = np.sqrt(joint @ grid**2 / joint.sum() - mean**2)
    assert_reference(reference, {"p": mean}, {"p": stddev}, np.log(joint.sum()))
