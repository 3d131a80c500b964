"""A normalizing flow over all continuous latents together."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from bbsvi.errors import InvalidTypeError, InvalidValueError
from bbsvi.families.base import Factor, Family
from bbsvi.families.continuous import ContinuousBlock, with_continuous
from bbsvi.families.factors import default_factor
from bbsvi.families.networks import Network, autoregressive_masks, checked_units
from bbsvi.randomness import as_seed, fold_in, normal
from bbsvi.targets import Latent, Target
from bbsvi.typing import Seed, Tensor
from bbsvi.validation import positive_integer

tfb, tfd = tfp.bijectors, tfp.distributions


class AutoregressiveLayer(tf.Module):
    """y_i = x_i exp(log_scale_i) + shift_i, both functions of y_1..y_{i-1}.

    Papamakarios et al. 2017, "Masked autoregressive flow for density estimation", eqs. 3-5. From y to x is one pass
    of the network, from x to y takes D.
    """

    def __init__(self, dim: int, hidden_units: Sequence[int], dtype: tf.DType, seed: Seed):
        super().__init__()
        places = np.arange(1, dim + 1)
        self.network = Network(autoregressive_masks(places, hidden_units, np.tile(places, 2), dim), dtype, seed)
        self.bijector = tfb.MaskedAutoregressiveFlow(lambda y, **_: self.shift_and_log_scale(y))

    def shift_and_log_scale(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """[S, D] each."""
        shift, log_scale = tf.split(self.network(y), 2, axis=-1)
        return shift, log_scale


class CouplingLayer(tf.Module):
    """y_i = x_i for the first half, y_i = x_i exp(log_scale_i) + shift_i for the others, by functions of the first.

    Dinh et al. 2017, "Density estimation using Real NVP", eqs. 4-5. One pass of the network either way.
    """

    def __init__(self, dim: int, hidden_units: Sequence[int], dtype: tf.DType, seed: Seed):
        super().__init__()
        self._num_kept, self._num_moved = dim // 2, dim - dim // 2
        widths = [self._num_kept, *hidden_units, 2 * self._num_moved]
        self.network = Network([np.ones(shape, bool) for shape in itertools.pairwise(widths)], dtype, seed)
        self.bijector = tfb.RealNVP(
            num_masked=self._num_kept, shift_and_log_scale_fn=lambda kept, _, **__: self._of_kept(kept)
        )

    def _of_kept(self, kept: Tensor) -> tuple[Tensor, Tensor]:
        shift, log_scale = tf.split(self.network(kept), 2, axis=-1)
        return shift, log_scale

    def shift_and_log_scale(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """[S, D] each."""
        shift, log_scale = (tf.pad(x, [[0, 0], [self._num_kept, 0]]) for x in self._of_kept(y[:, : self._num_kept]))
        return shift, log_scale


class FlowFactor(ContinuousBlock):
    """N(0, I) carried through layers, with the order of the D numbers turned round between them."""

    # Measured on Neal's funnel in two dimensions, 4 layers, 64 draws, 10,000 steps: with 0.001 the ELBO comes to
    # 0.005 below the log evidence, with 0.005 to 0.06, with 0.02 to 0.8.
    learning_rate = 0.001

    def __init__(self, latents: Sequence[Latent], layers: Sequence[AutoregressiveLayer | CouplingLayer]):
        super().__init__(latents)
        self.layers = list(layers)
        turn = tfb.Permute(list(range(self.dim))[::-1])
        chain = [layers[0].bijector]
        for layer in layers[1:]:
            chain = [layer.bijector, turn, *chain]
        self.bijector = tfb.Chain(chain)

    @property
    def trainable_variables(self) -> tuple[tf.Variable, ...]:
        return tuple(variable for layer in self.layers for variable in layer.network.trainable_variables)

    @property
    def _dtype(self) -> tf.DType:
        return self.trainable_variables[0].dtype

    @property
    def distribution(self) -> Any:
        zeros = tf.zeros([self.dim], self._dtype)
        return tfd.TransformedDistribution(tfd.MultivariateNormalDiag(zeros, tf.ones_like(zeros)), self.bijector)

    def sample(self, num_draws: int, seed: Seed) -> dict[str, Tensor]:
        noise = normal([num_draws, self.dim], seed, self._dtype)
        return self.by_latent(tf.ensure_shape(self.bijector.forward(noise), noise.shape))

    def log_prob(self, base: Mapping[str, Tensor]) -> Tensor:
        # Not by `distribution`, which runs each network twice: for the inverse and for its log-determinant.
        flat = self.flat(base)
        x = tf.reshape(flat, [-1, self.dim])
        log_q = tf.zeros_like(x[:, 0])
        for layer in self.layers[::-1]:
            x = x if layer is self.layers[-1] else tf.reverse(x, [1])
            shift, log_scale = layer.shift_and_log_scale(x)
            x = (x - shift) * tf.exp(-log_scale)
            log_q -= tf.reduce_sum(log_scale, axis=1)
        log_q += tf.reduce_sum(-0.5 * tf.square(x) - 0.5 * np.log(2 * np.pi), axis=1)
        return tf.reshape(log_q, flat.shape[:-1])


class Flow(Family):
    """A normalizing flow over all continuous latents together, in unconstrained space.

    Layers of a masked autoregressive flow or, with `coupling=True`, of affine coupling (Real NVP). Draws of the
    former take D passes of each network, those of the latter one; log q and the scores take one pass of either.
    An autoregressive layer can do more. Discrete latents keep the factors of `MeanField` beside it. Begins near
    N(0, I).

    Args:
      target: whose latents are to be covered; the continuous ones have at least two unconstrained numbers.
      coupling: whether layers are affine coupling.
      num_layers: of the flow; a coupling layer moves half of the numbers, so that two are the least.
      hidden_units: widths of the hidden layers of each network, at least one.
      seed: for the initial weights.

    Raises:
      InvalidValueError: fewer than two unconstrained numbers, or too few layers.
      InvalidTypeError: `target` is no `bbsvi.Target`, or an option is of the wrong type.
    """

    def __init__(
        self,
        target: Target,
        *,
        coupling: bool = False,
        num_layers: int = 4,
        hidden_units: Sequence[int] = (32,),
        seed: int = 0,
    ):
        continuous, discrete = with_continuous("Flow", target)
        if not isinstance(coupling, bool):
            raise InvalidTypeError(f"coupling must be True or False, got {coupling!r}.")
        reason = "each coupling layer moves half of the numbers" if coupling else ""
        num_layers = positive_integer("num_layers", num_layers, minimum=2 if coupling else 1, reason=reason)
        units = checked_units(hidden_units)
        root = as_seed(seed)
        dim = ContinuousBlock(continuous).dim
        if dim < 2:
            raise InvalidValueError(
                f"Flow is for at least two unconstrained numbers, the continuous latents "
                f"{[latent.name for latent in continuous]} have {dim}; use Mixture."
            )
        self._options = {"coupling": coupling, "num_layers": num_layers, "hidden_units": units, "seed": int(seed)}
        layer = CouplingLayer if coupling else AutoregressiveLayer
        layers = [layer(dim, units, target.dtype, fold_in(root, index)) for index in range(num_layers)]
        blocks: list[Factor] = [FlowFactor(continuous, layers)]
        blocks += [default_factor(latent, target.dtype) for latent in discrete]
        super().__init__(target.latents, blocks, target.dtype)

    def config(self) -> dict[str, Any]:
        return {"family": "Flow", **self._options}
