"""The variational family: independent factors of q, each over one or more latents.

A factor lives in its base space: unconstrained reals where the latent is continuous, the support
itself where it is discrete. A bijector carries base values to the model's space; a draw keeps its
base value and log-determinant, so that log q never goes through a bijector's inverse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from bbsvi.errors import InvalidTypeError, InvalidValueError
from bbsvi.randomness import fold_in
from bbsvi.recording import recorded_scores
from bbsvi.scores import BlockScores, Scores
from bbsvi.targets import Latent, Target
from bbsvi.typing import Seed, Tensor

tfd = tfp.distributions


class Draws(NamedTuple):
    """S draws of q: {name: base value}, {name: value in the model's space} and {name: log|det|}."""

    base: dict[str, Tensor]  # [S, *base_shape]
    value: dict[str, Tensor]  # [S, *event_shape]
    log_det: dict[str, Tensor]  # [S], of the map from base to value


class Factor(tf.Module):
    """One block of q. Subclasses give `distribution`, and `sample` where TFP's own will not do.

    Attributes:
      latents: the latents it covers.
      through_bijector: whether continuous base values are unconstrained reals, to be carried to the
        support; otherwise they are values in the model's space already.
      learning_rate: of Adam, where the user gives no optimizer.
    """

    latents: tuple[Latent, ...]
    through_bijector = True
    learning_rate = 0.02

    @property
    def suits_xla(self) -> bool:
        """Whether XLA can be expected to make this factor faster on a CPU."""
        return True

    @property
    def distribution(self) -> Any:
        """A TFP distribution over the base space; its event is one latent's base value."""
        raise NotImplementedError

    def sample(self, num_draws: int, seed: Seed) -> dict[str, Tensor]:
        """Base values, {name: [S, *base_shape]}."""
        (latent,) = self.latents
        return {latent.name: self.distribution.sample(num_draws, seed=seed)}

    def log_prob(self, base: Mapping[str, Tensor]) -> Tensor:
        """log density in the base space, of one draw or of S."""
        (latent,) = self.latents
        return self.distribution.log_prob(base[latent.name])

    def scores(self, base: Mapping[str, Tensor]) -> Scores:
        """Scores at S base values, held fixed: factored by the weights of layers, by vectorized_map otherwise."""
        return recorded_scores(self.log_prob, dict(base), self.trainable_variables)

    def to_value(self, name: str, base: Tensor) -> tuple[Tensor, Tensor]:
        """A base value [S, *base_shape] in the model's space, and log|det| [S]."""
        latent = next(latent for latent in self.latents if latent.name == name)
        if latent.is_discrete or not self.through_bijector:
            return base, tf.zeros(tf.shape(base)[:1], tf.float32)
        bijector = latent.support.bijector
        log_det = bijector.forward_log_det_jacobian(base, event_ndims=len(latent.base_shape))
        # TFP gives a constant Jacobian without the sample axis.
        return bijector.forward(base), tf.broadcast_to(log_det, tf.shape(base)[:1])


class Family(tf.Module):
    """q(z; lambda): a product of factors that covers every latent of a target once.

    Args:
      latents: {name: Latent}, of the target.
      factors: the blocks of q.
      dtype: float dtype of q.

    Raises:
      InvalidValueError: a latent is not covered, or one is that the target does not have; or there
        is nothing to train.
    """

    def __init__(self, latents: Mapping[str, Latent], factors: Sequence[Factor], dtype: tf.DType):
        super().__init__()
        self.latents = dict(latents)
        self.factors = list(factors)
        self.dtype = dtype
        covered = [latent.name for factor in factors for latent in factor.latents]
        check_coverage(covered, list(self.latents))
        if not self.trainable_variables:
            raise InvalidValueError(
                f"family {type(self).__name__} has no trainable variables: parameters must be tf.Variables, or "
                "tfp.util.TransformedVariable where they are constrained (tf.nn.softplus(variable) is a constant)."
            )

    @property
    def trainable_variables(self) -> list[tf.Variable]:
        """The parameters lambda, factor by factor."""
        return [variable for factor in self.factors for variable in factor.trainable_variables]

    @property
    def suits_xla(self) -> bool:
        return all(factor.suits_xla for factor in self.factors)

    @property
    def learning_rate(self) -> float:
        """Of Adam, where the user gives no optimizer: that of the factor that needs the smallest."""
        return min(factor.learning_rate for factor in self.factors)

    @property
    def parameter_names(self) -> list[str]:
        """A readable name for each variable: 'loc of tau'."""
        return [
            f"{variable.name.split(':')[0].split('/')[-1]} of {', '.join(latent.name for latent in factor.latents)}"
            for factor in self.factors
            for variable in factor.trainable_variables
        ]

    @property
    def distribution(self) -> Any:
        """q over the base space, one part a factor, in the order of `factors`."""
        return tfd.JointDistributionSequential([factor.distribution for factor in self.factors])

    def sample(self, num_draws: int, seed: Seed) -> Draws:
        """S draws; differentiable in the parameters where the factors are reparameterised.

        Args:
          num_draws: S.
          seed: a stateless seed, int32 [2]; each factor folds in its position.
        """
        draws = Draws({}, {}, {})
        for index, factor in enumerate(self.factors):
            for name, base in factor.sample(num_draws, fold_in(seed, index)).items():
                value, log_det = factor.to_value(name, base)
                draws.base[name], draws.value[name] = base, value
                draws.log_det[name] = tf.cast(log_det, self.dtype)
        return draws

    def log_prob(self, draws: Draws) -> Tensor:
        """log q in the model's space, [S]."""
        base = [tf.cast(factor.log_prob(draws.base), self.dtype) for factor in self.factors]
        return tf.add_n(base) - tf.add_n(list(draws.log_det.values()))

    def scores(self, draws: Draws) -> Scores:
        """Scores at fixed draws. A bijector has no parameters, so they are those of the base."""
        parts = []
        for factor in self.factors:
            base = {latent.name: tf.stop_gradient(draws.base[latent.name]) for latent in factor.latents}
            parts.append(factor.scores(base))
        return BlockScores(parts)

    def draws_at(self, values: Mapping[str, Any]) -> Draws:
        """Draws at given values in the model's space, {name: [S, *event]}, by the bijectors' inverses."""
        draws = Draws({}, {}, {})
        for factor in self.factors:
            for latent in factor.latents:
                value = base = tf.convert_to_tensor(values[latent.name], latent.dtype)
                if factor.through_bijector and not latent.is_discrete:
                    base = latent.support.bijector.inverse(value)
                _, log_det = factor.to_value(latent.name, base)
                draws.base[latent.name], draws.value[latent.name] = base, value
                draws.log_det[latent.name] = tf.cast(log_det, self.dtype)
        return draws

    def parameters(self) -> list[np.ndarray]:
        """The parameters' values now, one array a variable."""
        return [variable.numpy() for variable in self.trainable_variables]

    def assign(self, parameters: Sequence[np.ndarray]) -> None:
        """Set the parameters, one array a variable."""
        for variable, value in zip(self.trainable_variables, parameters, strict=True):
            variable.assign(value)

    def config(self) -> dict[str, Any]:
        """What `families.from_config` needs, besides the target, to build this family again."""
        raise InvalidValueError(f"{type(self).__name__} cannot be rebuilt from a file.")


def check_target(target: Any) -> None:
    """That a family is built on a target."""
    if not isinstance(target, Target):
        raise InvalidTypeError(
            f"target must be a bbsvi.Target, got {type(target).__name__} (a joint distribution becomes one by "
            "bbsvi.Target.from_joint(joint, data))."
        )


def check_coverage(covered: list[str], wanted: list[str]) -> None:
    """That each wanted latent is covered once, and nothing else is."""
    missing = [name for name in wanted if name not in covered]
    extra = [name for name in dict.fromkeys(covered) if name not in wanted or covered.count(name) > 1]
    if missing or extra:
        faults = [f"{name!r} is not covered" for name in missing] + [f"{name!r} is one too many" for name in extra]
        raise InvalidValueError(
            f"family covers the latents {sorted(covered)}, the target has {sorted(wanted)}: {'; '.join(faults)}."
        )


def split_latents(latents: Mapping[str, Latent]) -> tuple[list[Latent], list[Latent]]:
    """The continuous and the discrete latents."""
    everything = list(latents.values())
    return [x for x in everything if not x.is_discrete], [x for x in everything if x.is_discrete]


def collapsed_latents(family: Family, seed: Seed, num_draws: int = 256) -> list[str]:
    """Continuous latents that q has shrunk to a point: some base value is the same in every draw.

    In a model's space a value may be constant by its nature, as the zeros of a triangular matrix: there
    all of it has to be.
    """
    base, names = family.sample(num_draws, seed).base, []
    for factor in family.factors:
        for latent in factor.latents:
            if latent.is_discrete or 0 in latent.base_shape:
                continue
            is_constant = np.ptp(np.asarray(base[latent.name]), axis=0) == 0
            if is_constant.any() if factor.through_bijector else is_constant.all():
                names.append(latent.name)
    return names
