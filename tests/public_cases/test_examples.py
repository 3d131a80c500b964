"""Two classics: a discrete change point, and a hierarchical scale.

C31: the switchpoint tutorial of TensorFlow Probability, with and without the two years that some versions of the
data mark as missing. C38: blei-lab/edward#805, blei-lab/edward#851, pymc-devs/pymc#775, pymc-devs/pymc#1764.
"""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import bbsvi

from .models import assert_below_evidence, assert_moments, fit

tfd = tfp.distributions

FIRST_YEAR = 1851
MISSING = np.array([1891, 1934]) - FIRST_YEAR


def disasters_with_missing_years(*, masked):
    """The coal-mining model with NaN for two years; `masked`: they are left out of the likelihood."""
    counts = bbsvi.examples.load("coal_mining").data["disasters"].copy()
    counts[MISSING] = np.nan
    years = tf.range(len(counts))

    def disasters(early, late, switch):
        poisson = tfd.Poisson(tf.where(years < switch, early, late))
        if masked:  # by default Masked draws a Poisson number for each year left out, which XLA cannot compile
            poisson = tfd.Masked(poisson, ~np.isnan(counts), safe_sample_fn=lambda distribution: distribution.mode())
        return tfd.Independent(poisson, 1)

    joint = tfd.JointDistributionNamed(
        {
            "early": tfd.Exponential(1.0),
            "late": tfd.Exponential(1.0),
            "switch": tfd.Categorical(logits=tf.zeros(len(counts))),
            "disasters": disasters,
        }
    )
    return joint, {"disasters": counts}


def probabilities_of_years(posterior):
    switch = posterior.sample(100_000, seed=3)["switch"]
    return np.bincount(switch, minlength=111) / len(switch)


def most_likely_years(posterior, count):
    return set(np.argsort(-probabilities_of_years(posterior))[:count] + FIRST_YEAR)


def fit_change_point(joint, data):
    return fit(joint, data=data, num_steps=6_000, convergence=None, sample_size=64)


def test_change_point():
    """C31: ELBO within 0.1 of the mean-field optimum -176.936545; 1892, 1891 and 1890 in front."""
    example = bbsvi.examples.load("coal_mining")
    posterior = fit_change_point(example.target, example.data)
    assert_below_evidence(posterior, -176.866085, gap=0.070460 + 0.1)
    assert_moments(posterior, "early", 125.589 / 40.992, np.sqrt(125.589) / 40.992, within=0.15)
    assert_moments(posterior, "late", 67.411 / 72.008, np.sqrt(67.411) / 72.008, within=0.15)
    assert most_likely_years(posterior, 3) == {1892, 1891, 1890}
    assert np.argmax(probabilities_of_years(posterior)) + FIRST_YEAR == 1892


def test_change_point_with_missing_years():
    """C31: log evidence -174.196942, mean-field optimum -174.249208; 1891 and 1892 tie."""
    posterior = fit_change_point(*disasters_with_missing_years(masked=True))
    assert_below_evidence(posterior, -174.196942, gap=0.052266 + 0.1)
    assert_moments(posterior, "early", 124.468 / 40.408, np.sqrt(124.468) / 40.408, within=0.15)
    assert_moments(posterior, "late", 65.532 / 70.592, np.sqrt(65.532) / 70.592, within=0.15)
    assert most_likely_years(posterior, 2) == {1891, 1892}
    assert most_likely_years(posterior, 3) == {1890, 1891, 1892}
    probabilities = probabilities_of_years(posterior)
    assert abs(probabilities[1891 - FIRST_YEAR] - probabilities[1892 - FIRST_YEAR]) < 0.05


def test_missing_years_left_in_the_likelihood_are_named():
    """C31: there the likelihood is undefined and nothing would move."""
    joint, data = disasters_with_missing_years(masked=False)
    with pytest.raises(bbsvi.NonFiniteError, match=r"term 'disasters' is (nan|-inf)"):
        fit(joint, data=data)


THETA_MEANS = [6.2122, 4.9402, 3.9269, 4.7571, 3.6153, 4.0425, 6.2971, 4.8543]
SCHOOLS_LOG_EVIDENCE = -31.311551


@pytest.mark.parametrize("family", ["mean_field", "full_rank"])
def test_eight_schools(family):
    """C38, non-centred: mu 4.396775 within 0.3, theta means within 0.7, tau positive and not collapsed.

    Mean field's own optimum has the first school's mean 0.9 too low: it knows nothing of tau and
    theta_trans together, so that the means are those of full rank.
    """
    example = bbsvi.examples.load("eight_schools")
    posterior = fit(example.target, family, data=example.data)
    draws = posterior.sample(100_000, seed=3)
    quantities = example.quantities(draws)
    assert abs(quantities["mu"].mean() - 4.396775) < 0.3
    if family == "full_rank":
        thetas = np.array([quantities[f"theta[{school}]"].mean() for school in range(8)])
        assert np.abs(thetas - THETA_MEANS).max() < 0.7
    assert draws["tau"].min() > 0
    assert abs(np.median(draws["tau"]) - 2.751897) < 1.0
    assert abs(quantities["log tau"].std() / 1.164659 - 1) < 0.5
    assert_below_evidence(posterior, SCHOOLS_LOG_EVIDENCE, gap=0.4)


def test_centred_eight_schools_is_not_passed_off_as_right():
    """C38: a Gaussian cannot follow the funnel; the diagnosis says that q is not to be trusted."""
    example = bbsvi.examples.load("eight_schools_centered")
    posterior = fit(example.target, data=example.data, num_steps=2_000, convergence=None)
    diagnosis = posterior.diagnose()
    assert diagnosis.k_hat > diagnosis.k_hat_threshold
    assert "Do not trust" in str(diagnosis)
    assert posterior.sample(10_000)["tau"].min() > 0
    assert_below_evidence(posterior, SCHOOLS_LOG_EVIDENCE, gap=5.0)
