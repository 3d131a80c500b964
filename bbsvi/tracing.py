"""Functions as TensorFlow graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


class Traced:
    """`fn` as a graph, traced once for each signature of its arguments (nested tensors, by shape and dtype).

    What `tf.function` does, less its warning: TensorFlow counts the traces of every function made from
    one line of code together, and tells whoever fits a fifth model that tracing is expensive.
    """

    def __init__(self, fn: Callable[..., Any], *, jit_compile: bool = False):
        self._fn = fn
        self._jit_compile = jit_compile
        self._graphs: dict[Any, Any] = {}

    def __call__(self, *args: Any) -> Any:
        args = tf.nest.map_structure(tf.convert_to_tensor, args)
        signature = tuple((tuple(leaf.shape), leaf.dtype) for leaf in tf.nest.flatten(args))
        if signature not in self._graphs:
            function = tf.function(self._fn, jit_compile=self._jit_compile, autograph=False)
            self._graphs[signature] = function.get_concrete_function(*args)
        return self._graphs[signature](*args)
