"""A masked network over discrete latents: each depends on those before it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from bbsvi.errors import InvalidTypeError, InvalidValueError
from bbsvi.families.base import Factor, Family, check_target
from bbsvi.families.factors import default_factor
from bbsvi.families.networks import Network, autoregressive_masks, checked_units
from bbsvi.randomness import as_seed, uniform
from bbsvi.targets import Latent, Target
from bbsvi.typing import Seed, Tensor

tfd = tfp.distributions


class AutoregressiveFactor(Factor):
    """q(k_1..k_D) = prod_i q(k_i | k_1..k_{i-1}), over D sites with K_i categories each.

    One network gives all conditionals in one pass: its input is the sites one after the other, its output
    their logits, and masks cut every path from a site to itself or to one before.
    Germain et al. 2015, "MADE: masked autoencoder for distribution estimation".
    """

    def __init__(self, latents: Sequence[Latent], dtype: tf.DType, hidden_units: Sequence[int], seed: Seed):
        super().__init__()
        self.latents = tuple(latents)
        self._dtype = dtype
        sizes = [math.prod(latent.event_shape) for latent in self.latents]
        self._sites = sizes
        # A bit is one number with one logit, a site of K > 2 categories is K indicators with K logits.
        self._widths = [
            1 if latent.support.num_categories == 2 else latent.support.num_categories or 0
            for latent, size in zip(self.latents, sizes, strict=True)
            for _ in range(size)
        ]
        num_sites = len(self._widths)
        places = np.repeat(np.arange(1, num_sites + 1), self._widths)
        self.network = Network(autoregressive_masks(places, hidden_units, places, num_sites), dtype, seed)

    @property
    def trainable_variables(self) -> tuple[tf.Variable, ...]:
        return self.network.trainable_variables

    @property
    def distribution(self) -> Any:
        raise InvalidTypeError("an autoregressive factor is no TFP distribution; use its sample and log_prob.")

    def sample(self, num_draws: int, seed: Seed) -> dict[str, Tensor]:
        # With the noise held fixed, a pass over all sites leaves one more of them as ancestral sampling
        # has it: after pass i the first i depend on nothing that still changes.
        u = uniform([num_draws, sum(self._widths)], seed, self._dtype)
        noise = tf.concat(
            [
                # Logistic noise for a bit, Gumbel noise for the categories.
                tf.reshape(
                    tf.math.log(part) - tf.math.log1p(-part)
                    if part.shape[2] == 1
                    else -tf.math.log(-tf.math.log(part)),
                    [num_draws, -1],
                )
                for part in self._split(u)
            ],
            axis=1,
        )

        def one_pass(index: Tensor, indicators: Tensor) -> tuple[Tensor, Tensor]:
            return index + 1, self._indicators(self._choices(self.network(indicators) + noise))

        _, indicators = tf.while_loop(
            lambda index, _: index < len(self._widths), one_pass, (tf.constant(0), tf.zeros_like(noise))
        )
        parts = tf.split(self._choices(indicators - 0.5), self._sites, axis=1)
        return {
            latent.name: tf.reshape(part, [num_draws, *latent.event_shape])
            for latent, part in zip(self.latents, parts, strict=True)
        }

    def log_prob(self, base: Mapping[str, Tensor]) -> Tensor:
        first = self.latents[0]
        is_one_draw = base[first.name].shape.rank == len(first.event_shape)
        flat = [
            tf.reshape(base[latent.name], [-1, size]) for latent, size in zip(self.latents, self._sites, strict=True)
        ]
        indicators = self._indicators(tf.concat(flat, axis=1))
        pairs = zip(self._split(indicators), self._split(self.network(indicators)), strict=True)
        log_q = tf.add_n([tf.reduce_sum(_log_conditional(part, logits), axis=[1, 2]) for part, logits in pairs])
        return log_q[0] if is_one_draw else log_q

    def _split(self, flat: Tensor) -> list[Tensor]:
        """[S, sum of widths] as one [S, sites, width] for each run of sites of the same width."""
        parts, position = [], 0
        for width, count in _runs(self._widths):
            part = flat[:, position : position + count * width]
            parts.append(tf.reshape(part, [-1, count, width]))
            position += count * width
        return parts

    def _choices(self, values: Tensor) -> Tensor:
        """A bit where its value is positive, else the category of the largest value: [S, sites] int32."""
        parts = [
            tf.cast(part[:, :, 0] > 0, tf.int32)
            if part.shape[2] == 1
            else tf.argmax(part, axis=-1, output_type=tf.int32)
            for part in self._split(values)
        ]
        return tf.concat(parts, axis=1)

    def _indicators(self, choices: Tensor) -> Tensor:
        """[S, sites] int32 -> [S, sum of widths]."""
        parts, position = [], 0
        for width, count in _runs(self._widths):
            part = choices[:, position : position + count]
            hot = tf.cast(part, self._dtype) if width == 1 else tf.one_hot(part, width, dtype=self._dtype)
            parts.append(tf.reshape(hot, [-1, count * width]))
            position += count
        return tf.concat(parts, axis=1)


def _log_conditional(indicators: Tensor, logits: Tensor) -> Tensor:
    """log q of each site given those before it, up to a sum over the last axis. Both [S, sites, width]."""
    if logits.shape[2] == 1:
        return indicators * logits - tf.math.softplus(logits)
    return indicators * tf.nn.log_softmax(logits, axis=-1)


def _runs(values: Sequence[int]) -> list[tuple[int, int]]:
    """[2, 2, 5] -> [(2, 2), (5, 1)]."""
    runs: list[tuple[int, int]] = []
    for value in values:
        runs = [*runs[:-1], (value, runs[-1][1] + 1)] if runs and runs[-1][0] == value else [*runs, (value, 1)]
    return runs


class Autoregressive(Family):
    """A masked network over all binary and categorical latents together, which can follow any dependence
    among them; continuous latents and counts keep the factors of `MeanField` beside it.

    A mode that few of the draws of a step land in is lost early and not found again: for a posterior of several
    modes take more draws a step (2,048 of ten spins where 128 lost a mode of weight 0.07 in two fits of three).

    Args:
      target: whose latents are to be covered; at least one is binary or categorical.
      hidden_units: widths of the hidden layers, at least one.
      seed: for the initial weights.
    """

    def __init__(self, target: Target, *, hidden_units: Sequence[int] = (64,), seed: int = 0):
        check_target(target)
        units, root = checked_units(hidden_units), as_seed(seed)
        self._options = {"hidden_units": units, "seed": int(seed)}
        finite = [latent for latent in target.latents.values() if latent.support.num_categories is not None]
        if not finite:
            raise InvalidValueError(
                f"Autoregressive is for binary and categorical latents, the target has {list(target.latents)} of "
                f"support {[latent.support.name for latent in target.latents.values()]}."
            )
        others = [latent for latent in target.latents.values() if latent.support.num_categories is None]
        blocks: list[Factor] = [AutoregressiveFactor(finite, target.dtype, units, root)]
        blocks += [default_factor(latent, target.dtype) for latent in others]
        super().__init__(target.latents, blocks, target.dtype)

    def config(self) -> dict[str, Any]:
        return {"family": "Autoregressive", **self._options}
