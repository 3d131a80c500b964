"""A masked network over discrete latents: each depends on those before it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from bbsvi.errors import InvalidTypeError, InvalidValueError
from bbsvi.factored import FactoredScores, factored_scores, linear
from bbsvi.families.base import Factor, Family
from bbsvi.families.factors import default_factor
from bbsvi.randomness import uniform
from bbsvi.targets import Latent, Target
from bbsvi.typing import Seed, Tensor
from bbsvi.validation import positive_integer

tfd = tfp.distributions


class AutoregressiveFactor(Factor):
    """q(k_1..k_D) = prod_i q(k_i | k_1..k_{i-1}), over D sites with K_i categories each.

    One network gives all conditionals in one pass: its input is the sites one after the other, each as
    K_i indicators, its output their logits, and masks cut every path from a site to itself or to one before.
    Germain et al. 2015, "MADE: masked autoencoder for distribution estimation".
    """

    def __init__(self, latents: Sequence[Latent], dtype: tf.DType, hidden_units: Sequence[int], seed: int):
        super().__init__()
        self.latents = tuple(latents)
        self._dtype = dtype
        sizes = [math.prod(latent.event_shape) for latent in self.latents]
        self._sites = sizes
        self._categories = [
            latent.support.num_categories or 0
            for latent, size in zip(self.latents, sizes, strict=True)
            for _ in range(size)
        ]
        num_sites = len(self._categories)
        of_site = np.repeat(np.arange(1, num_sites + 1), self._categories)  # degree of each indicator
        degrees = [of_site]
        for units in hidden_units:
            degrees.append(1 + np.arange(units) % max(num_sites - 1, 1))
        self._masks = [
            tf.constant(above[None, :] >= below[:, None], dtype) for below, above in itertools.pairwise(degrees)
        ]
        self._masks.append(tf.constant(of_site[None, :] > degrees[-1][:, None], dtype))
        rng = np.random.default_rng(seed)
        self.kernels, self.biases = [], []
        for index, mask in enumerate(self._masks):
            fan_in = np.maximum(mask.numpy().sum(axis=0), 1)
            # Small weights to the logits: q begins close to independent and uniform, with no score quite zero.
            spread = (0.1 if index == len(self._masks) - 1 else 1.0) / np.sqrt(fan_in)
            values = rng.normal(size=mask.shape) * spread * mask.numpy()
            self.kernels.append(tf.Variable(values, dtype=dtype, name=f"kernel_{index}"))
            self.biases.append(tf.Variable(tf.zeros(mask.shape[1], dtype), name=f"bias_{index}"))
        self._starts = np.cumsum([0, *self._categories])

    @property
    def trainable_variables(self) -> tuple[tf.Variable, ...]:
        return tuple(variable for pair in zip(self.kernels, self.biases, strict=True) for variable in pair)

    @property
    def distribution(self) -> Any:
        raise InvalidTypeError("an autoregressive factor is no TFP distribution; use its sample and log_prob.")

    def sample(self, num_draws: int, seed: Seed) -> dict[str, Tensor]:
        # With the Gumbel noise held fixed, a pass over all sites leaves one more of them as ancestral
        # sampling has it: after pass i the first i depend on nothing that still changes.
        u = uniform([num_draws, int(self._starts[-1])], seed, self._dtype)
        noise = -tf.math.log(-tf.math.log(u))

        def one_pass(index: Tensor, indicators: Tensor) -> tuple[Tensor, Tensor]:
            return index + 1, self._indicators(self._choices(self._logits(indicators) + noise))

        _, indicators = tf.while_loop(
            lambda index, _: index < len(self._categories), one_pass, (tf.constant(0), tf.zeros_like(noise))
        )
        return self._by_latent(self._choices(indicators))

    def log_prob(self, base: Mapping[str, Tensor]) -> Tensor:
        first = self.latents[0]
        is_one_draw = base[first.name].shape.rank == len(first.event_shape)
        flat = [
            tf.reshape(base[latent.name], [-1, size]) for latent, size in zip(self.latents, self._sites, strict=True)
        ]
        indicators = self._indicators(tf.concat(flat, axis=1))
        log_q = tf.add_n(
            [
                tf.reduce_sum(part * tf.nn.log_softmax(logits, axis=-1), axis=[1, 2])
                for part, logits in zip(self._split(indicators), self._split(self._logits(indicators)), strict=True)
            ]
        )
        return log_q[0] if is_one_draw else log_q

    def scores(self, base: Mapping[str, Tensor]) -> FactoredScores:
        return factored_scores(lambda: self.log_prob(base), self.trainable_variables)

    def _logits(self, indicators: Tensor) -> Tensor:
        """[S, sum K] -> [S, sum K]."""
        layer = indicators
        for index, mask in enumerate(self._masks):
            layer = tf.tanh(layer) if index > 0 else layer
            layer = linear(layer, self.kernels[index], self.biases[index], mask)
        return layer

    def _split(self, flat: Tensor) -> list[Tensor]:
        """[S, sum K] as one [S, sites, K] for each run of sites with the same K."""
        parts, position = [], 0
        for categories, count in _runs(self._categories):
            part = flat[:, position : position + count * categories]
            parts.append(tf.reshape(part, [-1, count, categories]))
            position += count * categories
        return [tf.reshape(part, [-1, part.shape[1], part.shape[2]]) for part in parts]

    def _choices(self, values: Tensor) -> Tensor:
        """The largest of each site's values, [S, sites] int32."""
        return tf.concat([tf.argmax(part, axis=-1, output_type=tf.int32) for part in self._split(values)], axis=1)

    def _indicators(self, choices: Tensor) -> Tensor:
        """[S, sites] int32 -> [S, sum K]."""
        parts, position = [], 0
        for categories, count in _runs(self._categories):
            hot = tf.one_hot(choices[:, position : position + count], categories, dtype=self._dtype)
            parts.append(tf.reshape(hot, [-1, count * categories]))
            position += count
        return tf.concat(parts, axis=1)

    def _by_latent(self, choices: Tensor) -> dict[str, Tensor]:
        parts = tf.split(choices, self._sites, axis=1)
        return {
            latent.name: tf.reshape(part, [-1, *latent.event_shape])
            for latent, part in zip(self.latents, parts, strict=True)
        }


