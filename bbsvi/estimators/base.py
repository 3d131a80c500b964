"""The protocol of estimators: (target, family, draws) -> gradient of the ELBO."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from bbsvi.families import Family
from bbsvi.targets import Target
from bbsvi.typing import Seed, Tensor


class GradientEstimate(NamedTuple):
    """One step's estimate: ELBO and its gradient, to be ascended."""

    gradient: list[Tensor]  # shaped like the family's variables
    gradient_variance: list[Tensor]  # of each element of the gradient
    elbo: Tensor  # [], float64, mean of log p - log q over the usable draws
    elbo_variance: Tensor  # [], float64, of that mean
    num_dropped: Tensor  # [], int32, draws left out: log p is -inf there
    is_usable: Tensor  # [], bool; False: too few draws are finite, or a NaN among them


class Estimator(Protocol):
    """`init -> state`, `estimate(state, ...) -> (GradientEstimate, state)`; the state is tensors.

    Attributes:
      minimum_sample_size: the smallest S that it can work with.
    """

    minimum_sample_size: int

    def init(self, target: Target, family: Family, *, sample_size: int, seed: Seed) -> Any:
        """The state before the first step."""

    def estimate(
        self, state: Any, target: Target, family: Family, *, sample_size: int, seed: Seed
    ) -> tuple[GradientEstimate, Any]:
        """The gradient of the ELBO from `sample_size` fresh draws."""
