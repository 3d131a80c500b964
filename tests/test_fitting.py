"""The loop as a user meets it: reproducible, interruptible, honest about how it ended."""

import signal

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import bbsvi

tfd = tfp.distributions
DETERMINISTIC = ("step", "elbo", "elbo_standard_error", "gradient_norm", "gradient_snr", "dropped_draws")


def gaussian_log_prob(z):
    """N(1.5, 0.5) and, beside it, N(-2, 2), normalised: the best ELBO is 0."""
    loc, scale = tf.constant([1.5, -2.0], z.dtype), tf.constant([0.5, 2.0], z.dtype)
    return tf.reduce_sum(-0.5 * ((z - loc) / scale) ** 2 - tf.math.log(scale) - 0.5 * np.log(2 * np.pi), axis=-1)


def gaussian(dtype="float32"):
    return bbsvi.Target(gaussian_log_prob, event_shape=(2,), dtype=dtype)


def quick(target=None, **options):
    options = {"num_steps": 300, "convergence": None, "seed": 3, "progress_bar": False, "sample_size": 8} | options
    return bbsvi.fit(gaussian() if target is None else target, **options)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_gaussian_is_fitted_exactly(dtype):
    posterior = quick(gaussian(dtype), num_steps=5_000, convergence="auto", sample_size=64)
    assert posterior.converged
    assert posterior.message.startswith("Converged after")
    assert all(variable.dtype.name == dtype for variable in posterior.family.trainable_variables)
    loc, log_scale = posterior.family.parameters()
    # What is left is the slow end of the approach, worth less than the rule's tolerance of 0.001 nats.
    ratio = np.exp(log_scale) / [0.5, 2.0]
    divergence = np.sum((ratio**2 + ((loc - [1.5, -2.0]) / [0.5, 2.0]) ** 2 - 1) / 2 - np.log(ratio))
    assert divergence < 0.001
    assert -0.002 < posterior.elbo(100_000).value < 1e-3


@pytest.mark.parametrize("jit_compile", [False, True])
def test_same_seed_same_bits(jit_compile):
    first, second = (quick(jit_compile=jit_compile) for _ in range(2))
    other = quick(jit_compile=jit_compile, seed=4)
    for name in DETERMINISTIC:
        np.testing.assert_array_equal(first.history[name], second.history[name])
    for a, b in zip(first.family.parameters(), second.family.parameters(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(first.history["elbo"], other.history["elbo"])


def test_how_steps_are_cut_into_calls_changes_nothing():
    from bbsvi.optimization.loop import Steps

    def trace(*counts):
        target = gaussian()
        family = bbsvi.families.MeanField(target)
        steps = Steps(
            target,
            family,
            bbsvi.estimators.ScoreFunction(control_variate=bbsvi.control_variates.MovingAverage()),
            keras.optimizers.Adam(0.05),
            sample_size=4,
            seed=tf.constant([0, 5]),
            jit_compile=False,
        )
        records = []
        for count in counts:
            steps._count = count
            records.append(steps.advance(count))
        return np.concatenate([r.elbo for r in records]), np.concatenate([r.iterates for r in records])

    for whole, cut in zip(trace(60), trace(1, 13, 20, 6, 20), strict=True):
        np.testing.assert_array_equal(whole, cut)


def test_history_is_one_entry_a_step():
    history = quick(num_steps=270).history
    assert set(history) == {*DETERMINISTIC, "seconds"}
    assert {len(array) for array in history.values()} == {270}
    np.testing.assert_array_equal(history["step"], np.arange(1, 271))
    assert np.all(np.diff(history["seconds"]) > 0)
    assert np.all(history["elbo_standard_error"] > 0)


def test_history_standard_errors_are_those_of_the_elbo():
    """Where q stands still, the ELBO of a step scatters by the standard error that it reports."""
    target = gaussian()
    posterior = quick(target, optimizer=keras.optimizers.SGD(1e-9), num_steps=2_000, sample_size=16)
    scatter = posterior.history["elbo"].std()
    reported = np.sqrt(np.mean(posterior.history["elbo_standard_error"] ** 2))
    assert scatter == pytest.approx(reported, rel=0.06)


def test_one_optimizer_serves_two_fits():
    optimizer = keras.optimizers.Adam(0.05)
    first, second = quick(optimizer=optimizer), quick(optimizer=optimizer)
    np.testing.assert_array_equal(first.history["elbo"], second.history["elbo"])
    assert not optimizer.built


@pytest.mark.parametrize(
    "optimizer",
    [
        keras.optimizers.SGD(0.01, momentum=0.9),
        keras.optimizers.RMSprop(0.02),
        keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 100, 0.9), clipnorm=10.0),
    ],
    ids=lambda optimizer: type(optimizer).__name__,
)
def test_keras_optimizers_are_taken_as_they_are(optimizer):
    history = quick(optimizer=optimizer, num_steps=400).history
    assert history["elbo"][-50:].mean() > history["elbo"][:50].mean() + 1


