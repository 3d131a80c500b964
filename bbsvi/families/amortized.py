"""Amortised inference: an encoder network puts out the parameters of q."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from bbsvi.errors import InvalidTypeError, InvalidValueError
from bbsvi.families.base import Factor, Family, check_target
from bbsvi.families.factors import default_factor, event_shaped
from bbsvi.families.forms import form_of
from bbsvi.randomness import fold_in
from bbsvi.recording import tf_variables
from bbsvi.scores import BlockScores, Contractions, Scores, StreamedScores, checked_direction
from bbsvi.targets import Latent, Target
from bbsvi.typing import Seed, Tensor
from bbsvi.validation import known_name, one_line

tfd = tfp.distributions


class EncoderScores(Contractions):
    """h_s = J^T e_s: e_s is the score by what the encoder puts out, J the encoder's Jacobian, one for all draws.

    So sum_s w_s h_s = J^T (sum_s w_s e_s) is one backward pass of the encoder, and h_s . v = e_s . J v one forward
    pass, whatever the number of draws. Powers and norms take a backward pass a draw, in batches.

    Args:
      outputs: e, the scores by each of the encoder's outputs.
      encode: gives those outputs, from variables.
      variables: of the encoder.
      connected: for each variable, whether the outputs depend on it.
    """

    def __init__(self, outputs: Scores, encode: Any, variables: Sequence[tf.Variable], connected: Sequence[bool]):
        self._outputs, self._encode, self._variables, self._connected = outputs, encode, list(variables), connected

    @property
    def num_draws(self) -> int:
        return self._outputs.num_draws

    @property
    def shapes(self) -> list[tf.TensorShape]:
        return [variable.shape for variable in self._variables]

    @property
    def kind(self) -> tuple[str, ...]:
        return tuple("encoder" if is_connected else "zero" for is_connected in self._connected)

    def weighted_power_sum(self, w: Tensor, power: int) -> list[Tensor]:
        return self._streamed().weighted_power_sum(w, power)

    def squared_norms(self) -> Tensor:
        return self._streamed().squared_norms()

    def matvec(self, v: Sequence[Tensor]) -> Tensor:
        v = [tf.cast(x, variable.dtype) for x, variable in zip(checked_direction(v, self.shapes), self._variables)]
        with tf.autodiff.ForwardAccumulator(self._variables, v) as accumulator:
            outputs = self._encode()
        return self._outputs.matvec(accumulator.jvp(outputs, tf.UnconnectedGradients.ZERO))

    def dense(self) -> list[Tensor]:
        return self._streamed().dense()

    def _pull(self, cotangents: Sequence[Tensor]) -> list[Tensor]:
        """J^T of one cotangent for each output."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self._variables)
            outputs = self._encode()
        found = tape.gradient(outputs, self._variables, list(cotangents), tf.UnconnectedGradients.ZERO)
        return [tf.convert_to_tensor(part) for part in found]  # an embedding's is an IndexedSlices

    def _streamed(self) -> StreamedScores:
        def rows(positions: Tensor) -> list[Tensor]:
            cotangents = [tf.gather(array, positions) for array in self._outputs.dense()]
            return tf.vectorized_map(self._pull, cotangents)

        return StreamedScores(
            rows,
            lambda w: self._pull(self._outputs.weighted_sum(w)),
            num_draws=self.num_draws,
            shapes=self.shapes,
            dtype=self._variables[0].dtype,
        )


