"""What every target is made of: its latents, and terms of log p that map S draws to [S]."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from bbsvi.errors import BBSVIError, InvalidTypeError, InvalidValueError, LogProbError
from bbsvi.supports import Support
from bbsvi.typing import Tensor, Values
from bbsvi.validation import one_line

Terms = Callable[[Values], dict[str, Tensor]]  # values -> {term name: [S]}


@dataclasses.dataclass(frozen=True)
class Latent:
    """One latent variable: its name, event shape, support and value dtype (int32 for categories)."""

    name: str
    event_shape: tuple[int, ...]
    support: Support
    dtype: tf.DType

    @property
    def is_discrete(self) -> bool:
        return self.support.is_discrete

    @property
    def base_shape(self) -> tuple[int, ...]:
        """Event shape in the base space: unconstrained reals, or the support itself if discrete."""
        if self.is_discrete:
            return self.event_shape
        return tuple(self.support.bijector.inverse_event_shape(tf.TensorShape(self.event_shape)))


def check_signature(argument: str, fn: Any, names: list[str]) -> None:
    """That `fn` can be called with the latents by name (or, for one latent, by position)."""
    if not callable(fn):
        raise InvalidTypeError(f"{argument} must be callable, got {type(fn).__name__}.")
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # builtins without a signature: the first call will tell
        return
    try:
        signature.bind(**dict.fromkeys(names))
    except TypeError as error:
        if len(names) == 1 and _takes(signature, [None], {}):
            return
        raise InvalidValueError(
            f"{argument} must take the latents by name: it is called as {argument}({', '.join(names)}) "
            f"and its signature is {signature} ({error})."
        ) from error


def _takes(signature: inspect.Signature, args: list[Any], kwargs: Mapping[str, Any]) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def call_with_latents(fn: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """fn(**values); a single latent goes by position where the argument has another name."""
    if len(values) == 1:
        try:
            by_name = _takes(inspect.signature(fn), [], values)
        except (TypeError, ValueError):  # builtins without a signature
            by_name = False
        if not by_name:
            return fn(*values.values())
    return fn(**values)


def checked_term(name: str, result: Any, num_draws: int, *, per_datum: bool = False) -> Tensor:
    """`result` as a float tensor [S]; with `per_datum`, [S, N] is summed over the data."""
    try:
        result = tf.convert_to_tensor(result)
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(f"{name} must return floats of shape [S], got {type(result).__name__}.") from error
    if not result.dtype.is_floating:
        raise InvalidTypeError(f"{name} must return floats of shape [S], got dtype {result.dtype.name}.")
    if per_datum and result.shape.rank == 2 and result.shape[0] in (None, num_draws):
        result = tf.reduce_sum(tf.cast(result, tf.float64), axis=1)  # of many data, float32 loses the differences
    if result.shape.rank is None:
        result = tf.ensure_shape(result, [num_draws])
    if not result.shape.is_compatible_with([num_draws]):
        wanted = f"[{num_draws}]" + (f" or [{num_draws}, N]" if per_datum else "")
        raise InvalidValueError(
            f"{name} returned shape {result.shape.as_list()} for S = {num_draws} draws, wanted {wanted}: one log "
            "density a draw. Sum over the event axes (tf.reduce_sum(..., axis=-1)), never over axis 0."
        )
    return result


def probe_sizes(latents: Mapping[str, Latent]) -> tuple[int, int]:
    """Two numbers of draws that equal no event dimension, so that no axis can pass for another."""
    dims = {dim for latent in latents.values() for dim in latent.event_shape}
    sizes = [size for size in range(3, 6 + len(dims)) if size not in dims]
    return sizes[0], sizes[1]


def evaluated(terms: Terms, values: Values) -> dict[str, np.ndarray]:
    """The terms at S draws as numpy arrays.

    Raises:
      InvalidValueError: shapes, dtypes or values that do not go together in the model.
      LogProbError: the model raised anything else.
    """
    try:
        return {name: term.numpy() for name, term in terms(values).items()}
    except BBSVIError:
        raise
    except Exception as error:
        shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in values.items())
        size = next(iter(values.values())).shape[0]
        usual = isinstance(error, (tf.errors.InvalidArgumentError, ValueError, TypeError))
        raise (InvalidValueError if usual else LogProbError)(
            f"log p could not be evaluated at S = {size} draws, {shapes} (each [S, *event_shape]): {one_line(error)}."
        ) from error


def check_terms(terms: Terms, values: Values, latents: Mapping[str, Latent]) -> None:
    """That the terms give [S] for two different S, and that a draw's value is its own.

    Args:
      values: at least `max(probe_sizes(latents))` draws, {name: [S, *event]}.

    Raises:
      InvalidValueError: a term has a wrong shape, cannot be evaluated, or mixes draws.
      LogProbError: the model raised an exception of another kind.
    """
    small, large = probe_sizes(latents)
    results = [evaluated(terms, {name: value[:size] for name, value in values.items()}) for size in (small, large)]
    for name, first in results[0].items():
        second = results[1][name][:small]
        tolerance = 1e3 * np.finfo(first.dtype).eps * (1 + np.abs(first))
        with np.errstate(invalid="ignore"):
            same = (first == second) | (np.abs(first - second) <= tolerance) | (np.isnan(first) & np.isnan(second))
        if not same.all() and not _is_random(terms, values, small, name, first):
            draw = int(np.argmin(same))
            shapes = {latent.name: list(latent.event_shape) for latent in latents.values()}
            raise InvalidValueError(
                f"{name} mixes the draws: draw {draw} has {first[draw]:.6g} among S = {small} draws and "
                f"{second[draw]:.6g} among S = {large}, wanted the same. Axis 0 has to stay the sample axis; the event "
                f"shapes are {shapes}."
            )


def _is_random(terms: Terms, values: Values, size: int, name: str, first: np.ndarray) -> bool:
    """Whether a term gives other values when asked again: a noisy simulator, not a mix-up."""
    again = terms({latent: value[:size] for latent, value in values.items()})[name].numpy()
    return not np.array_equal(again, first, equal_nan=True)
