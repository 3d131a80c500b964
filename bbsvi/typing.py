"""Names for the types that pass between the rooms.

Shapes are written in comments and docstrings: S draws, P parameters, `*event` a latent's own shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Tensor = Any  # tf.Tensor; TensorFlow ships no types
Seed = Any  # int32 tensor [2], a stateless seed
Values = Mapping[str, Tensor]  # latent name -> [S, *event]
