"""Mean field: one independent factor a latent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bbsvi.errors import InvalidTypeError
from bbsvi.families.base import Family, check_target
from bbsvi.families.factors import chosen_factor, default_factor
from bbsvi.randomness import as_seed, fold_in
from bbsvi.targets import Target
from bbsvi.validation import known_name


class MeanField(Family):
    """A product of one factor a latent.

    A continuous latent has independent normals in its unconstrained space, a binary one Bernoullis
    and a categorical one categoricals (both by logits), a count Poissons (by log rate). Normals
    begin as N(0, 1), logits at zero, rates at one.

    Args:
      target: whose latents are to be covered.
      factors: {latent: TFP distribution class} where another is wanted, e.g.
        {"rate": tfd.Gamma}. A class over the reals goes through the support's bijector; one over the
        latent's own support is used as it is. Its parameters begin where
        `tfp.experimental.util.make_trainable` puts them.
      seed: for initial values that are random.

    Raises:
      InvalidValueError: `factors` names no latent, or a class that does not suit it.
      InvalidTypeError: `target` is no `bbsvi.Target`, `seed` no int, or `factors` holds no TFP classes.
    """

    def __init__(self, target: Target, *, factors: Mapping[str, type] | None = None, seed: int = 0):
        check_target(target)
        if factors is not None and not isinstance(factors, Mapping):
            raise InvalidTypeError(f"factors must be a dict {{latent: TFP class}}, got {factors!r}.")
        self._chosen = dict(factors or {})
        for name in self._chosen:
            known_name("factors", name, target.latents)
        root = as_seed(seed)
        blocks = [
            chosen_factor(latent, self._chosen[latent.name], target.dtype, fold_in(root, index))
            if latent.name in self._chosen
            else default_factor(latent, target.dtype)
            for index, latent in enumerate(target.latents.values())
        ]
        super().__init__(target.latents, blocks, target.dtype)

    def config(self) -> dict[str, Any]:
        return {"family": "MeanField", "factors": dict(self._chosen)}
