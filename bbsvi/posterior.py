"""The fitted posterior: q with its history, and what it can be asked."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bbsvi import families
from bbsvi.diagnostics import k_hat, k_hat_threshold, mean_and_error
from bbsvi.errors import InvalidTypeError, InvalidValueError
from bbsvi.families import Family
from bbsvi.randomness import as_seed, fold_in
from bbsvi.targets import Target
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
        less what noise alone would give, over its standard error. Below 1 at an optimum.
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


@dataclasses.dataclass(frozen=True, repr=False)
class Posterior:
    """A fitted q(z). Draws, means and summaries are in the model's (constrained) space.

    Attributes:
      target, family: log p and q. The family's variables hold the fitted parameters.
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

    def sample(self, sample_size: int, seed: int = 0) -> dict[str, np.ndarray]:
        """Draws of q, {name: [sample_size, *event]}, in the model's space."""
        size = positive_integer("sample_size", sample_size)
        return {name: value.numpy() for name, value in self.family.sample(size, as_seed(seed)).value.items()}

    def log_prob(self, values: Mapping[str, Any]) -> np.ndarray:
        """log q at given values, [S]; -inf outside a support.

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
        log_q = self.family.log_prob(self.family.draws_at(arrays)).numpy()
        for name, latent in latents.items():
            inside = np.asarray(latent.support.contains(arrays[name], len(latent.event_shape)))
            if latent.is_discrete:  # 1.5 is no count, though the cast made one of it
                whole = np.asarray(arrays[name] == np.asarray(values[name]))
                inside = inside & whole.reshape(len(whole), -1).all(axis=1)
            log_q = np.where(inside, log_q, -np.inf).astype(log_q.dtype)
        return log_q

    def mean(self) -> dict[str, np.ndarray]:
        """Posterior means, from 20,000 draws."""
        return {name: draws.mean(axis=0, dtype=np.float64) for name, draws in self._summary_draws.items()}

    def stddev(self) -> dict[str, np.ndarray]:
        """Posterior standard deviations, from 20,000 draws."""
        return {name: draws.std(axis=0, dtype=np.float64) for name, draws in self._summary_draws.items()}

    def summary(self) -> Any:
        """A pandas DataFrame with ArviZ's columns: mean, sd and the 94 % highest-density interval."""
        import arviz

        return arviz.summary(_inference_data(self._summary_draws), kind="stats", round_to=4)

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
        finite = np.isfinite(log_weights)
        messages = [self.message]
        shape, elbo, threshold = np.inf, Estimate(-np.inf, np.nan), k_hat_threshold(size)
        if finite.sum() >= 100:
            shape = k_hat(log_weights[finite])
        if finite.all():
            elbo = Estimate(*mean_and_error(log_weights))
            messages.append(f"ELBO {elbo}: the log evidence is at least about this.")
        else:
            messages.append(
                f"{np.sum(~finite)} of {size} draws have no finite log density: q puts mass where the model has none."
            )
        if shape <= 0.5:
            verdict = "q is close to the posterior"
        elif shape <= threshold:
            verdict = "q is usable, importance weighting would improve it"
        else:
            verdict = (
                "do not trust variances and tails, q misses part of the posterior: try a richer family, or write the "
                "model in another way"
            )
        messages.append(f"k-hat {shape:.2f} (trust below {threshold:.2f}): {verdict}.")
        recent = self.history["gradient_snr"][-250:]
        snr = float(np.nanmedian(recent)) if np.isfinite(recent).any() else np.nan
        messages.append(f"Signal-to-noise ratio of the last steps' gradients: {snr:.2f} (at an optimum, below 1).")
        return Diagnostics(shape, threshold, elbo, snr, self.converged, tuple(messages))

    def to_inference_data(self, sample_size: int = 4_000, seed: int = 0) -> Any:
        """An ArviZ InferenceData: `posterior` as one chain of independent draws, log p (`lp`) and
        log q (`lq`) in `sample_stats`, and the observed data."""
        draws = self.family.sample(positive_integer("sample_size", sample_size), as_seed(seed))
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
        outline = {
            "format": 1,
            "family": self.family.config(),
            "latents": _outline(self.target),
            "converged": bool(self.converged),
            "message": self.message,
            "seed": int(self.seed),
            "history": list(self.history),
        }
        values, log_p = _fingerprint(self.target, self.family)
        arrays = {f"parameter/{i}": value for i, value in enumerate(self.family.parameters())}
        arrays |= {f"history/{name}": array for name, array in self.history.items()}
        arrays |= {f"probe/{name}": value for name, value in values.items()}
        with open(path, "wb") as file:
            np.savez(file, allow_pickle=False, **(arrays | {"outline": np.array(json.dumps(outline)), "log_p": log_p}))

    @functools.cached_property
    def _summary_draws(self) -> dict[str, np.ndarray]:
        return self.sample(_SUMMARY_DRAWS, seed=_SUMMARY_SEED)

    def _log_weights(self, sample_size: int, seed: int) -> np.ndarray:
        """log p - log q at draws of q, [sample_size], in float64."""
        root, parts = as_seed(seed), []
        for index, start in enumerate(range(0, sample_size, _BATCH)):
            size = min(_BATCH, sample_size - start)
            parts.append(self._compiled_log_weights(size, fold_in(root, index)).numpy())
        return np.concatenate(parts)

    @functools.cached_property
    def _compiled_log_weights(self) -> Any:
        def log_weights(size: int, seed: Any) -> Any:
            draws = self.family.sample(size, seed)
            return self.target.log_prob(draws.value) - tf.cast(self.family.log_prob(draws), tf.float64)

        return tf.function(log_weights, autograph=False)


