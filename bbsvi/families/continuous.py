"""Factors over all continuous latents together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import tensorflow as tf

from bbsvi.errors import InvalidValueError
from bbsvi.families.base import Factor, check_target, split_latents
from bbsvi.targets import Latent, Target
from bbsvi.typing import Tensor


class ContinuousBlock(Factor):
    """A factor over D reals: the base values of continuous latents, end to end."""

    def __init__(self, latents: Sequence[Latent]):
        super().__init__()
        self.latents = tuple(latents)
        self._sizes = [math.prod(latent.base_shape) for latent in self.latents]
        self.dim = sum(self._sizes)

    def flat(self, base: Mapping[str, Tensor]) -> Tensor:
        """One draw [D] or S draws [S, D] of all latents, end to end."""
        parts = []
        for latent, size in zip(self.latents, self._sizes, strict=True):
            part = base[latent.name]
            batch = part.shape[: part.shape.rank - len(latent.base_shape)]
            parts.append(tf.reshape(part, [*batch, size]))
        return tf.concat(parts, axis=-1)

    def by_latent(self, flat: Tensor) -> dict[str, Tensor]:
        """[S, D] as {name: [S, *base_shape]}."""
        parts = zip(self.latents, tf.split(flat, self._sizes, axis=1), strict=True)
        return {latent.name: tf.reshape(part, [flat.shape[0], *latent.base_shape]) for latent, part in parts}


def with_continuous(family: str, target: Target) -> tuple[list[Latent], list[Latent]]:
    """The continuous and the discrete latents of a target that has to have some of the former."""
    check_target(target)
    continuous, discrete = split_latents(target.latents)
    if not continuous:
        raise InvalidValueError(
            f"{family} is for continuous latents, the target has {list(target.latents)} of support "
            f"{[latent.support.name for latent in discrete]}."
        )
    return continuous, discrete