class AmortizedFactor(Factor):
    """Independent distributions of the latents' own forms, their parameters put out by an encoder."""

    learning_rate = 0.001

    def __init__(self, latents: Sequence[Latent], encoder: Any, inputs: Any):
        super().__init__()
        self.latents = tuple(latents)
        self._encoder, self._inputs = encoder, inputs
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self.trainable_variables)
            outputs = self._encode()
        found = tape.gradient(outputs, self.trainable_variables)
        self._connected = [part is not None for part in found]

    @property
    def trainable_variables(self) -> tuple[tf.Variable, ...]:
        return tuple(tf_variables(self._encoder.trainable_variables))

    def parameters(self, inputs: Any) -> dict[str, list[Tensor]]:
        """{latent: its form's parameters}, each [rows, ...]; rows are the base shape's first axis at the inputs of
        the fit, and whatever the encoder gives at others."""
        outputs = self._encoder(inputs)
        if not isinstance(outputs, Mapping):
            outputs = {self.latents[0].name: outputs}
        return {latent.name: _split(latent, outputs[latent.name]) for latent in self.latents}

    def by_latent(self, inputs: Any) -> dict[str, Any]:
        """{latent: TFP distribution over base values}, one axis of the batch shape for the rows."""
        found = {}
        for latent in self.latents:
            distribution = form_of(latent).distribution(self.parameters(inputs)[latent.name])
            found[latent.name] = event_shaped(distribution, max(len(latent.base_shape) - 1, 0))
        return found

    @property
    def distribution(self) -> Any:
        rows = {latent.name: min(len(latent.base_shape), 1) for latent in self.latents}
        parts = {name: event_shaped(part, rows[name]) for name, part in self.by_latent(self._inputs).items()}
        return parts[self.latents[0].name] if len(parts) == 1 else tfd.JointDistributionNamed(parts)

    def sample(self, num_draws: int, seed: Seed) -> dict[str, Tensor]:
        parameters = self.parameters(self._inputs)
        return {
            latent.name: form_of(latent).sample(num_draws, fold_in(seed, index), parameters[latent.name])
            for index, latent in enumerate(self.latents)
        }

    def log_prob(self, base: Mapping[str, Tensor]) -> Tensor:
        if len(self.latents) == 1:
            return super().log_prob(base)
        return self.distribution.log_prob({latent.name: base[latent.name] for latent in self.latents})

    def scores(self, base: Mapping[str, Tensor]) -> EncoderScores:
        parameters = self.parameters(self._inputs)
        outputs = [form_of(latent).scores(base[latent.name], parameters[latent.name]) for latent in self.latents]
        return EncoderScores(BlockScores(outputs), self._encode, self.trainable_variables, self._connected)

    def _encode(self) -> list[Tensor]:
        """All parameters, end to end."""
        parameters = self.parameters(self._inputs)
        return [part for latent in self.latents for part in parameters[latent.name]]


class Amortized(Family):
    """An encoder network puts out the parameters of q, row by row of a latent from row by row of the data.

    The encoder is called as `encoder(inputs)`, in inference mode, and is to return for each latent it covers one
    row for each entry of the first axis of the latent's base value (unconstrained where the latent is
    continuous): [N, K] for a latent of N rows, [K] for a scalar. A row holds the parameters one after the other:

      - continuous: locations, then log scales, of normals in unconstrained space;
      - binary: logits; categorical: logits of all categories, place after place; counts: log rates.

    Latents that it does not cover keep the factors of `MeanField` beside it. The encoder is trained in place, and
    the posterior keeps it rather than a copy. Kingma and Welling 2014, "Auto-encoding variational Bayes", section 3.

    Args:
      target: whose latents are to be covered.
      encoder: a Keras or tf_keras model, or anything that is called and has `trainable_variables`; returns a tensor
        where the target has one latent, otherwise {latent: tensor}.
      inputs: what it is called on; None: the target's observed value, or the dict of them if there are several.

    Raises:
      InvalidTypeError: `target` is no `bbsvi.Target`, `encoder` no such thing, or it returns no tensors of the
        target's dtype.
      InvalidValueError: no inputs, or the encoder fails on them, names no latent, returns a wrong shape or has
        nothing to train.
    """

    def __init__(self, target: Target, *, encoder: Any, inputs: Any = None):
        check_target(target)
        if not callable(encoder) or isinstance(encoder, type):
            raise InvalidTypeError(f"encoder must be a Keras model or a function with variables, got {encoder!r}.")
        inputs = _inputs_of(target) if inputs is None else inputs
        inputs = tf.nest.map_structure(lambda x: tf.convert_to_tensor(np.asarray(x)), inputs)
        covered = _covered(target, encoder, inputs)
        if not getattr(encoder, "trainable_variables", None):
            raise InvalidValueError(
                f"encoder {type(encoder).__name__} has no trainable_variables: make it a Keras model or a tf.Module."
            )
        encoded = [latent for latent in target.latents.values() if latent.name in covered]
        others = [latent for latent in target.latents.values() if latent.name not in covered]
        blocks: list[Factor] = [AmortizedFactor(encoded, encoder, inputs)]
        blocks += [default_factor(latent, target.dtype) for latent in others]
        super().__init__(target.latents, blocks, target.dtype)

    def at(self, inputs: Any) -> dict[str, Any]:
        """q(z | inputs) at inputs that may be others than those of the fit.

        Args:
          inputs: as the encoder takes them, of M rows.

        Returns:
          {latent: TFP distribution in the model's space}, batch shape [M] (or [] for a scalar).
        """
        (factor,) = (factor for factor in self.factors if isinstance(factor, AmortizedFactor))
        found = factor.by_latent(tf.nest.map_structure(lambda x: tf.convert_to_tensor(np.asarray(x)), inputs))
        for latent in factor.latents:
            if not latent.is_discrete:
                found[latent.name] = tfd.TransformedDistribution(found[latent.name], latent.support.bijector)
        return found

    def config(self) -> dict[str, Any]:
        return {"family": "Amortized"}


