"""Python and numpy functions as log densities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from bbsvi.errors import InvalidValueError
from bbsvi.targets.base import Terms, call_with_latents, checked_term
from bbsvi.typing import Tensor, Values


def function_terms(functions: dict[str, Callable[..., Any]]) -> Terms:
    """Terms from functions of batched latents. `log_likelihood` may keep one column a datum."""

    def terms(values: Values) -> dict[str, Tensor]:
        num_draws = next(iter(values.values())).shape[0]
        return {
            name: checked_term(name, call_with_latents(fn, values), num_draws, per_datum=name == "log_likelihood")
            for name, fn in functions.items()
        }

    return terms


class NumpyFunction:
    """A numpy log density as a function of tensors.

    TensorFlow turns an exception inside `numpy_function` into one of its own; the original is kept
    in `error`, so that the user's traceback is what the user sees.
    """

    def __init__(self, fn: Callable[..., Any], names: list[str], *, vectorized: bool):
        self._fn = fn
        self._names = names
        self._vectorized = vectorized
        self.error: Exception | None = None

    def __call__(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        tensors = [*args, *(kwargs[name] for name in self._names[len(args) :])]
        self.error = None
        try:
            result = tf.numpy_function(self._evaluate, tensors, tf.float64)
        except Exception as error:  # eager calls arrive here; a compiled one raises in the loop
            raise self.error or error from None
        result.set_shape([tensors[0].shape[0]])
        return result

    def _evaluate(self, *arrays: np.ndarray) -> np.ndarray:
        try:
            return self._values(dict(zip(self._names, arrays)))
        except Exception as error:
            self.error = error
            raise

    def _values(self, values: dict[str, np.ndarray]) -> np.ndarray:
        num_draws = len(next(iter(values.values())))
        if self._vectorized:
            result = np.asarray(call_with_latents(self._fn, values), dtype=np.float64)
        else:
            draws = ({name: value[s] for name, value in values.items()} for s in range(num_draws))
            result = np.asarray([call_with_latents(self._fn, draw) for draw in draws], dtype=np.float64)
        if result.shape != (num_draws,):
            hint = (
                "one log density a draw (or pass vectorized=False for a function of one draw)"
                if self._vectorized
                else "a scalar for each draw"
            )
            raise InvalidValueError(
                f"log_prob returned shape {list(result.shape)} for S = {num_draws} draws, wanted [{num_draws}]: {hint}."
            )
        return result