def test_tf_keras_optimizers_too():
    import tf_keras

    history = quick(optimizer=tf_keras.optimizers.Adam(0.05)).history
    assert history["elbo"][-50:].mean() > history["elbo"][:50].mean() + 1


def test_callbacks_see_each_chunk_and_can_stop():
    seen = []
    posterior = quick(num_steps=1_000, callbacks=[seen.append, lambda progress: np.bool_(progress.step >= 500)])
    assert [progress.step for progress in seen] == [250, 500]
    assert len(seen[0].history["elbo"]) == 250
    assert np.isfinite(seen[0].elbo)
    assert seen[0].elbo_standard_error > 0
    assert posterior.message.startswith("Stopped by a callback after 500 steps.")


def test_an_exception_in_a_callback_does_not_lose_the_work():
    def fails(_):
        raise RuntimeError("out of ink")

    with pytest.raises(RuntimeError, match="out of ink") as caught:
        quick(num_steps=1_000, callbacks=[fails])
    posterior = caught.value.posterior
    assert len(posterior.history["elbo"]) == 250
    assert posterior.sample(3)["z"].shape == (3, 2)
    assert abs(posterior.family.parameters()[0][0]) > 0.5  # it has moved


def test_keyboard_interrupt_returns_what_there_is():
    def interrupt(_):
        raise KeyboardInterrupt

    posterior = quick(num_steps=1_000, callbacks=[interrupt])
    assert len(posterior.history["elbo"]) == 250
    assert posterior.message.startswith("Interrupted after 250 steps.")


def test_ctrl_c_finishes_the_call_and_returns_what_there_is():
    before = signal.getsignal(signal.SIGINT)
    posterior = quick(callbacks=[lambda _: signal.raise_signal(signal.SIGINT)], num_steps=1_000)
    assert posterior.message.startswith("Interrupted after")
    assert 250 <= len(posterior.history["elbo"]) < 1_000
    assert signal.getsignal(signal.SIGINT) is before


def test_an_exception_in_the_model_is_the_users_own_with_the_work_attached():
    calls = []

    def breaks(z):
        calls.append(len(z))
        if len(calls) > 60:
            raise KeyError("sensor 7 is gone")
        return -0.5 * np.sum(z**2, axis=-1)

    target = bbsvi.Target.from_numpy(breaks, event_shape=(2,))
    with pytest.raises(bbsvi.LogProbError, match="sensor 7 is gone") as caught:
        quick(target)
    assert isinstance(caught.value.__cause__, KeyError)
    assert len(caught.value.posterior.history["elbo"]) > 0


def test_nan_leaves_parameters_alone_is_counted_and_raises_if_it_persists():
    def log_prob(z):
        """NaN beyond 3, which q reaches as it moves towards 10."""
        return tf.where(z > 3, tf.constant(float("nan")), -0.5 * (z - 10) ** 2)

    target = bbsvi.Target(lambda z: log_prob(z), event_shape=())
    with pytest.raises(bbsvi.NonFiniteError, match=r"'log_prob' is nan at draw \d+: z = 3\.") as caught:
        quick(target, num_steps=3_000)
    posterior = caught.value.posterior
    assert np.isnan(posterior.history["elbo"]).sum() > 100
    assert all(np.isfinite(parameter).all() for parameter in posterior.family.parameters())


