"""Is the score of q a score? Its mean under q is zero, and much that goes wrong shows there."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from scipy import stats

from bbsvi.distribution_scores import per_sample_scores
from bbsvi.errors import InvalidTypeError
from bbsvi.families import Family
from bbsvi.randomness import as_seed
from bbsvi.scores import Scores
from bbsvi.tracing import Traced
from bbsvi.validation import positive_integer

_FALSE_ALARMS = 1e-4  # chance of one for a sound q, over all its parameters together


@dataclasses.dataclass(frozen=True)
class ScoreCheck:
    """What `check_score` found.

    Attributes:
      rows: a dict for each variable: "parameter", "elements", "mean", "standard_error" and "z" of the
        element with the largest |z|, and "zero_elements", whose score is zero at every draw (those that
        the mask of a network cuts off, for one).
      messages: the same in plain sentences.
      num_non_finite: draws at which the score is not finite.
      passed: nothing was found.
    """

    rows: tuple[dict[str, Any], ...]
    messages: tuple[str, ...]
    num_non_finite: int
    passed: bool

    @property
    def table(self) -> Any:
        """The rows as a pandas DataFrame."""
        import pandas

        return pandas.DataFrame(list(self.rows)).set_index("parameter")

    def __str__(self) -> str:
        return "\n".join(self.messages)


def check_score(family_or_distribution: Any, sample_size: int = 10_000, seed: int = 0) -> ScoreCheck:
    """Test that E_q[grad log q] = 0 for every parameter, which holds for any density that is normalised
    and any sampler that follows it.

    It finds variables that log q does not depend on, densities that are not normalised, samplers that
    do not agree with log q, and draws at which the score is not finite.

    Args:
      family_or_distribution: a `bbsvi.families` object, or a `tfd.Distribution` with trainable
        variables.
      sample_size: draws. A mean that is off by a few hundredths of the score's standard deviation
        is found with 10,000.
      seed: an int.

    Returns:
      A `ScoreCheck`. A sound q fails by chance once in 10,000 times.

    Raises:
      InvalidTypeError: neither a family nor a distribution.
      InvalidValueError: no trainable variables.
    """
    size = positive_integer("sample_size", sample_size, minimum=100)
    q, key = family_or_distribution, as_seed(seed)
    if isinstance(q, Family):
        names = q.parameter_names
        moments = Traced(lambda seed: _moments(q.scores(q.sample(size, seed))))(key)
    elif isinstance(q, tfp.distributions.Distribution):
        names = [variable.name.split(":")[0].split("/")[-1] for variable in q.trainable_variables]
        moments = Traced(lambda seed: _moments(per_sample_scores(q, q.sample(size, seed=seed))))(key)
    else:
        raise InvalidTypeError(f"check_score wants a family or a tfd.Distribution, got {type(q).__name__}.")
    means, squares, norms = moments
    count = sum(mean.shape.num_elements() for mean in means)
    limit = float(stats.norm.isf(_FALSE_ALARMS / 2 / max(count, 1)))
    rows = [_row(name, m.numpy(), s.numpy(), size) for name, m, s in zip(names, means, squares, strict=True)]
    bad = int(np.sum(~np.isfinite(norms)))
    messages = [] if bad else [message for row in rows for message in _faults(row, limit)]
    if bad:
        named = [row["parameter"] for row in rows if not np.isfinite(row["z"])]
        messages.append(
            f"The score of {', '.join(map(repr, named))} is not finite at {bad} of {size} draws, as happens at the "
            "edge of a support: parameterise by logits, or keep concentrations away from zero."
        )
    passed = not messages
    if passed:
        worst = max((abs(row["z"]) for row in rows), default=0.0)
        messages = [
            f"The scores of all {count} parameters average to zero within their noise, largest |z| {worst:.1f}."
        ]
    return ScoreCheck(tuple(rows), tuple(messages), bad, passed)


def _moments(scores: Scores) -> Any:
    ones = tf.fill([scores.num_draws], 1 / scores.num_draws)
    return scores.weighted_sum(ones), scores.weighted_square_sum(ones), scores.squared_norms()


def _row(name: str, mean: np.ndarray, square: np.ndarray, size: int) -> dict[str, Any]:
    mean, square = mean.ravel().astype(float), square.ravel().astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.sqrt(np.maximum(square - mean**2, 0) / (size - 1))
        z = np.where(square > 0, mean / error, 0.0)
    worst = int(np.argmax(np.abs(z))) if z.size else None
    at = (np.nan, np.nan, 0.0) if worst is None else (mean[worst], error[worst], z[worst])
    zero = int(np.sum(square == 0))
    return dict(
        zip(("parameter", "elements", "mean", "standard_error", "z", "zero_elements"), (name, z.size, *at, zero))
    )


def _faults(row: dict[str, Any], limit: float) -> list[str]:
    faults = []
    if row["elements"] and row["zero_elements"] == row["elements"]:
        faults.append(
            f"The score of {row['parameter']!r} is zero at every draw: log q does not depend on it. (A function of a "
            "variable taken eagerly, as tf.nn.softplus(v), is a constant; use tfp.util.TransformedVariable.)"
        )
    if not abs(row["z"]) <= limit:
        faults.append(
            f"The score of {row['parameter']!r} averages to {row['mean']:.3g} ± {row['standard_error']:.2g}, not to "
            f"zero (z = {row['z']:.1f}): log q is not normalised, or the draws do not follow it."
        )
    return faults
