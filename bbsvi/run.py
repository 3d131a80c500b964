"""One fit under way: steps, history, convergence, and the posterior they make."""

from __future__ import annotations

import dataclasses
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tqdm import tqdm

from bbsvi import families
from bbsvi.errors import BBSVIWarning, ConvergenceWarning, NonFiniteError
from bbsvi.estimators import Estimator
from bbsvi.families import Family
from bbsvi.optimization.averaging import Iterates
from bbsvi.optimization.convergence import Convergence, Gain, Verdict, judge
from bbsvi.optimization.history import History
from bbsvi.optimization.interrupts import interrupts
from bbsvi.optimization.loop import CHUNK, Steps
from bbsvi.optimization.probe import Probe, unflattened
from bbsvi.posterior import Posterior
from bbsvi.randomness import as_seed, fold_in
from bbsvi.targets import Target

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
        sizes = [variable.shape.num_elements() for variable in plan.family.trainable_variables]
        self.history, self.iterates = History(), Iterates(sum(sizes))
        self.probe = Probe(plan.target, plan.family, fold_in(self.root, 3))
        self.verdict: Verdict | None = None
        # Good parameters are those from which a chunk of steps could be taken: `latest` have yet to show it.
        self.last_good = self.latest = plan.family.parameters()
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
        with interrupts() as interrupted:
            try:
                with tqdm(total=self.plan.num_steps, disable=not progress_bar, unit="step") as bar:
                    ending = self._run(interrupted, bar)
            except KeyboardInterrupt:
                ending = f"Interrupted after {self.steps.step} steps."
            except NonFiniteError as error:
                error.posterior = self._last_good_posterior()
                raise
            except Exception as error:
                # Work in hand goes along with whatever went wrong, the user's own exceptions included. The
                # model may be what failed, so it is not asked again.
                ending = f"Ended by an error after {self.steps.step} steps."
                error.posterior = self._posterior(ending, ask_model=False)  # type: ignore[attr-defined]
                raise
            posterior = self._posterior(ending)
        self._warn(posterior)
        return posterior

    def _warn(self, posterior: Posterior) -> None:
        lost = posterior.history["dropped_draws"].any() or np.isnan(posterior.history["elbo"]).any()
        warning: BBSVIWarning | None = None
        if self.plan.rule is not None and not posterior.converged:
            warning = ConvergenceWarning(posterior.message)
        elif lost:
            warning = BBSVIWarning(posterior.message)
        if warning is not None:
            warning.posterior = posterior  # where warnings are errors, the fit is not lost
            warnings.warn(warning, stacklevel=4)

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
            if self.plan.rule is not None:
                self.verdict = self._judge(self.plan.rule)
                if self.verdict.converged:
                    return ""
        return ""

    def _check_finite(self) -> None:
        taken = self.history.recently_taken()
        if taken.mean() >= 0.5:
            self.last_good, self.latest = self.latest, self.family.parameters()
            return
        raise NonFiniteError(
            f"{np.sum(~taken)} of the last {len(taken)} steps, up to step {self.steps.step}, could not be taken, and "
            f"left the parameters as they were: {self._name_non_finite()}"
        )

    def _name_non_finite(self) -> str:
        for name, value in zip(self.family.parameter_names, self.family.parameters(), strict=True):
            if not np.isfinite(value).all():
                return f"parameter {name!r} is {value[~np.isfinite(value)][0]}; use a smaller step size."
        draws = self.family.sample(_NAMING_DRAWS, fold_in(self.root, 2))
        terms = self.target.terms(draws.value)
        if not all(np.isfinite(term).all() for term in terms.values()):
            return f"at draws of the present q, {self.target.name_non_finite(terms, draws.value)}"
        log_q = self.family.log_prob(draws).numpy()
        if not np.isfinite(log_q).all():
            return (
                f"log q is {log_q[~np.isfinite(log_q)][0]} at draws of the present q; has a scale left its range? "
                "tfp.util.TransformedVariable keeps one positive."
            )
        return f"the gradient is too large for {self.family.dtype.name}; rescale the latents."

    def _stopped_by_callback(self, elbo: float, error: float) -> bool:
        if not self.plan.callbacks:
            return False
        progress = Progress(
            self.steps.step, self.plan.num_steps, elbo, error, self.history.arrays(), self.history.seconds()
        )
        answers = [callback(progress) for callback in self.plan.callbacks]  # all of them are called
        return any(isinstance(answer, (bool, np.bool_)) and answer for answer in answers)

    def _judge(self, rule: Convergence, *, ask_model: bool = True) -> Verdict:
        unknown = Gain(np.inf, 0.0, has_collapsed=False)
        gain_at = self.probe.gain_at if ask_model else lambda _: unknown
        return judge(rule, self.iterates, self.probe.scores_at, gain_at)

    def _last_good_posterior(self) -> Posterior:
        self.family.assign(self.last_good)
        message = f"Ended by an error after {self.steps.step} steps; parameters are those of the last good ones."
        return self._made_posterior(False, message)

    def _posterior(self, ending: str, *, ask_model: bool = True) -> Posterior:
        """The posterior at the averaged iterates; `ending` says what cut the run short, if anything did."""
        rule = self.plan.rule or Convergence()
        verdict = self.verdict
        if verdict is None or not verdict.converged:
            verdict = self._judge(rule, ask_model=ask_model)
        if verdict.average is not None:
            self.family.assign(unflattened(verdict.average, self.family.parameters()))
        sentence = ending or f"{'Converged after' if verdict.converged else 'Ran'} {self.steps.step} steps."
        if not verdict.converged and ask_model:
            sentence += f" Not converged: {self._reason(verdict, rule)}"
        return self._made_posterior(verdict.converged, sentence)

    def _made_posterior(self, converged: bool, sentence: str) -> Posterior:
        history = self.history.arrays()
        num_steps, dropped = len(history["step"]), int(history["dropped_draws"].sum())
        lost = int(np.isnan(history["elbo"]).sum())
        if dropped:
            sentence += (
                f" {dropped} of {num_steps * self.plan.sample_size} draws had log p = -inf, outside what the model "
                "allows, and were left out: the history's ELBO is over the others."
            )
        if lost:
            sentence += f" {lost} of {num_steps} steps met a NaN, or too few finite draws, and were not taken."
        family = families.copy(self.family, self.target)
        return Posterior(self.target, family, history, converged, sentence, self.plan.seed)

    def _reason(self, verdict: Verdict, rule: Convergence) -> str:
        if verdict.gain is not None and verdict.gain.has_collapsed:
            return "q has collapsed, all of its draws are the same number. Use a smaller step size."
        if verdict.gain is not None:
            return (
                f"the parameters hardly move, but a step along the gradient would still gain {verdict.gain.nats:.2g} "
                "nats. Run more steps, use a larger step size, or bring the latents to the scale of 1."
            )
        if verdict.error is not None and verdict.error > rule.tolerance:
            return (
                f"the averaged parameters are known to {verdict.error:.2g} nats, wanted {rule.tolerance}. "
                "Run more steps, more draws per step, or a smaller step size."
            )
        if verdict.error is not None or not np.isfinite(verdict.rhat):
            return "too few steps to tell."
        sizes = [variable.shape.num_elements() for variable in self.family.trainable_variables]
        which = int(np.searchsorted(np.cumsum(sizes), verdict.parameter, side="right"))
        return (
            f"the parameters still move, most of all {self.family.parameter_names[which]!r} (split R-hat "
            f"{verdict.rhat:.2f}, wanted {rule.rhat}). Run more steps, or bring the latents to the scale of 1."
        )
