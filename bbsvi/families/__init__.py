"""Variational families q(z; lambda)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow_probability as tfp

from bbsvi.errors import InvalidTypeError, InvalidValueError
from bbsvi.families.amortized import Amortized
from bbsvi.families.autoregressive import Autoregressive
from bbsvi.families.base import Draws, Factor, Family, collapsed_latents
from bbsvi.families.flow import Flow
from bbsvi.families.gaussian import FullRank
from bbsvi.families.low_rank import LowRank
from bbsvi.families.mean_field import MeanField
from bbsvi.families.mixture import Mixture
from bbsvi.families.wrapped import Wrapped
from bbsvi.targets import Target
from bbsvi.validation import known_name

__all__ = [
    "Amortized",
    "Autoregressive",
    "Draws",
    "Factor",
    "Family",
    "Flow",
    "FullRank",
    "LowRank",
    "MeanField",
    "Mixture",
    "Wrapped",
    "collapsed_latents",
    "copy",
    "from_config",
    "has_copies",
    "resolve",
]

_BY_NAME = {"mean_field": MeanField, "full_rank": FullRank, "low_rank": LowRank}
_BY_CONFIG = {cls.__name__: cls for cls in (MeanField, FullRank, LowRank, Mixture, Autoregressive, Flow)}


def resolve(family: Any, target: Target) -> Family:
    """The family that `family` names, built on `target`; one already built is checked against it."""
    if isinstance(family, str):
        return _BY_NAME[known_name("family", family, _BY_NAME)](target)
    if isinstance(family, Wrapped):
        return Wrapped(family.wrapped, target)
    if isinstance(family, Family):
        if family.latents != dict(target.latents) and _outline(family.latents) != _outline(target.latents):
            raise InvalidValueError(
                f"family was built for the latents {_outline(family.latents)}, the target has "
                f"{_outline(target.latents)}."
            )
        return family
    if isinstance(family, tfp.distributions.Distribution):
        return Wrapped(family, target)
    hint = f" (write {family.__name__}(target))" if isinstance(family, type) and issubclass(family, Family) else ""
    raise InvalidTypeError(
        f"family must be one of {sorted(_BY_NAME)}, a bbsvi.families object or a tfd.Distribution with trainable "
        f"variables, got {family!r}{hint}."
    )


def has_copies(family: Family) -> bool:
    """Whether a family can be built again: not around a distribution or encoder of the user's, nor of a class of
    theirs."""
    return type(family) in _BY_CONFIG.values()


def copy(family: Family, target: Target) -> Family:
    """A family with the same parameters in variables of its own, if `has_copies`; otherwise itself."""
    if not has_copies(family):
        return family
    other = from_config(family.config(), target)
    other.assign(family.parameters())
    return other


def _outline(latents: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {name: (latent.event_shape, latent.support.name, latent.dtype.name) for name, latent in latents.items()}


def from_config(config: Mapping[str, Any], target: Target) -> Family:
    """The family that `Family.config` described, with fresh parameters."""
    options = dict(config)
    name = options.pop("family")
    if name not in _BY_CONFIG:
        raise InvalidValueError(f"a {name} q is around objects of your own: pass family=, built by the same code.")
    return _BY_CONFIG[name](target, **options)
