"""`fit`: checks, defaults, and the rooms below wired together."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tqdm.auto import tqdm

from bbsvi import families
from bbsvi.errors import (
    BBSVIError,
    BBSVIWarning,
    ConvergenceWarning,
    InvalidTypeError,
    InvalidValueError,
    NonFiniteError,
)
from bbsvi.estimators import Estimator, ScoreFunction
from bbsvi.families import Family
from bbsvi.optimization.averaging import Iterates
from bbsvi.optimization.convergence import Convergence, Verdict, judge
from bbsvi.optimization.loop import CHUNK, Record, Steps, copy_optimizer
from bbsvi.posterior import Posterior
from bbsvi.randomness import as_seed, fold_in, new_seed
from bbsvi.targets import Target
from bbsvi.targets.joint import is_joint
from bbsvi.validation import positive_integer

DEFAULT_SAMPLE_SIZE = 64
_CHECK_DRAWS = 64  # draws from the initial q that the checks before compilation look at
_SCORE_DRAWS = 128  # draws whose scores the convergence rule sees the iterates through


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


def fit(
    target: Any,
    family: Any = "mean_field",
    *,
    data: Mapping[str, Any] | None = None,
    estimator: Estimator | None = None,
    optimizer: Any = None,
    sample_size: int | None = None,
    num_steps: int = 10_000,
    convergence: Convergence | str | None = "auto",
    seed: int | None = None,
    jit_compile: bool | str = "auto",
    progress_bar: bool = True,
    callbacks: Sequence[Callable[[Progress], Any]] = (),
) -> Posterior:
    """Fit q(z) to a log density by stochastic gradient ascent on the ELBO.

    Args:
      target: a `tfd.JointDistribution*` or a `bbsvi.Target`.
      family: "mean_field", "full_rank", a `bbsvi.families` object or a `tfd.Distribution` with
        trainable variables (over the latents' own values). An object is trained in place.
      data: {site: array}, observed values of a joint distribution; {} where nothing is observed.
      estimator: None: `ScoreFunction()`, which needs only values of log p.
      optimizer: a Keras optimizer, copied; None: `Adam(0.02, beta_2=0.99)`.
      sample_size: draws of z per step; None: 64.
      num_steps: at most this many.
      convergence: "auto": `Convergence()`; None: run all the steps.
      seed: an int; the same seed on the same machine in the same mode gives the same history to the
        last bit. None: a new one, kept in `Posterior.seed`.
      jit_compile: True: XLA; False: the plain graph; "auto": XLA where it can be expected to help.
      progress_bar: show steps and the ELBO with its standard error.
      callbacks: called with a `Progress` after each chunk of 250 steps; one that returns True stops
        the fit. An exception in one is raised with `posterior` attached.

    Returns:
      The posterior. Parameters are averages over the iterates' stationary window, if there is one.
      After Ctrl-C (or a KeyboardInterrupt) it is what there is so far.

    Raises:
      InvalidValueError, InvalidTypeError: before any compilation, naming the argument.
      NonFiniteError: log p is not finite at the start, or stops being so; naming term and draw.
      LogProbError: the model raised an exception. Both come with `posterior` attached.
    """
    sizes = _checked_sizes(estimator, sample_size, num_steps)
    rule = _checked_rule(convergence)
    optimizer = _checked_optimizer(optimizer)
    if jit_compile not in (True, False, "auto"):
        raise InvalidValueError(f"jit_compile must be True, False or 'auto', got {jit_compile!r}.")
    callbacks = _checked_callbacks(callbacks)
    seed = new_seed() if seed is None else seed
    root = as_seed(seed)
    target = _checked_target(target, data)
    if jit_compile is True and not target.is_compilable:
        raise InvalidValueError("jit_compile=True: XLA cannot compile a numpy log density; use 'auto' or False.")
    q = families.resolve(family, target)
    _check_start(target, q, fold_in(root, 0))
    run = _Run(target, q, sizes, rule, optimizer, seed, jit_compile, callbacks)
    return run.posterior_after(progress_bar)


@dataclasses.dataclass(frozen=True)
class _Sizes:
    estimator: Estimator
    sample_size: int
    num_steps: int


def _checked_sizes(estimator: Any, sample_size: Any, num_steps: Any) -> _Sizes:
    estimator = ScoreFunction() if estimator is None else estimator
    if isinstance(estimator, type) or not all(hasattr(estimator, m) for m in ("init", "estimate", "minimum_sample_size")):
        raise InvalidTypeError(f"estimator must be a bbsvi.estimators object, got {estimator!r}.")
    minimum = estimator.minimum_sample_size
    sample_size = DEFAULT_SAMPLE_SIZE if sample_size is None else sample_size
    baseline = type(getattr(estimator, "control_variate", estimator)).__name__
    reason = f"{baseline} compares draws with one another" if minimum > 1 else ""
    sample_size = positive_integer("sample_size", sample_size, minimum=minimum, reason=reason)
    return _Sizes(estimator, sample_size, positive_integer("num_steps", num_steps))


def _checked_rule(convergence: Any) -> Convergence | None:
    if convergence == "auto":
        return Convergence()
    if convergence is None or isinstance(convergence, Convergence):
        return convergence
    raise InvalidTypeError(f"convergence must be 'auto', None or a bbsvi.Convergence, got {convergence!r}.")


def _checked_optimizer(optimizer: Any) -> Any:
    if optimizer is None:
        if keras.backend.backend() != "tensorflow":
            raise InvalidValueError(
                f"Keras runs on the {keras.backend.backend()!r} backend; set KERAS_BACKEND=tensorflow before importing it."
            )
        return default_optimizer()
    return copy_optimizer(optimizer)


def default_optimizer() -> Any:
    """Adam with a step of 0.02 and a short memory.

    At the start f often spreads a hundred times wider than at the end. With Adam's usual
    beta_2 = 0.999 the large early gradients hold the steps down for thousands of steps, long enough
    for a category that was unlucky early to be lost for good (coal mining: 1 fit in 5).
    """
    return keras.optimizers.Adam(0.02, beta_2=0.99)


def _checked_callbacks(callbacks: Any) -> tuple[Callable[[Progress], Any], ...]:
    if callable(callbacks):
        return (callbacks,)
    for callback in callbacks:
        if not callable(callback):
            raise InvalidTypeError(f"callbacks must be functions of a bbsvi.Progress, got {callback!r}.")
    return tuple(callbacks)


def _checked_target(target: Any, data: Any) -> Target:
    if is_joint(target):
        return Target.from_joint(target, data)
    if isinstance(target, Target):
        if data is not None:
            raise InvalidValueError(
                "data is for joint distributions; a bbsvi.Target has its data inside log_prob (or, built by "
                "Target.from_joint, already has it)."
            )
        return target
    if callable(target) and not isinstance(target, type):
        raise InvalidTypeError(
            "target is a function, which has no shapes: wrap it as bbsvi.Target(log_prob, event_shape={name: shape}, "
            "support={name: support})."
        )
    raise InvalidTypeError(f"target must be a tfd.JointDistribution* or a bbsvi.Target, got {type(target).__name__}.")


def _check_start(target: Target, family: Family, seed: Any) -> None:
    """Everything that can be known to be wrong before compiling: log p, log q and the scores."""
    draws = family.sample(max(_CHECK_DRAWS, target.num_probe_draws), seed)
    target.check(draws.value)
    log_q = family.log_prob(draws).numpy()
    if not np.isfinite(log_q).all():
        raise NonFiniteError(f"log q is not finite for {np.sum(~np.isfinite(log_q))} of {len(log_q)} draws of the initial q.")
    scores = tf.function(lambda: family.scores(draws).dense(), autograph=False)()
    for name, score in zip(family.parameter_names, scores, strict=True):
        score = score.numpy()
        if not np.isfinite(score).all():
            raise NonFiniteError(f"the score of parameter {name!r} is not finite at draws of the initial q.")
        if not score.any():
            warnings.warn(
                f"parameter {name!r} has zero gradient in every step: log q does not depend on it, so it stays as it is.",
                BBSVIWarning,
                stacklevel=3,
            )


class _Run:
    """One fit under way: its steps, what they left behind, and the posterior they make."""

    def __init__(
        self,
        target: Target,
        family: Family,
        sizes: _Sizes,
        rule: Convergence | None,
        optimizer: Any,
        seed: int,
        jit_compile: bool | str,
        callbacks: tuple[Callable[[Progress], Any], ...],
    ):
        self.target, self.family, self.sizes, self.rule = target, family, sizes, rule
        self.seed, self.callbacks = seed, callbacks
        self.iterates = Iterates()
        self.records: list[Record] = []
        self.seconds: list[np.ndarray] = []
        self.begin = time.perf_counter()
        self.steps = Steps(
            target,
            family,
            sizes.estimator,
            optimizer,
            sample_size=sizes.sample_size,
            seed=fold_in(as_seed(seed), 1),
            jit_compile=jit_compile,
        )
        self.verdict: Verdict | None = None

    def posterior_after(self, progress_bar: bool) -> Posterior:
        """Run to the end, and the posterior there."""
        try:
            with _interrupts() as interrupted, tqdm(total=self.sizes.num_steps, disable=not progress_bar, unit="step") as bar:
                ending = self._run(interrupted, bar)
        except KeyboardInterrupt:
            ending = f"Interrupted after {self.steps.step} steps."
        except Exception as error:
            wrapped = error if isinstance(error, BBSVIError) else None
            if wrapped is not None:
                wrapped.posterior = self._posterior(f"Ended by an error after {self.steps.step} steps.")
            else:
                error.posterior = self._posterior(f"Ended by an error after {self.steps.step} steps.")  # type: ignore[attr-defined]
            raise
        posterior = self._posterior(ending)
        if self.rule is not None and not posterior.converged:
            warnings.warn(posterior.message, ConvergenceWarning, stacklevel=3)
        return posterior

    def _run(self, interrupted: threading.Event, bar: Any) -> str:
        num_steps = self.sizes.num_steps
        while self.steps.step < num_steps:
            record = self.steps.advance(num_steps - self.steps.step)
            self._keep(record)
            bar.update(len(record.elbo))
            elbo, error = self._recent_elbo()
            bar.set_postfix_str(f"ELBO {elbo:.3f} ± {error:.3f}", refresh=False)
            if interrupted.is_set():
                return f"Interrupted after {self.steps.step} steps."
            if self.steps.step % CHUNK and self.steps.step < num_steps:
                continue
            self._check_finite()
            if self._stopped_by_callback(elbo, error):
                return f"Stopped by a callback after {self.steps.step} steps."
            if self.rule is not None:
                self.verdict = judge(self.rule, self.iterates, self._scores_at)
                if self.verdict.converged:
                    return ""
        return ""

    def _keep(self, record: Record) -> None:
        before = float(self.seconds[-1][-1]) if self.seconds else 0.0
        now, count = time.perf_counter() - self.begin, len(record.elbo)
        self.seconds.append(before + (now - before) * np.arange(1, count + 1) / count)
        self.records.append(record)
        self.iterates.extend(record.iterates)

    def _recent_elbo(self) -> tuple[float, float]:
        """Mean ELBO over the last chunk and its standard error, from the steps' own variances."""
        recent: list[np.ndarray] = []
        for record in reversed(self.records):
            recent.append(np.stack([record.elbo, record.elbo_variance]))
            if sum(part.shape[1] for part in recent) >= CHUNK:
                break
        elbo, variance = np.concatenate(recent, axis=1)
        usable = np.isfinite(elbo)
        if not usable.any():
            return np.nan, np.nan
        return float(elbo[usable].mean()), float(np.sqrt(variance[usable].sum()) / usable.sum())

    def _check_finite(self) -> None:
        last = [record.is_usable for record in self.records]
        recent = np.concatenate(last)[-CHUNK:]
        if recent.mean() >= 0.5:
            return
        draws = self.family.sample(_SCORE_DRAWS, fold_in(as_seed(self.seed), 2))
        named = self.target.name_non_finite(self.target.terms(draws.value), draws.value)
        raise NonFiniteError(
            f"log p - log q was not finite in {np.sum(~recent)} of the last {len(recent)} steps, up to step "
            f"{self.steps.step}; those steps left the parameters as they were. At draws of the present q, {named}"
        )

    def _stopped_by_callback(self, elbo: float, error: float) -> bool:
        if not self.callbacks:
            return False
        progress = Progress(
            self.steps.step, self.sizes.num_steps, elbo, error, self._history(), time.perf_counter() - self.begin
        )
        return any([callback(progress) is True for callback in self.callbacks])

    def _scores_at(self, parameters: np.ndarray) -> np.ndarray:
        """Scores of draws of q at `parameters`, [_SCORE_DRAWS, P]."""
        now = self.family.parameters()
        self.family.assign(_unflatten(parameters, now))
        try:
            scores = self._compiled_scores(fold_in(as_seed(self.seed), 3))
        finally:
            self.family.assign(now)
        return np.concatenate([np.reshape(h, [_SCORE_DRAWS, -1]) for h in scores], axis=1).astype(np.float64)

    @functools.cached_property
    def _compiled_scores(self) -> Any:
        def scores(seed: Any) -> list[Any]:
            return self.family.scores(self.family.sample(_SCORE_DRAWS, seed)).dense()

        return tf.function(scores, autograph=False)

    def _history(self) -> dict[str, np.ndarray]:
        if not self.records:
            names = ("elbo", "elbo_standard_error", "gradient_norm", "gradient_snr", "dropped_draws", "seconds")
            return {"step": np.zeros(0, int)} | {name: np.zeros(0) for name in names}
        joined = Record(*(np.concatenate(parts) for parts in zip(*self.records, strict=True)))
        return {
            "step": np.arange(1, len(joined.elbo) + 1),
            "elbo": joined.elbo,
            "elbo_standard_error": np.sqrt(joined.elbo_variance),
            "gradient_norm": joined.gradient_norm,
            "gradient_snr": joined.gradient_snr,
            "dropped_draws": joined.num_dropped,
            "seconds": np.concatenate(self.seconds),
        }

    def _posterior(self, ending: str) -> Posterior:
        """The posterior at the averaged iterates; `ending` says what cut the run short, if anything did."""
        rule = self.rule or Convergence()
        verdict = self.verdict
        if verdict is None or not verdict.converged:
            verdict = judge(rule, self.iterates, self._scores_at)
        if verdict.average is not None:
            self.family.assign(_unflatten(verdict.average, self.family.parameters()))
        sentence = ending or f"Ran {self.steps.step} steps."
        if verdict.converged:
            sentence = ending or f"Converged after {self.steps.step} steps."
        elif verdict.error is None:
            rhat = "not yet known" if not np.isfinite(verdict.rhat) else f"{verdict.rhat:.2f} ({self._name(verdict.parameter)})"
            sentence += (
                f" Not converged: the parameters still move, largest split R-hat {rhat}, wanted {rule.rhat}. "
                "Run more steps, or a larger step size if it is the start that takes so long."
            )
        else:
            sentence += (
                f" Not converged: the averaged parameters are known to {verdict.error:.2g} nats, wanted {rule.tolerance}. "
                "Run more steps, more draws per step, or a smaller step size."
            )
        return Posterior(self.target, self.family, self._history(), verdict.converged, sentence, self.seed)

    def _name(self, index: int) -> str:
        sizes = [int(np.prod(variable.shape)) for variable in self.family.trainable_variables]
        which = int(np.searchsorted(np.cumsum(sizes), index, side="right"))
        return self.family.parameter_names[which]


def _unflatten(flat: np.ndarray, like: Sequence[np.ndarray]) -> list[np.ndarray]:
    ends = np.cumsum([array.size for array in like])
    parts = np.split(flat, ends[:-1])
    return [part.reshape(array.shape).astype(array.dtype) for part, array in zip(parts, like, strict=True)]


@contextlib.contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets, so that a call under way is finished and kept; the second
    one raises. Elsewhere than in the main thread, Ctrl-C is left alone."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return

    def handle(number: int, frame: Any) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, previous)
