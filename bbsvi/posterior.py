"""The fitted posterior: q with its history, and what it can be asked."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bbsvi import storage
from bbsvi.diagnostics import k_hat, k_hat_threshold, mean_and_error
from bbsvi.errors import InvalidTypeError, InvalidValueError
from bbsvi.families import Draws, Family, collapsed_latents, has_copies
from bbsvi.randomness import as_seed, fold_in
from bbsvi.targets import Target
from bbsvi.tracing import Traced
from bbsvi.validation import known_name, one_line, positive_integer

_BATCH = 10_000  # draws evaluated at once
_SUMMARY_DRAWS = 20_000
_SUMMARY_SEED = 20_141


class Estimate(NamedTuple):
    """A Monte Carlo estimate and its standard error."""

    value: float
    standard_error: float

    def __str__(self) -> str:
        return f"{self.value:.4f} ± {self.standard_error:.4f}"


@dataclasses.dataclass(frozen=True)
class Diagnostics:
    """How far to trust a posterior.

    Attributes:
      k_hat: Pareto shape of the importance weights; below `k_hat_threshold` q can be trusted, and
        corrected by importance weighting.
      k_hat_threshold: min(1 - 1 / log10 S, 0.7).
      elbo: lower bound on the log evidence, with standard error.
      snr: median signal-to-noise ratio of the last 250 steps' gradients, each the norm of the gradient,
        less what noise alone would give, over its standard error.
      converged: whether the convergence rule was met.
      messages: the same in plain sentences.
    """

    k_hat: float
    k_hat_threshold: float
    elbo: Estimate
    snr: float
    converged: bool
    messages: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.messages)


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Posterior:
    """A fitted q(z). Draws, means and summaries are in the model's (constrained) space.

    Attributes:
      target: log p.
      family: q, with the fitted parameters in variables of its own. A TFP distribution or a family class
        of the user's cannot be copied: if it is trained again, this posterior refuses to answer for it.
      history: {"step", "elbo", "elbo_standard_error", "gradient_norm", "gradient_snr",
        "dropped_draws", "seconds"}, one entry a step. The ELBO entries are each from one step's draws;
        a step that could not be used (a NaN, or too few finite draws) has nan.
      converged: whether the convergence rule was met.
      message: how the fit ended, in a sentence.
      seed: the seed that the fit ran with.
    """

    target: Target
    family: Family
    history: Mapping[str, np.ndarray]
    converged: bool
    message: str
    seed: int

    def __repr__(self) -> str:
        return (
            f"<bbsvi.Posterior of {', '.join(self.target.latents)}: {type(self.family).__name__}, "
            f"{len(self.history['step'])} steps, converged={self.converged}>"
        )

    def __post_init__(self) -> None:
        object.__setattr__(self, "_fitted", self.family.parameters())

    def _draws(self, sample_size: int, seed: Any) -> Draws:
        self._check_unchanged()
        return self.family.sample(sample_size, seed)

    def _check_unchanged(self) -> None:
        if has_copies(self.family):
            return  # then this one is the posterior's own
        now = self.family.parameters()
        if not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(now, self._fitted, strict=True)):  # type: ignore[attr-defined]
            raise InvalidValueError(
                "the q of this posterior has been trained again since; build a new one for each fit."
            )

    def sample(self, sample_size: int, seed: int = 0) -> dict[str, np.ndarray]:
        """Draws of q, {name: [sample_size, *event]}, in the model's space."""
        size = positive_integer("sample_size", sample_size)
        return {name: value.numpy() for name, value in self._draws(size, as_seed(seed)).value.items()}

    def log_prob(self, values: Mapping[str, Any]) -> np.ndarray:
        """log q at given values, [S]; -inf outside a support, and for values rounded to its edge.

        Args:
          values: {name: [S, *event]}, in the model's space; taken in q's own dtype.

        Raises:
          InvalidValueError, InvalidTypeError: naming the latent that is missing, unknown or ill-shaped.
        """
        latents = self.target.latents
        if not isinstance(values, Mapping):
            raise InvalidTypeError(f"values must be a dict {{latent: [S, *event]}}, got {type(values).__name__}.")
        for name in values:
            known_name("values", name, latents)
        arrays = {}
        for name, latent in latents.items():
            if name not in values:
                raise InvalidValueError(f"values: latent {name!r} is missing; wanted {sorted(latents)}.")
            try:
                arrays[name] = np.asarray(values[name]).astype(latent.dtype.as_numpy_dtype)
            except (TypeError, ValueError) as error:
                problem = f"values[{name!r}] must be an array of numbers, got {one_line(error)}."
                raise InvalidTypeError(problem) from error
            if arrays[name].ndim != 1 + len(latent.event_shape) or arrays[name].shape[1:] != latent.event_shape:
                wanted = "[S" + "".join(f", {dim}" for dim in latent.event_shape) + "]"
                raise InvalidValueError(f"values[{name!r}] has shape {list(arrays[name].shape)}, wanted {wanted}.")
        sizes = {name: len(array) for name, array in arrays.items()}
        if len(set(sizes.values())) > 1:
            raise InvalidValueError(f"values have different numbers of draws: {sizes}.")
        self._check_unchanged()
        log_q = self.family.log_prob(self.family.draws_at(arrays)).numpy()
        log_q = np.where(np.isnan(log_q), -np.inf, log_q)  # at an edge: -inf less an infinite log-determinant
        for name, latent in latents.items():
            inside = np.asarray(latent.support.contains(arrays[name], len(latent.event_shape)))
            if latent.is_discrete:  # 1.5 is no count, though the cast made one of it
                whole = np.asarray(arrays[name] == np.asarray(values[name]))
                inside = inside & whole.reshape(len(whole), -1).all(axis=1)
            log_q = np.where(inside, log_q, -np.inf).astype(log_q.dtype)
        return log_q

    def mean(self) -> dict[str, np.ndarray]:
        """Posterior means, from 20,000 draws."""
        return {name: draws.mean(axis=0, dtype=np.float64) for name, draws in self._summary().items()}

    def stddev(self) -> dict[str, np.ndarray]:
        """Posterior standard deviations, from 20,000 draws."""
        return {name: draws.std(axis=0, dtype=np.float64) for name, draws in self._summary().items()}

    def summary(self) -> Any:
        """A pandas DataFrame with ArviZ's columns: mean, sd and the 94 % highest-density interval."""
        import arviz

        return arviz.summary(_inference_data(self._summary()), kind="stats", round_to=4)

    def elbo(self, sample_size: int = 10_000, seed: int = 1) -> Estimate:
        """E_q[log p - log q], a lower bound on the log evidence, with its standard error."""
        log_weights = self._log_weights(positive_integer("sample_size", sample_size, minimum=2), seed)
        if not np.isfinite(log_weights).all():
            return Estimate(-np.inf if not np.isnan(log_weights).any() else np.nan, np.nan)
        return Estimate(*mean_and_error(log_weights))

    def diagnose(self, sample_size: int = 10_000, seed: int = 2) -> Diagnostics:
        """k-hat, ELBO and gradient signal-to-noise, and what they mean."""
        size = positive_integer("sample_size", sample_size, minimum=100)
        log_weights = self._log_weights(size, seed)
        finite, num_nan = np.isfinite(log_weights), int(np.isnan(log_weights).sum())
        messages = [self.message]
        shape, elbo, threshold = np.inf, Estimate(-np.inf, np.nan), k_hat_threshold(size)
        if finite.sum() >= 100:
            shape = k_hat(log_weights[finite])
        if finite.all():
            elbo = Estimate(*mean_and_error(log_weights))
            messages.append(f"ELBO {elbo}: the log evidence is at least about this.")
        else:
            messages.append(
                f"Of {size} draws {np.sum(~finite) - num_nan} are outside what the model allows (log p = -inf) and "
                f"{num_nan} have no log density (NaN): the ELBO is not finite, and k-hat is that of the others."
            )
        stuck = collapsed_latents(self.family, as_seed(seed))
        if stuck:
            shape = np.inf
            messages.append(f"q has collapsed: all draws of {', '.join(stuck)} are the same number.")
        weights = np.exp(log_weights[finite] - log_weights[finite].max(initial=-np.inf))
        share = float(weights.sum() ** 2 / np.sum(weights**2) / size) if finite.any() else 0.0
        verdict = "Do not trust it" if stuck else _verdict(shape, threshold, share)
        messages.append(f"{verdict} (k-hat {shape:.2f}, effective sample size {share:.0%}).")
        recent = self.history["gradient_snr"][-250:]
        snr = float(np.nanmedian(recent)) if np.isfinite(recent).any() else np.nan
        messages.append(f"Signal-to-noise ratio of the last steps' gradients: {snr:.2f}.")
        return Diagnostics(shape, threshold, elbo, snr, self.converged, tuple(messages))

    def to_inference_data(self, sample_size: int = 4_000, seed: int = 0) -> Any:
        """An ArviZ InferenceData: `posterior` as one chain of independent draws, log p (`lp`) and
        log q (`lq`) in `sample_stats`, and the observed data."""
        draws = self._draws(positive_integer("sample_size", sample_size), as_seed(seed))
        log_p, log_q = self.target.log_prob(draws.value).numpy(), self.family.log_prob(draws).numpy()
        values = {name: value.numpy() for name, value in draws.value.items()}
        return _inference_data(
            values,
            sample_stats={"lp": log_p[None], "lq": log_q[None]},
            observed_data=dict(self.target.observed) or None,
        )

    def save(self, path: str | Path) -> None:
        """Write parameters, history and an outline of the model to one .npz file, without pickle.

        Args:
          path: the file's name, used as it is.
        """
        self._check_unchanged()
        fields = {"converged": bool(self.converged), "message": self.message, "seed": int(self.seed)}
        storage.write(path, self.target, self.family, self.history, fields)

    def _summary(self) -> dict[str, np.ndarray]:
        self._check_unchanged()
        return self._summary_draws

    @functools.cached_property
    def _summary_draws(self) -> dict[str, np.ndarray]:
        return self.sample(_SUMMARY_DRAWS, seed=_SUMMARY_SEED)

    def _log_weights(self, sample_size: int, seed: int) -> np.ndarray:
        """log p - log q at draws of q, [sample_size], in float64."""
        self._check_unchanged()
        root, parts = as_seed(seed), []
        for index, start in enumerate(range(0, sample_size, _BATCH)):
            size = min(_BATCH, sample_size - start)
            parts.append(self._log_weights_of(size, fold_in(root, index)).numpy())
        return np.concatenate(parts)

    @functools.cached_property
    def _graphs(self) -> dict[int, Traced]:
        """Log weights of so many draws of a seed."""
        return {}

    def _log_weights_of(self, size: int, seed: Any) -> Any:
        def log_weights(seed: Any) -> Any:
            draws = self.family.sample(size, seed)
            return self.target.log_prob(draws.value) - tf.cast(self.family.log_prob(draws), tf.float64)

        return self._graphs.setdefault(size, Traced(log_weights))(seed)


