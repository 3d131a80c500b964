"""The noise floor, the sign of the ELBO, and when to stop.

C07: the public question "Uber's Pyro less accurate than expected on toy example".
C11: pyro-ppl/pyro#1982, pyro-ppl/pyro#1988, probml/pyprobml#694.
C30: TuringLang/Turing.jl#1674, pymc-devs/pymc#2310, pymc-devs/pymc#2031, pymc-devs/pymc#1856, pymc-devs/pymc#8384.
"""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from scipy import special

import bbsvi
from bbsvi.__main__ import main

from .models import assert_below_evidence, assert_moments, coin, fit, scalar_mean

tfb, tfd = tfp.bijectors, tfp.distributions

COIN_LOG_EVIDENCE = -8.776887  # Beta(3, 3), 5 ones and 7 zeros


def beta_gap(a, b):
    """KL(Beta(a, b) || Beta(16, 14)): how far the ELBO lies below its best, -7.069375."""
    log_p = special.betaln(16, 14) - special.betaln(a, b)
    return log_p + (a - 16) * special.digamma(a) + (b - 14) * special.digamma(b) + (30 - a - b) * special.digamma(a + b)


def fitted_beta(num_steps, *, start=None, learning_rate=0.02, control_variate="auto"):
    """C07's a and b after so many steps, and the posterior.

    Args:
      start: where a tfd.Beta of one's own begins; None: the family's Beta factor.
    """
    target = coin(10.0, 10.0, 6, 4)
    if start is None:
        q = bbsvi.families.MeanField(target, factors={"p": tfd.Beta})
    else:
        q = tfd.Beta(*(tfp.util.TransformedVariable(value, tfb.Exp()) for value in start))
    posterior = fit(
        target,
        q,
        num_steps=num_steps,
        convergence=None,
        sample_size=64,
        optimizer=keras.optimizers.Adam(learning_rate),
        estimator=bbsvi.estimators.ScoreFunction(control_variate=control_variate),
        jit_compile=False,  # XLA takes longer to compile the sampler than all the steps take
    )
    beta = posterior.family.factors[0].distribution
    a, b = (float(tf.convert_to_tensor(value)) for value in (beta.concentration1, beta.concentration0))
    return a, b, posterior


def assert_locked_on(a, b):
    assert abs(a - 16) < 0.1
    assert abs(b - 14) < 0.1
    assert beta_gap(a, b) < 1e-4


@pytest.mark.parametrize(
    ("num_steps", "start", "learning_rate"),
    [
        pytest.param(2_000, (1.0, 1.0), 0.05, id="2,000 steps"),
        pytest.param(2_000, (1.0, 1.0), 0.1, id="2,000 larger steps"),
        pytest.param(20_000, (1.0, 1.0), 0.02, id="20,000 steps"),
        pytest.param(20_000, None, 0.1, id="20,000 steps of the factor"),
        pytest.param(500, (16.0, 14.0), 0.1, id="started at the answer"),
    ],
)
def test_beta_locks_on_to_the_conjugate_answer(num_steps, start, learning_rate):
    """C07: Beta(16, 14), gap below 1e-4; the report saw the result wander off, even from the answer."""
    a, b, posterior = fitted_beta(num_steps, start=start, learning_rate=learning_rate)
    assert_locked_on(a, b)
    assert_moments(posterior, "p", 0.533333, 0.0896029, within=0.03, spread=0.02)
    assert_below_evidence(posterior, -7.069375, gap=1e-4)


def test_more_steps_help_where_the_gradient_stays_noisy():
    """C07: without a control variate the noise never dies out; the averages over more steps are still better."""
    few, many = (beta_gap(*fitted_beta(steps, start=(1.0, 1.0), control_variate=None)[:2]) for steps in (2_000, 20_000))
    assert many < few / 2


@pytest.fixture(scope="module")
def coin_fit():
    """C11's fit, and what a callback and the progress bar were told on the way."""
    told = []
    return fit(coin(3.0, 3.0, 5, 7), callbacks=[told.append]), told


def blocks(history, size=50):
    """The ELBO trace averaged over blocks of steps, with standard errors."""
    elbo, error = (history[name].reshape(-1, size) for name in ("elbo", "elbo_standard_error"))
    return elbo.mean(axis=1), np.sqrt(np.sum(error**2, axis=1)) / size


def test_coin_fit_is_the_best_logit_normal(coin_fit):
    """C11: m = -0.235665, s = 0.487376, ELBO -8.777339; the fit says that it has converged."""
    posterior, _ = coin_fit
    loc, log_scale = posterior.family.parameters()
    assert abs(loc - -0.235665) < 0.1 * 0.487376
    assert abs(np.exp(log_scale) / 0.487376 - 1) < 0.05
    assert_moments(posterior, "p", 0.444444, 0.113998)
    assert_below_evidence(posterior, COIN_LOG_EVIDENCE, gap=0.005)
    assert posterior.converged