def _split(latent: Latent, output: Tensor) -> list[Tensor]:
    """One row after the other of an encoder's output as a form's parameters, [rows, ...] each."""
    shapes = _shapes_of_rows(latent)
    parts = tf.split(output, [math.prod(shape) for shape in shapes], axis=-1)
    return [tf.reshape(part, [*output.shape[:-1], *shape]) for part, shape in zip(parts, shapes)]


def _shapes_of_rows(latent: Latent) -> list[tuple[int, ...]]:
    rows = min(len(latent.base_shape), 1)
    return [shape[rows:] for shape in form_of(latent).parameter_shapes(latent).values()]


def _inputs_of(target: Target) -> Any:
    if not target.observed:
        raise InvalidValueError("inputs: the target has no observed values to encode; pass inputs=.")
    return next(iter(target.observed.values())) if len(target.observed) == 1 else dict(target.observed)


def _covered(target: Target, encoder: Any, inputs: Any) -> list[str]:
    """The latents that an encoder puts out the parameters of, once its output is what it should be."""
    shapes = tf.nest.map_structure(lambda x: f"{x.dtype.name} {x.shape.as_list()}", inputs)
    try:
        outputs = encoder(inputs)
    except Exception as error:
        raise InvalidValueError(f"encoder could not be called on inputs {shapes}: {one_line(error)}.") from error
    if not isinstance(outputs, Mapping):
        if len(target.latents) > 1:
            raise InvalidTypeError(
                f"encoder must return a dict, {{latent: tensor}}, as the target has the latents "
                f"{list(target.latents)}; got {type(outputs).__name__}."
            )
        outputs = {next(iter(target.latents)): outputs}
    if not outputs:
        raise InvalidValueError(f"encoder returned no latent, wanted some of {list(target.latents)}.")
    for name, output in outputs.items():
        latent = target.latents[known_name("encoder's output", name, target.latents)]
        if not tf.is_tensor(output) or output.dtype != target.dtype:
            found = f"{output.dtype.name}" if tf.is_tensor(output) else type(output).__name__
            raise InvalidTypeError(
                f"encoder must return {target.dtype.name} tensors, for latent {name!r} it returned {found}."
            )
        wanted = [*latent.base_shape[:1], sum(math.prod(shape) for shape in _shapes_of_rows(latent))]
        if output.shape.as_list() != wanted:
            raise InvalidValueError(
                f"encoder returned shape {output.shape.as_list()} for latent {name!r}, wanted {wanted}: "
                f"{' and '.join(form_of(latent).parameters)} of each row of its base value, whose shape is "
                f"{list(latent.base_shape)}."
            )
    return list(outputs)