def load(path: str | Path, target: Any, *, data: Mapping[str, Any] | None = None, family: Any = None) -> Posterior:
    """A posterior that `Posterior.save` wrote: log q is the same to the last bit.

    Args:
      path: the file.
      target: the model that it was fitted to, as given to `fit`.
      data: as given to `fit`.
      family: needed where q was a TFP distribution of your own, which no file can hold: one built by
        the same code. It takes the saved parameters.

    Raises:
      InvalidValueError: the model's latents, or its log density at saved points, are not what they
        were; or `family` is missing.
    """
    with np.load(path, allow_pickle=False) as file:
        stored = {name: file[name] for name in file.files}
    outline = json.loads(str(stored["outline"]))
    target = target if isinstance(target, Target) else Target.from_joint(target, data)
    if _outline(target) != outline["latents"]:
        raise InvalidValueError(
            f"{path} was fitted to the latents {outline['latents']}, the target has {_outline(target)}."
        )
    if outline["family"]["family"] == "Wrapped" and family is None:
        raise InvalidValueError(f"{path} holds a TFP distribution of your own: pass family=, built by the same code.")
    q = families.from_config(outline["family"], target) if family is None else families.resolve(family, target)
    parameters = [stored[f"parameter/{i}"] for i in range(sum(name.startswith("parameter/") for name in stored))]
    shapes = [list(variable.shape) for variable in q.trainable_variables]
    if shapes != [list(parameter.shape) for parameter in parameters]:
        raise InvalidValueError(
            f"{path} holds parameters of shapes {[list(p.shape) for p in parameters]}, the family wants {shapes}."
        )
    q.assign(parameters)
    probe = {name.removeprefix("probe/"): value for name, value in stored.items() if name.startswith("probe/")}
    _check_fingerprint(path, target, probe, stored["log_p"])
    history = {name: stored[f"history/{name}"] for name in outline["history"]}
    return Posterior(target, q, history, outline["converged"], outline["message"], outline["seed"])


def _outline(target: Target) -> dict[str, Any]:
    return {
        name: {"event_shape": list(latent.event_shape), "support": latent.support.name, "dtype": latent.dtype.name}
        for name, latent in target.latents.items()
    }


def _fingerprint(target: Target, family: Family) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """A few draws and log p at them, to know the model by."""
    values = family.sample(target.num_probe_draws, as_seed(_SUMMARY_SEED)).value
    return {name: value.numpy() for name, value in values.items()}, target.log_prob(values).numpy()


def _check_fingerprint(path: Any, target: Target, probe: dict[str, np.ndarray], log_p: np.ndarray) -> None:
    now = target.log_prob({name: tf.constant(value) for name, value in probe.items()}).numpy()
    again = target.log_prob({name: tf.constant(value) for name, value in probe.items()}).numpy()
    if np.array_equal(now, again, equal_nan=True) and not np.allclose(now, log_p, rtol=1e-4, atol=1e-3, equal_nan=True):
        raise InvalidValueError(
            f"the model is not the one that {path} was fitted to: at a saved draw its log density was {log_p[0]:.6g} "
            f"and is now {now[0]:.6g}."
        )


def _inference_data(values: Mapping[str, np.ndarray], **groups: Any) -> Any:
    import arviz

    posterior = {name: value[None] for name, value in values.items()}  # one chain
    return arviz.from_dict(posterior=posterior, **{name: group for name, group in groups.items() if group})