def test_draws_outside_the_support_are_dropped_and_counted():
    """A uniform on (0, 1) under a normal q: -inf is legal, and those draws are left out."""
    target = bbsvi.Target(
        lambda z: tf.where((z > -1.5) & (z < 1.5), -tf.abs(z), tf.constant(-np.inf, z.dtype)), event_shape=()
    )
    with pytest.warns(bbsvi.BBSVIWarning) as caught:
        posterior = quick(target)
    dropped = posterior.history["dropped_draws"].sum()
    assert dropped > 0
    assert np.isfinite(posterior.history["elbo"]).all()
    first, last = (str(warning.message) for warning in caught)
    assert "term 'log_prob' is -inf at draw" in first
    assert f"{dropped} of 2400 draws had log p = -inf" in last
    assert posterior.message == last


def test_a_warning_in_plain_words_when_the_steps_run_out():
    far = bbsvi.Target(lambda z: -0.5 * (z - 100) ** 2, event_shape=())
    with pytest.warns(bbsvi.ConvergenceWarning, match=r"Ran 500 steps\. Not converged: the parameters still move"):
        posterior = quick(far, num_steps=500, convergence="auto")
    assert not posterior.converged


def normal(loc, sd):
    """N(loc, sd), normalised."""
    return bbsvi.Target(lambda z: -0.5 * ((z - loc) / sd) ** 2 - np.log(sd * np.sqrt(2 * np.pi)), event_shape=())


@pytest.mark.parametrize(
    ("target", "optimizer"),
    [
        (normal(1e5, 1e5), None),
        (normal(3.0, 1.0), keras.optimizers.Adam(1e-4)),
        (normal(10.0, 1.0), keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.02, 100, 0.5))),
    ],
    ids=["latent on the scale of 1e5", "small steps", "steps that decay too soon"],
)
def test_slow_is_not_taken_for_arrived(target, optimizer):
    with pytest.warns(bbsvi.ConvergenceWarning, match="Not converged") as caught:
        posterior = quick(target, num_steps=2_500, convergence="auto", optimizer=optimizer, sample_size=64)
    assert not posterior.converged
    assert caught[0].message.posterior is posterior


def test_a_collapsed_q_is_called_so():
    """One step too large leaves a scale below the resolution of the location."""
    with pytest.warns(bbsvi.ConvergenceWarning, match="q has collapsed"):
        posterior = quick(normal(3.0, 0.1), num_steps=1_000, convergence="auto", optimizer=keras.optimizers.SGD(0.1))
    found = posterior.diagnose()
    assert found.k_hat == np.inf
    assert any("q has collapsed: all draws of z are the same" in message for message in found.messages)


def test_steps_that_overflow_are_not_recorded_as_taken():
    steep = bbsvi.Target(lambda z: -((1e11 * (z - 3.0)) ** 2), event_shape=())
    with pytest.raises(bbsvi.NonFiniteError, match="the gradient is too large for float32") as caught:
        quick(steep, num_steps=1_000, convergence="auto")
    assert np.isnan(caught.value.posterior.history["elbo"]).all()


def test_some_nan_steps_are_counted_and_warned_of():
    target = bbsvi.Target(lambda z: tf.where(z > 3.2, np.nan, -0.5 * z**2), event_shape=())
    with pytest.warns(bbsvi.BBSVIWarning, match=r"\d+ of 300 steps met a NaN"):
        posterior = quick(target, sample_size=64)
    assert 0 < np.isnan(posterior.history["elbo"]).sum() < 100


def test_a_scale_that_leaves_its_range_is_named():
    with pytest.raises(bbsvi.NonFiniteError, match="log q is nan at draws of the present q") as caught:
        quick(normal(3.0, 0.01), family=tfd.Normal(tf.Variable(0.0), tf.Variable(1.0)), num_steps=5_000)
    assert caught.value.posterior.family.parameters()[1] > 0


