"""What a bundled example is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Reference:
    """Posterior quantities known from elsewhere than a variational fit.

    Attributes:
      mean, stddev: {quantity: value}; quantities are latents, functions of them (see
        `Example.quantities`) or probabilities, whose stddev is nan.
      log_evidence: log p(data).
      source: how they are known.
    """

    mean: Mapping[str, float]
    stddev: Mapping[str, float]
    log_evidence: float
    source: str


@dataclasses.dataclass(frozen=True)
class Example:
    """A small real model: `fit(example.target, data=example.data)`.

    Attributes:
      target: a TFP joint distribution.
      data: {site: array}.
      reference: what the posterior is.
      quantities: draws {latent: [S, *event]} -> {quantity: [S]}, the reference's quantities.
      notes: where model and data come from.
    """

    name: str
    target: Any
    data: Mapping[str, np.ndarray]
    reference: Reference
    quantities: Any
    notes: str