def _runs(values: Sequence[int]) -> list[tuple[int, int]]:
    """[2, 2, 5] -> [(2, 2), (5, 1)]."""
    runs: list[tuple[int, int]] = []
    for value in values:
        runs = [*runs[:-1], (value, runs[-1][1] + 1)] if runs and runs[-1][0] == value else [*runs, (value, 1)]
    return runs


class Autoregressive(Family):
    """A masked network over all binary and categorical latents together, which can follow any dependence
    among them; continuous latents and counts keep the factors of `MeanField` beside it.

    Args:
      target: whose latents are to be covered; at least one is binary or categorical.
      hidden_units: widths of the hidden layers, at least one.
      seed: for the initial weights.
    """

    def __init__(self, target: Target, *, hidden_units: Sequence[int] = (64,), seed: int = 0):
        if isinstance(hidden_units, (str, int)) or not list(hidden_units):
            raise InvalidTypeError(f"hidden_units must be a sequence of widths such as (64,), got {hidden_units!r}.")
        units = [positive_integer("hidden_units", width) for width in hidden_units]
        self._options = {"hidden_units": units, "seed": seed}
        finite = [latent for latent in target.latents.values() if latent.support.num_categories is not None]
        if not finite:
            raise InvalidValueError(
                f"Autoregressive is for binary and categorical latents, the target has {list(target.latents)} of "
                f"support {[latent.support.name for latent in target.latents.values()]}."
            )
        others = [latent for latent in target.latents.values() if latent.support.num_categories is None]
        blocks: list[Factor] = [AutoregressiveFactor(finite, target.dtype, units, seed)]
        blocks += [default_factor(latent, target.dtype) for latent in others]
        super().__init__(target.latents, blocks, target.dtype)

    def config(self) -> dict[str, Any]:
        return {"family": "Autoregressive", **self._options}
