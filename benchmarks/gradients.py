"""Many gradient estimates of one estimator in one compiled call: bbsvi's estimators and TFP's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from bbsvi.examples import Example
from bbsvi.families import Family
from bbsvi.randomness import as_seed, fold_in
from bbsvi.targets import Target

tfd = tfp.distributions
REPARAMETERIZATION = tfp.vi.GradientEstimators.REPARAMETERIZATION
SCORE_FUNCTION = tfp.vi.GradientEstimators.SCORE_FUNCTION

Gradients = Callable[[int], np.ndarray]  # seed -> [repeats, P]: estimates of the ELBO's gradient


def of_estimator(
    estimator: Any, target: Target, family: Family, *, sample_size: int, repeats: int, jit_compile: bool
) -> Gradients:
    """`repeats` estimates in a row at q as it is now; what an estimator remembers runs on from one to the next."""

    @tf.function(jit_compile=jit_compile, autograph=False)
    def run(seed: Any) -> Any:
        def step(before: Any, index: Any) -> Any:
            state, _ = before
            estimate, state = estimator.estimate(
                state, target, family, sample_size=sample_size, seed=fold_in(seed, index)
            )
            return state, flat(estimate.gradient)

        state = estimator.init(target, family, sample_size=sample_size, seed=fold_in(seed, -1))
        start = flat([tf.zeros_like(variable) for variable in family.trainable_variables])
        return tf.scan(step, tf.range(repeats), (state, start))[1]

    return lambda seed: run(as_seed(seed)).numpy()


def of_tfp(
    gradient_estimator: Any, example: Example, family: Family, *, sample_size: int, repeats: int, jit_compile: bool
) -> Gradients:
    """The same from `tfp.vi.monte_carlo_variational_loss`, by q's own variables."""
    variables, log_prob = family.trainable_variables, log_density(example)

    @tf.function(jit_compile=jit_compile, autograph=False)
    def run(seed: Any) -> Any:
        def step(_: Any, index: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tfp.vi.monte_carlo_variational_loss(
                    log_prob,
                    surrogate(family),
                    sample_size=sample_size,
                    gradient_estimator=gradient_estimator,
                    seed=fold_in(seed, index),
                )
            return -flat(tape.gradient(loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO))

        return tf.scan(step, tf.range(repeats), flat([tf.zeros_like(variable) for variable in variables]))

    return lambda seed: run(as_seed(seed)).numpy()


def surrogate(family: Family) -> Any:
    """A mean-field q as a TFP joint distribution over the model's space, made of the same variables."""
    parts = {}
    for factor in family.factors:
        (latent,) = factor.latents
        parts[latent.name] = factor.distribution
        if not latent.is_discrete:
            parts[latent.name] = tfd.TransformedDistribution(factor.distribution, latent.support.bijector)
    return tfd.JointDistributionNamed(parts)


def log_density(example: Example) -> Callable[..., Any]:
    """The example's log p(**latents), [S], as TFP has it.

    It is differentiated draw by draw, inside the vectorisation: differentiated from outside, XLA
    compiles it again for every new seed.
    """

    def of_draw(values: Any) -> Any:
        return example.target.log_prob({**values, **example.data})

    def gradient_of_draw(values: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(values)
            log_p = of_draw(values)
        return tape.gradient(log_p, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    def log_prob(**latents: Any) -> Any:
        latents.pop("seed", None)  # TFP hands one to every function that takes keywords

        @tf.custom_gradient
        def by_draw(*parts: Any) -> Any:
            values = dict(zip(latents, parts))

            def backward(upstream: Any) -> Any:
                gradients = tf.vectorized_map(gradient_of_draw, values)
                return [tf.einsum("s,s...->s...", upstream, gradients[name]) for name in latents]

            return tf.vectorized_map(of_draw, values), backward

        return by_draw(*latents.values())

    return log_prob


def flat(gradient: Any) -> Any:
    """The variables' gradients as one vector, [P]."""
    return tf.concat([tf.reshape(part, [-1]) for part in gradient], axis=0)
