"""A fitted q in one .npz file, without pickle."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from bbsvi import families
from bbsvi.errors import InvalidValueError
from bbsvi.families import Family
from bbsvi.randomness import as_seed
from bbsvi.targets import Target
from bbsvi.validation import one_line

tfd = tfp.distributions

_FORMAT = 1
_PROBE_SEED = 20_141  # of the draws whose log p tells one model from another


def write(
    path: str | Path, target: Target, family: Family, history: Mapping[str, np.ndarray], fields: Mapping[str, Any]
) -> None:
    """Write parameters, history, `fields` (anything JSON holds) and what the model can be known by."""
    outline = {
        "format": _FORMAT,
        "family": _to_names(family.config()),
        "latents": _outline(target),
        "fields": dict(fields),
        "history": list(history),
    }
    probe = family.sample(target.num_probe_draws, as_seed(_PROBE_SEED)).value
    arrays = {f"parameter/{i}": value for i, value in enumerate(family.parameters())}
    arrays |= {f"history/{name}": array for name, array in history.items()}
    arrays |= {f"probe/{name}": value.numpy() for name, value in probe.items()}
    arrays |= {"outline": np.array(json.dumps(outline)), "log_p": target.log_prob(probe).numpy()}
    with open(path, "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def read(path: str | Path, target: Target, family: Any) -> tuple[Family, dict[str, np.ndarray], dict[str, Any]]:
    """The family with its parameters, the history and the fields.

    Args:
      family: None, or what `families.resolve` takes, where the file could not hold it.

    Raises:
      InvalidValueError: not such a file, not the same model, or `family` is missing.
    """
    stored, outline = _opened(path)
    if _outline(target) != outline["latents"]:
        raise InvalidValueError(
            f"{path} was fitted to the latents {outline['latents']}, the target has {_outline(target)}."
        )
    if family is None:
        q = families.from_config(_from_names(outline["family"]), target)
    else:
        q = families.resolve(family, target)
    parameters = [stored[f"parameter/{i}"] for i in range(sum(name.startswith("parameter/") for name in stored))]
    shapes = [list(variable.shape) for variable in q.trainable_variables]
    if shapes != [list(parameter.shape) for parameter in parameters]:
        raise InvalidValueError(
            f"{path} holds parameters of shapes {[list(p.shape) for p in parameters]}, the family wants {shapes}."
        )
    probe = {name.removeprefix("probe/"): value for name, value in stored.items() if name.startswith("probe/")}
    _check_model(path, target, probe, stored["log_p"])
    q.assign(parameters)
    return q, {name: stored[f"history/{name}"] for name in outline["history"]}, outline["fields"]


def _opened(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            stored = {name: file[name] for name in file.files}
        return stored, json.loads(str(stored["outline"]))
    except (ValueError, KeyError, AttributeError, zipfile.BadZipFile) as error:
        raise InvalidValueError(f"{path} was not written by Posterior.save ({one_line(error)}).") from error


def _to_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """A family's config with TFP classes by name."""
    for latent, cls in config.get("factors", {}).items():
        if getattr(tfd, cls.__name__, None) is not cls:
            raise InvalidValueError(f"factors[{latent!r}] is {cls!r}, a class of your own, which no file can hold.")
    names = {latent: cls.__name__ for latent, cls in config.get("factors", {}).items()}
    return {**config, "factors": names} if names else dict(config)


def _from_names(config: Mapping[str, Any]) -> dict[str, Any]:
    classes = {latent: getattr(tfd, name) for latent, name in config.get("factors", {}).items()}
    return {**config, "factors": classes} if classes else dict(config)


def _outline(target: Target) -> dict[str, Any]:
    return {
        name: {"event_shape": list(latent.event_shape), "support": latent.support.name, "dtype": latent.dtype.name}
        for name, latent in target.latents.items()
    }


def _check_model(path: Any, target: Target, probe: dict[str, np.ndarray], log_p: np.ndarray) -> None:
    """That log p at the probe draws is what it was; a simulator with noise of its own cannot be checked."""
    values = {name: tf.constant(value) for name, value in probe.items()}
    now, again = target.log_prob(values).numpy(), target.log_prob(values).numpy()
    if np.array_equal(now, again, equal_nan=True) and not np.allclose(now, log_p, 1e-6, 1e-3, equal_nan=True):
        raise InvalidValueError(
            f"the model is not the one that {path} was fitted to: at a saved draw its log density was {log_p[0]:.6g} "
            f"and is now {now[0]:.6g}."
        )