@pytest.mark.parametrize(
    "log_prob", [lambda z: tf.constant(-0.5 * z.numpy() ** 2), lambda z: -0.5 * z**2 if tf.reduce_sum(z) > -1e9 else z]
)
def test_a_model_that_runs_only_eagerly_is_refused_before_compilation(log_prob):
    with pytest.raises(bbsvi.InvalidTypeError, match=r"eagerly but not in a graph.*Target\.from_numpy"):
        quick(bbsvi.Target(log_prob, event_shape=()))


def test_a_posterior_keeps_its_parameters_when_its_family_is_fitted_again():
    target = normal(1.0, 1.0)
    family = bbsvi.families.MeanField(target)
    first = quick(target, family=family)
    before = first.sample(5)["z"]
    quick(normal(-2.0, 1.0), family=family)
    np.testing.assert_array_equal(first.sample(5)["z"], before)


def test_a_family_class_of_the_users_own_is_fitted():
    class Shifted(bbsvi.families.MeanField):
        pass

    posterior = quick(normal(1.0, 1.0), family=Shifted(normal(1.0, 1.0)))
    assert posterior.sample(3)["z"].shape == (3,)


def test_a_posterior_of_a_wrapped_distribution_notices_another_fit():
    target = normal(1.0, 1.0)
    q = tfd.Normal(tf.Variable(0.0), tfp.util.TransformedVariable(1.0, tfp.bijectors.Exp()))
    first = quick(target, family=q)
    first.sample(5)
    second = quick(normal(-2.0, 1.0), family=q)
    second.sample(5)
    for question in (lambda: first.sample(5), first.elbo, lambda: first.log_prob({"z": np.zeros(1, np.float32)})):
        with pytest.raises(bbsvi.InvalidValueError, match="trained again since"):
            question()


def test_convergence_none_runs_every_step():
    assert len(quick(num_steps=2_000, sample_size=64).history["step"]) == 2_000


@pytest.mark.parametrize("constant", [0.0, 1e7, -1e7])
def test_a_constant_in_log_p_changes_nothing(constant):
    """In float64 at 1e7 a difference of 1 keeps nine digits."""
    target = bbsvi.Target(lambda z: gaussian_log_prob(z) + constant, event_shape=(2,), dtype="float64")
    plain, shifted = quick(gaussian("float64")), quick(target)
    for a, b in zip(plain.family.parameters(), shifted.family.parameters(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_moving_average_works_with_one_draw():
    estimator = bbsvi.estimators.ScoreFunction(control_variate=bbsvi.control_variates.MovingAverage())
    posterior = quick(estimator=estimator, sample_size=1, num_steps=4_000)
    loc, _ = posterior.family.parameters()
    np.testing.assert_allclose(loc, [1.5, -2.0], atol=0.5)
    assert np.isnan(posterior.history["elbo_standard_error"]).all()  # one draw has no spread


@pytest.mark.parametrize(
    "control_variate",
    [None, bbsvi.control_variates.OptimalCoefficients(), bbsvi.control_variates.OptimalCoefficients(folds=2)],
    ids=["none", "optimal", "optimal-folds"],
)
def test_every_control_variate_fits(control_variate):
    estimator = bbsvi.estimators.ScoreFunction(control_variate=control_variate)
    posterior = quick(estimator=estimator, num_steps=2_000, sample_size=32)
    assert posterior.elbo(20_000).value > -0.1


def test_a_callable_that_xla_cannot_compile_falls_back_with_one_warning():
    def log_prob(z):
        return tf.numpy_function(lambda v: -0.5 * v.astype(np.float32) ** 2, [z], tf.float32)

    with pytest.warns(bbsvi.BBSVIWarning, match="XLA cannot compile") as caught:
        quick(bbsvi.Target(log_prob, event_shape=()))
    assert len(caught) == 1


def test_a_joint_distribution_and_its_family_by_object():
    joint = tfd.JointDistributionNamed({"x": tfd.Normal(0.0, 1.0), "y": lambda x: tfd.Normal(x, 1.0)})
    target = bbsvi.Target.from_joint(joint, {"y": 2.0})
    posterior = quick(target, family=bbsvi.families.FullRank(target), num_steps=3_000, sample_size=32)
    assert posterior.elbo(10_000).value == pytest.approx(-2.265512, abs=0.003)
