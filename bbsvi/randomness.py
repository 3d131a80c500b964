"""Stateless random numbers with the algorithm said aloud.

`philox` gives the same numbers eagerly and in a graph; XLA has a stream of its own for a seed that is
not a constant. The default algorithm is several times slower there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from bbsvi.errors import InvalidTypeError, InvalidValueError
from bbsvi.typing import Seed, Tensor

_ALGORITHM = "philox"


def as_seed(seed: Any) -> Seed:
    """A stateless seed, int32 [2], from an int of up to 64 bits."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise InvalidTypeError(f"seed must be an int, got {seed!r} ({type(seed).__name__}).")
    if not -(2**63) <= seed < 2**64:
        raise InvalidValueError(f"seed must fit in 64 bits, got {seed}.")
    words = np.array([int(seed) & 0xFFFFFFFF, (int(seed) >> 32) & 0xFFFFFFFF], dtype=np.uint32)
    return tf.constant(words.view(np.int32))


def new_seed() -> int:
    """A seed from the operating system, for callers that gave none."""
    return int(np.random.SeedSequence().generate_state(1)[0])


def fold_in(seed: Seed, index: Any) -> Seed:
    """A seed of its own for `index` (a step, a factor, a replica)."""
    return tf.random.experimental.stateless_fold_in(seed, index, alg=_ALGORITHM)


def normal(shape: Any, seed: Seed, dtype: tf.DType) -> Tensor:
    return tf.random.stateless_normal(shape, seed, dtype=dtype, alg=_ALGORITHM)


def uniform(shape: Any, seed: Seed, dtype: tf.DType) -> Tensor:
    """Uniform on the open interval (0, 1): zero is moved to the smallest normal number."""
    draws = tf.random.stateless_uniform(shape, seed, dtype=dtype, alg=_ALGORITHM)
    return tf.maximum(draws, np.finfo(dtype.as_numpy_dtype).tiny)