def _verdict(shape: float, threshold: float, share: float) -> str:
    """What k-hat and the effective share of importance-weighted draws say about q."""
    if shape > threshold and share > 0.9:
        return f"The bulk of q is right, its tails are too thin to be sure of: k-hat is above {threshold:.2f}"
    if shape > threshold:
        return (
            f"Do not trust variances and tails, q misses part of the posterior: k-hat is above {threshold:.2f}. Try a "
            "richer family, or write the model in another way"
        )
    if share > 0.9:
        return "q is close to the posterior"
    return "q is usable, importance weighting would improve it"


def load(path: str | Path, target: Any, *, data: Mapping[str, Any] | None = None, family: Any = None) -> Posterior:
    """A posterior that `Posterior.save` wrote: log q is the same to the last bit.

    Args:
      path: the file.
      target: the model that it was fitted to, as given to `fit`.
      data: as given to `fit`.
      family: needed where q was a TFP distribution or an encoder of your own, which no file can hold: one built by
        the same code. It takes the saved parameters.

    Raises:
      InvalidValueError: not such a file; the model's latents, or its log density at saved points, are
        not what they were; or `family` is missing.
    """
    target = Target.of(target, data)
    q, history, fields = storage.read(path, target, family)
    return Posterior(target, q, history, **fields)


def _inference_data(values: Mapping[str, np.ndarray], **groups: Any) -> Any:
    import arviz

    posterior = {name: value[None] for name, value in values.items()}  # one chain
    return arviz.from_dict(posterior=posterior, **{name: group for name, group in groups.items() if group})
