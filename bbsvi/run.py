"""One fit under way: steps, history, convergence, and the posterior they make."""

from __future__ import annotations

import dataclasses
import functools
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from bbsvi.errors import BBSVIWarning, ConvergenceWarning, NonFiniteError
from bbsvi.estimators import Estimator
from bbsvi.families import Family
from bbsvi.optimization.averaging import Iterates
from bbsvi.optimization.convergence import Convergence, Verdict, judge
from bbsvi.optimization.history import History
from bbsvi.optimization.interrupts import interrupts
from bbsvi.optimization.loop import CHUNK, Steps
from bbsvi.posterior import Posterior
from bbsvi.randomness import as_seed, fold_in
from bbsvi.targets import Target

_SCORE_DRAWS = 128  # draws whose scores the convergence rule sees the iterates through
_NAMING_DRAWS = 64  # draws looked at to say which term is not finite


@dataclasses.dataclass(frozen=True)
class Progress:
    """What a callback sees after each chunk of steps.

    Attributes:
      step: steps done, of num_steps at most.
      elbo, elbo_standard_error: over the draws of the last chunk.
      history: so far, as `Posterior.history`.
      seconds: since the fit began.
    """

    step: int
    num_steps: int
    elbo: float
    elbo_standard_error: float
    history: Mapping[str, np.ndarray]
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The checked arguments of a fit."""

    target: Target
    family: Family
    estimator: Estimator
    optimizer: Any
    sample_size: int
    num_steps: int
    rule: Convergence | None
    seed: int
    jit_compile: bool | str
    callbacks: tuple[Callable[[Progress], Any], ...]


class Run:
    """One fit under way: its steps, what they left behind, and the posterior they make."""

    def __init__(self, plan: Plan):
        self.plan, self.target, self.family = plan, plan.target, plan.family
        self.root = as_seed(plan.seed)
        self.history, self.iterates = History(), Iterates()
        self.steps = Steps(
            plan.target,
            plan.family,
            plan.estimator,
            plan.optimizer,
            sample_size=plan.sample_size,
            seed=fold_in(self.root, 1),
            jit_compile=plan.jit_compile,
        )

    def posterior_after(self, progress_bar: bool) -> Posterior:
        """Run to the end, and the posterior there."""
        try:
            with (
                interrupts() as interrupted,
                tqdm(total=self.plan.num_steps, disable=not progress_bar, unit="step") as bar,
            ):
                ending = self._run(interrupted, bar)
        except KeyboardInterrupt:
            ending = f"Interrupted after {self.steps.step} steps."
        except Exception as error:
            # Work in hand goes along with whatever went wrong, the user's own exceptions included.
            error.posterior = self._posterior(f"Ended by an error after {self.steps.step} steps.")  # type: ignore[attr-defined]
            raise
        posterior = self._posterior(ending)
        if self.plan.rule is not None and not posterior.converged:
            warnings.warn(posterior.message, ConvergenceWarning, stacklevel=3)
        elif posterior.history["dropped_draws"].any():
            warnings.warn(posterior.message, BBSVIWarning, stacklevel=3)
        return posterior

    def _run(self, interrupted: threading.Event, bar: Any) -> str:
        """Steps until one of the ends; a sentence for those that cut the run short, else ""."""
        num_steps = self.plan.num_steps
        while self.steps.step < num_steps:
            record = self.steps.advance(num_steps - self.steps.step)
            self.history.keep(record)
            self.iterates.extend(record.iterates)
            elbo, error = self.history.recent_elbo()
            bar.update(len(record.elbo))
            bar.set_postfix_str(f"ELBO {elbo:.3f} ± {error:.3f}", refresh=False)
            if interrupted.is_set():
                return f"Interrupted after {self.steps.step} steps."
            if self.steps.step % CHUNK and self.steps.step < num_steps:
                continue
            self._check_finite()
            if self._stopped_by_callback(elbo, error):
                return f"Stopped by a callback after {self.steps.step} steps."
            if self.plan.rule is not None and judge(self.plan.rule, self.iterates, self._scores_at).converged:
                return ""
        return ""

    def _check_finite(self) -> None:
        usable = self.history.recent_usable()
        if usable.mean() >= 0.5:
            return
        draws = self.family.sample(_NAMING_DRAWS, fold_in(self.root, 2))
        named = self.target.name_non_finite(self.target.terms(draws.value), draws.value)
        raise NonFiniteError(
            f"log p - log q was not finite in {np.sum(~usable)} of the last {len(usable)} steps, up to step "
            f"{self.steps.step}; those steps left the parameters as they were. At draws of the present q, {named}"
        )

    def _stopped_by_callback(self, elbo: float, error: float) -> bool:
        if not self.plan.callbacks:
            return False
        progress = Progress(
            self.steps.step, self.plan.num_steps, elbo, error, self.history.arrays(), self.history.seconds()
        )
        return any([callback(progress) is True for callback in self.plan.callbacks])  # all of them are called

    def _scores_at(self, parameters: np.ndarray) -> np.ndarray:
        """Scores of draws of q at `parameters`, [_SCORE_DRAWS, P]."""
        now = self.family.parameters()
        self.family.assign(_unflatten(parameters, now))
        try:
            scores = self._compiled_scores(fold_in(self.root, 3))
        finally:
            self.family.assign(now)
        return np.concatenate([np.reshape(h, [_SCORE_DRAWS, -1]) for h in scores], axis=1).astype(np.float64)

    @functools.cached_property
    def _compiled_scores(self) -> Any:
        def scores(seed: Any) -> list[Any]:
            return self.family.scores(self.family.sample(_SCORE_DRAWS, seed)).dense()

        return tf.function(scores, autograph=False)

    def _posterior(self, ending: str) -> Posterior:
        """The posterior at the averaged iterates; `ending` says what cut the run short, if anything did."""
        rule = self.plan.rule or Convergence()
        verdict = judge(rule, self.iterates, self._scores_at)
        if verdict.average is not None:
            self.family.assign(_unflatten(verdict.average, self.family.parameters()))
        sentence = ending or f"{'Converged after' if verdict.converged else 'Ran'} {self.steps.step} steps."
        if not verdict.converged:
            sentence += f" Not converged: {self._reason(verdict, rule)}"
        history = self.history.arrays()
        dropped = int(history["dropped_draws"].sum())
        if dropped:
            drawn = len(history["step"]) * self.plan.sample_size
            sentence += (
                f" {dropped} of {drawn} draws had log p = -inf, outside what the model allows, and were left out: the "
                "history's ELBO is over the others."
            )
        return Posterior(self.target, self.family, history, verdict.converged, sentence, self.plan.seed)

    def _reason(self, verdict: Verdict, rule: Convergence) -> str:
        if verdict.error is not None:
            return (
                f"the averaged parameters are known to {verdict.error:.2g} nats, wanted {rule.tolerance}. "
                "Run more steps, more draws per step, or a smaller step size."
            )
        if not np.isfinite(verdict.rhat):
            return "too few steps to tell."
        sizes = [variable.shape.num_elements() for variable in self.family.trainable_variables]
        which = int(np.searchsorted(np.cumsum(sizes), verdict.parameter, side="right"))
        return (
            f"the parameters still move, most of all {self.family.parameter_names[which]!r} (split R-hat "
            f"{verdict.rhat:.2f}, wanted {rule.rhat}). Run more steps, or a larger step size if the start is far away."
        )


def _unflatten(flat: np.ndarray, like: Sequence[np.ndarray]) -> list[np.ndarray]:
    ends = np.cumsum([array.size for array in like])
    parts = np.split(flat, ends[:-1])
    return [part.reshape(array.shape).astype(array.dtype) for part, array in zip(parts, like, strict=True)]
