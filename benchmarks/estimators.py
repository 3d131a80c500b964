"""Gradient estimators at the same q: variance, signal-to-noise, cost and bias.

At the start of a fit and at its end, every estimator is run many times in a row. Reference from
outside: TFP's own estimators on the same q.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import bbsvi
from bbsvi.control_variates import LeaveOneOut, MovingAverage, OptimalCoefficients
from bbsvi.estimators import ScoreFunction
from bbsvi.randomness import as_seed
from benchmarks import gradients
from benchmarks.figures import dots
from benchmarks.reporting import report
from benchmarks.timing import medians

MODELS = ("eight_schools", "coal_mining")
SAMPLE_SIZE = 32
BATCH = 100  # estimates in one compiled call
REFERENCE = "leave-one-out"
OURS = {
    "plain score function": ScoreFunction(control_variate=None),
    REFERENCE: ScoreFunction(control_variate=LeaveOneOut()),
    "optimal coefficients": ScoreFunction(control_variate=OptimalCoefficients()),
    "optimal coefficients, 2 folds": ScoreFunction(control_variate=OptimalCoefficients(folds=2)),
    "moving average": ScoreFunction(control_variate=MovingAverage()),
}
TFPS = {"TFP score function": gradients.SCORE_FUNCTION, "TFP reparameterisation": gradients.REPARAMETERIZATION}


def main(quick: bool, output: Path) -> None:
    # Compiling by XLA alone would take a minute.
    batches, fit_steps, jit_compile = (1, 2000, False) if quick else (50, 10_000, True)
    rows = [row for model in MODELS for row in rows_of_model(model, batches, fit_steps, jit_compile)]
    mode = "XLA" if jit_compile else "plain graph"
    settings = {"sample_size": SAMPLE_SIZE, "repeats": batches * BATCH, "steps_to_optimum": fit_steps, "mode": mode}
    notes = [
        "variance: of one gradient estimate, summed over the parameters, with the standard error of that number",
        "(heavy tails: a rare estimate makes most of it). relative: to leave-one-out.",
        "snr: length of the mean gradient over the square root of the variance; 0 where noise hides the mean.",
        "TFP score function: keeps a term that is zero on average, and so multiplies the scores by f - 1, not f.",
        f"ms: for one gradient, in a compiled loop of {BATCH} ({mode}).",
        "bias z: length of the mean difference to leave-one-out, in standard errors; about 1 for an unbiased one.",
    ]
    report("estimators", rows, output, settings=settings, notes=notes, draw=draw)


def rows_of_model(model: str, batches: int, fit_steps: int, jit_compile: bool) -> list[dict[str, Any]]:
    """Every estimator at the initial mean-field q, and at the one that `fit` ends with."""
    example = bbsvi.examples.load(model)
    target = bbsvi.Target.from_joint(example.target, example.data)
    family = bbsvi.families.MeanField(target)
    check_surrogate(family)
    options = {"sample_size": SAMPLE_SIZE, "repeats": BATCH, "jit_compile": jit_compile}
    of = {name: gradients.of_estimator(estimator, target, family, **options) for name, estimator in OURS.items()}
    is_reparameterised = not any(latent.is_discrete for latent in target.latents.values())
    for name, kind in TFPS.items():
        if kind != gradients.REPARAMETERIZATION or is_reparameterised:
            of[name] = gradients.of_tfp(kind, example, family, **options)
    start = family.parameters()
    bbsvi.fit(
        target, family, num_steps=fit_steps, convergence=None, seed=0, jit_compile=jit_compile, progress_bar=False
    )
    rows = []
    for place, parameters in {"start": start, "optimum": family.parameters()}.items():
        family.assign(parameters)
        rows += rows_at(of, batches, {"model": model, "q": place})
    return rows


def rows_at(of: Mapping[str, gradients.Gradients], batches: int, place: dict[str, Any]) -> list[dict[str, Any]]:
    # The same seeds for all: bbsvi's estimators see the same draws, so their differences are small.
    estimates = {name: np.concatenate([run(seed) for seed in range(batches)]).astype(float) for name, run in of.items()}
    seconds = medians({name: lambda run=run: run(0) for name, run in of.items()}, repeats=3)
    reference = estimates[REFERENCE]
    rows = []
    for name in [*OURS, *TFPS]:
        row = place | {"estimator": name} | dict.fromkeys(("variance", "error", "relative", "snr", "ms", "bias_z"))
        if name in of:
            variance = total_variance(estimates[name])
            row |= {
                "variance": variance,
                "error": error_of_total_variance(estimates[name]),
                "relative": variance / total_variance(reference),
                "snr": signal_to_noise(estimates[name]),
                "ms": 1e3 * seconds[name] / BATCH,
                "bias_z": None if name == REFERENCE else distance_from_zero(estimates[name] - reference),
            }
        rows.append(row | {"note": "" if name in of else "not reparameterisable"})
    return rows


def check_surrogate(family: bbsvi.families.Family) -> None:
    """That TFP's q is bbsvi's."""
    draws = family.sample(1000, as_seed(0))
    theirs = gradients.surrogate(family).log_prob(draws.value)
    np.testing.assert_allclose(theirs, family.log_prob(draws), rtol=1e-4, atol=1e-4)


def total_variance(estimates: np.ndarray) -> float:
    """Of one estimate, summed over the parameters. estimates: [repeats, P]."""
    return float(estimates.var(axis=0, ddof=1).sum())


def error_of_total_variance(estimates: np.ndarray) -> float:
    squares = np.square(estimates - estimates.mean(axis=0)).sum(axis=1)
    return float(squares.std(ddof=1) / np.sqrt(len(estimates)))


def signal_to_noise(estimates: np.ndarray) -> float:
    """||E g|| / sqrt(total variance); what noise adds to the square of the mean is taken off."""
    variance = total_variance(estimates)
    square = np.square(estimates.mean(axis=0)).sum() - variance / len(estimates)
    return float(np.sqrt(max(square, 0) / variance))


def distance_from_zero(differences: np.ndarray) -> float:
    """||mean|| in standard errors: its square has expectation 1 if the expected difference is zero.

    Parameters count by their variance, so that one which hardly ever moves has no say.
    """
    error = total_variance(differences) / len(differences)
    return float(np.linalg.norm(differences.mean(axis=0)) / np.sqrt(error))


def draw(figure: Any, rows: Any) -> None:
    panels = {}
    for row in rows:
        label = "start of the fit" if row["q"] == "start" else "fitted optimum"
        panel = panels.setdefault(f"{row['model'].replace('_', ' ')}, {label}", {})
        panel[row["estimator"]] = row["variance"]
    dots(figure, panels, f"total gradient variance, {SAMPLE_SIZE} draws", missing="not reparameterisable")