def test_smoothed_elbo_never_exceeds_the_log_evidence(coin_fit):
    """C11: everywhere in the trace."""
    elbo, error = blocks(coin_fit[0].history)
    assert (elbo <= COIN_LOG_EVIDENCE + 3 * error).all()


def test_smoothed_trace_shows_the_improvement(coin_fit):
    """C11: the noisy trace was read as 'not improving'; smoothed it rises and then stays."""
    elbo, error = blocks(coin_fit[0].history)
    assert elbo[0] < elbo[-1] - 5 * error[0]
    assert np.abs(elbo[-3:] - elbo[-1]).max() < 0.02


def test_history_result_callbacks_and_diagnosis_have_one_sign(coin_fit):
    """C11: the ELBO is near -8.777 wherever it is said; a loss would be near +8.777."""
    posterior, told = coin_fit
    diagnosis = posterior.diagnose()
    (said,) = re.findall(r"ELBO (-?\d+\.\d+)", str(diagnosis))
    values = [
        posterior.history["elbo"][-50:].mean(),
        posterior.elbo().value,
        told[-1].elbo,
        diagnosis.elbo.value,
        float(said),
    ]
    np.testing.assert_allclose(values, -8.777, atol=0.02)


def test_progress_bar_shows_the_elbo_with_the_same_sign(capsys):
    """C11, and the bound: z ~ N(0, 1), x ~ N(z, 1), x = 2 has log evidence -2.265512."""
    joint = tfd.JointDistributionNamed({"z": tfd.Normal(0.0, 1.0), "x": lambda z: tfd.Normal(z, 1.0)})
    posterior = fit(joint, data={"x": 2.0}, progress_bar=True)
    shown = re.findall(r"ELBO (-?\d+\.\d+)", capsys.readouterr().err)
    assert abs(float(shown[-1]) - -2.2655) < 0.02
    elbo, error = blocks(posterior.history)
    assert (elbo <= -2.265512 + 3 * error + 1e-6).all()
    assert_moments(posterior, "z", 1.0, np.sqrt(0.5))
    assert_below_evidence(posterior, -2.265512, gap=0.001)


def test_command_line_prints_the_elbo_with_the_same_sign(capsys):
    """C11: `python -m bbsvi beta_binomial`, the same posterior with the number of ones as the datum."""
    main(["beta_binomial", "--seed", "1"])
    (elbo, evidence) = re.findall(r"ELBO (-\d+\.\d+) ± \d+\.\d+, log evidence (-\d+\.\d+)", capsys.readouterr().out)[0]
    log_evidence = COIN_LOG_EVIDENCE + np.log(special.comb(12, 5))
    assert abs(float(evidence) - log_evidence) < 1e-4
    assert log_evidence - 0.01 < float(elbo) < log_evidence + 0.001


def assert_stopped_truthfully(posterior):
    """It stopped by itself, within a sensible number of steps, and says how many it took."""
    steps = len(posterior.history["step"])
    assert posterior.converged
    assert 100 <= steps <= 5_000
    assert posterior.message == f"Converged after {steps} steps."


@pytest.mark.parametrize("start", [(0.0, 1.0), (3.0, 0.2)], ids=["at the optimum", "elsewhere"])
def test_stops_where_the_best_elbo_is_zero(start):
    """C30: a ~ N(0, 1), nothing observed."""
    target = bbsvi.Target(lambda a: tfd.Normal(0.0, 1.0).log_prob(a), event_shape={"a": ()})
    q = tfd.Normal(tf.Variable(start[0]), tfp.util.TransformedVariable(start[1], tfb.Exp()))
    posterior = fit(target, q)
    assert_stopped_truthfully(posterior)
    assert_moments(posterior, "a", 0.0, 1.0)
    assert_below_evidence(posterior, 0.0, gap=0.005)


@pytest.mark.parametrize("family", ["mean_field", "full_rank"])
def test_one_scalar_latent_with_data(family):
    """C30: 0.225 (0.5) and log evidence -4.053713; shapes () and (1,) agree."""
    posteriors = [fit(scalar_mean(shape), family) for shape in [(), (1,)]]
    for posterior in posteriors:
        assert_stopped_truthfully(posterior)
        assert_moments(posterior, "mu", np.full(posterior.mean()["mu"].shape, 0.225), 0.5)
        assert_below_evidence(posterior, -4.053713, gap=0.005)
    scalar, vector = (np.concatenate([p.ravel() for p in posterior.family.parameters()]) for posterior in posteriors)
    np.testing.assert_allclose(scalar, vector, atol=1e-4)


def test_says_so_when_the_steps_run_out():
    """C30: the message is truthful in the other direction too."""
    with pytest.warns(bbsvi.ConvergenceWarning, match="Not converged"):
        posterior = fit(scalar_mean(), num_steps=30)
    assert not posterior.converged
    assert posterior.message.startswith("Ran 30 steps. Not converged")
