"""Checks at the public edge: each raises one error that says what was got and what was wanted."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from bbsvi.errors import InvalidTypeError, InvalidValueError


def positive_integer(argument: str, value: Any, *, minimum: int = 1, reason: str = "") -> int:
    """`value` as an int of at least `minimum`; `reason` says why the bound is what it is."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise InvalidTypeError(f"{argument} must be an integer, got {value!r} ({type(value).__name__}).")
    if value < minimum:
        because = f" ({reason})" if reason else ""
        raise InvalidValueError(f"{argument} must be at least {minimum}{because}, got {value}.")
    return int(value)


def nearest(name: Any, known: Iterable[str]) -> str:
    """' Did you mean ...?' for the known name nearest to `name`, in whatever case, or ''."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    match = difflib.get_close_matches(str(name).lower(), list(by_lower), n=1, cutoff=0.4)
    return f" Did you mean {by_lower[match[0]]!r}?" if match else ""


def known_name(argument: str, name: Any, known: Iterable[str]) -> str:
    """`name`, which has to be one of `known`."""
    known = list(known)
    if name not in known:
        raise InvalidValueError(
            f"{argument}: unknown name {name!r}; the known ones are {sorted(known)}.{nearest(name, known)}"
        )
    return name


def one_line(error: BaseException) -> str:
    """'ValueError: what it said' on one line, less the full stop and TensorFlow's names for its kernels."""
    text = re.sub(r"\{\{.*?\}\}|\[Op:\w+\].*", "", str(error), flags=re.DOTALL)
    return f"{type(error).__name__}: {' '.join(text.split())}".strip(": .")


def float_dtype(argument: str, dtype: Any) -> tf.DType:
    """`dtype` as tf.float32 or tf.float64."""
    try:
        resolved = tf.as_dtype(dtype)
    except TypeError as error:
        raise InvalidTypeError(f"{argument} must be 'float32' or 'float64', got {dtype!r}.") from error
    if resolved not in (tf.float32, tf.float64):
        raise InvalidTypeError(f"{argument} must be 'float32' or 'float64', got {resolved.name!r}.")
    return resolved


def event_shape(argument: str, shape: Any) -> tuple[int, ...]:
    """A fully known shape without empty axes, as a tuple of ints."""
    if isinstance(shape, (int, np.integer)) and not isinstance(shape, bool):
        raise InvalidTypeError(f"{argument} must be a tuple of ints such as () or ({shape},), got {shape!r}.")
    try:
        if any(isinstance(dim, bool) for dim in (shape if isinstance(shape, (tuple, list)) else [shape])):
            raise TypeError("a bool is no dimension")
        dims = tuple(tf.TensorShape(shape).as_list())
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(f"{argument} must be a tuple of ints such as () or (8,), got {shape!r}.") from error
    if any(dim is None or dim < 1 for dim in dims):
        raise InvalidValueError(f"{argument} must have known dimensions of at least 1, got {dims}.")
    return dims


def observed_array(site: str, value: Any, dtype: tf.DType, shape: tf.TensorShape) -> np.ndarray:
    """`value` as data for `site`: right shape, and no float64 squeezed into a float32 model.

    Python numbers and lists carry no dtype and take the model's; integers are taken where the
    model's dtype holds them exactly.
    """
    declared = getattr(value, "dtype", None)
    try:
        array = np.asarray(value)
    except ValueError as error:  # ragged
        raise InvalidTypeError(f"data[{site!r}] must be an array of numbers, got {one_line(error)}.") from error
    wanted = dtype.as_numpy_dtype
    if array.dtype == object or array.dtype.kind not in "biuf":
        raise InvalidTypeError(f"data[{site!r}] must be numbers, got dtype {array.dtype}.")
    if declared is not None and array.dtype.kind == "f" and dtype.is_floating and array.dtype != wanted:
        raise InvalidTypeError(
            f"data[{site!r}] is {array.dtype.name} but the model's site {site!r} is {dtype.name}: "
            f"pass data[{site!r}].astype({dtype.name!r}), or build the model in {array.dtype.name}."
        )
    if np.ma.is_masked(value):
        raise InvalidValueError(f"data[{site!r}] has masked entries: leave them out of the model, or make them latent.")
    if not dtype.is_floating and np.isnan(array.astype(np.float64)).any():
        where = np.argwhere(np.isnan(array.astype(np.float64)))[0].tolist()
        raise InvalidValueError(f"data[{site!r}] has NaN at {where}, and the site takes {dtype.name}.")
    converted = array.astype(wanted)
    if array.dtype.kind in "biu" or not dtype.is_floating:
        changed = converted.astype(np.float64) != array.astype(np.float64)
        if np.any(changed & ~np.isnan(array.astype(np.float64))):
            raise InvalidTypeError(
                f"data[{site!r}] ({array.dtype.name}) cannot be held exactly in the site's dtype {dtype.name}."
            )
    if not shape.is_compatible_with(converted.shape):
        raise InvalidValueError(f"data[{site!r}] has shape {converted.shape}, the model's site wants {tuple(shape)}.")
    return converted
