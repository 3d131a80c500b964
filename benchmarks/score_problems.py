"""The variational families whose scores are timed, with draws, weights and parameters to take the scores at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import bbsvi
from bbsvi.families import Family
from bbsvi.families.forms import positive_scale
from bbsvi.families.networks import Network
from bbsvi.randomness import as_seed
from benchmarks.score_densities import AMORTIZED, AUTOREGRESSIVE, FLOW, FULL_RANK, MEAN_FIELD

tfd = tfp.distributions

INPUTS, WIDTH = 32, 2  # of the encoder's rows, and of each row's latent


class Problem(NamedTuple):
    """One latent z of `size` numbers, bits or rows, under one factor, and S draws of it with weights."""

    kind: str
    size: int
    family: Family
    draws: Any  # [S, size], [S, size, WIDTH] of the amortized q
    w: Any  # [S]
    inputs: np.ndarray  # of the encoder, [size, INPUTS]

    @property
    def factor(self) -> Any:
        return self.family.factors[0]

    @property
    def variables(self) -> list[tf.Variable]:
        return self.family.trainable_variables

    @property
    def num_draws(self) -> int:
        return self.draws.shape[0]

    @property
    def num_parameters(self) -> int:
        return sum(variable.shape.num_elements() for variable in self.variables)

    @property
    def masks(self) -> list[np.ndarray]:
        """What the kernels of q's networks are multiplied by, ones where they are whole."""
        networks = [module for module in self.factor.submodules if isinstance(module, Network)]
        masks = {kernel.ref(): mask for network in networks for kernel, mask in zip(network.kernels, network.masks)}
        kernels = [variable for variable in self.variables if variable.shape.rank == 2]
        found = [masks.get(kernel.ref()) for kernel in kernels]
        return [np.ones(k.shape, np.float32) if mask is None else mask.numpy() for mask, k in zip(found, kernels)]

    def log_prob(self, draws: Any) -> Any:
        """log q of one draw or of S."""
        return self.factor.log_prob({"z": draws})


def problem(kind: str, size: int, num_draws: int, hidden: int = 0) -> Problem:
    """A family away from its start, and draws of it."""
    inputs = np.random.default_rng(3).normal(size=(size, INPUTS)).astype(np.float32)
    if kind == AMORTIZED:
        target = bbsvi.Target(lambda z: -tf.reduce_sum(z**2, [-2, -1]), (size, WIDTH))
        layers = [keras.layers.Dense(hidden, "tanh"), keras.layers.Dense(2 * WIDTH)]
        encoder = keras.Sequential([keras.Input((INPUTS,)), *layers])
        family: Family = bbsvi.families.Amortized(target, encoder=encoder, inputs=inputs)
    elif kind == FLOW:
        target = bbsvi.Target(lambda z: -tf.reduce_sum(z**2, -1), (size,))
        family = bbsvi.families.Flow(target, hidden_units=(hidden,))
    elif kind == AUTOREGRESSIVE:
        target = bbsvi.Target(lambda z: tf.cast(tf.reduce_sum(z, -1), tf.float32), (size,), "binary")
        family = bbsvi.families.Autoregressive(target, hidden_units=(hidden,))
    else:
        target = bbsvi.Target(lambda z: -tf.reduce_sum(z**2, -1), (size,))
        family = {MEAN_FIELD: bbsvi.families.MeanField, FULL_RANK: bbsvi.families.FullRank}[kind](target)
        rng = np.random.default_rng(0)
        family.assign([0.5 / np.sqrt(size) * rng.normal(size=value.shape) for value in family.parameters()])
    draws = family.sample(num_draws, as_seed(1)).base["z"]
    w = tf.constant(np.random.default_rng(2).uniform(0.5, 1.5, num_draws), tf.float32)
    return Problem(kind, size, family, draws, w, inputs)


def broadcast_log_prob(of: Problem) -> Callable[[Sequence[Any], Any], Any] | None:
    """(parameters with one copy a draw, [S, ...] each; [S, size]) -> log q, [S]; None where nobody would write it."""
    if of.kind == MEAN_FIELD:
        return lambda tiled, draws: tf.reduce_sum(tfd.Normal(tiled[0], positive_scale(tiled[1])).log_prob(draws), -1)
    if of.kind == FULL_RANK:
        return lambda tiled, draws: tfd.MultivariateNormalTriL(
            tiled[0], tf.linalg.set_diag(_lower(tiled[2], of.size), positive_scale(tiled[1]))
        ).log_prob(draws)
    return None


def closed_form(of: Problem) -> Callable[[Any], list[Any]] | None:
    """[S, size] -> the scores, one array a variable, from their formula; None where they have no short one."""
    if of.kind != MEAN_FIELD:
        return None
    loc, log_scale = of.variables

    def scores(draws: Any) -> list[Any]:
        inverse = 1 / positive_scale(log_scale)
        noise = (draws - loc) * inverse
        return [noise * inverse, (tf.square(noise) - 1) * (tf.exp(log_scale) * inverse)]

    return scores


def _lower(flat: Any, size: int) -> Any:
    """[S, size (size - 1) / 2] as [S, size, size], row by row below the diagonal."""
    index = np.full((size, size), flat.shape[1], np.int32)  # of a zero put at the end
    index[np.tril_indices(size, -1)] = np.arange(flat.shape[1])
    return tf.gather(tf.pad(flat, [[0, 0], [0, 1]]), index, axis=1)
