"""`fit`: checks, defaults, and the rooms below wired together."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from bbsvi import families
from bbsvi.errors import BBSVIError, BBSVIWarning, InvalidTypeError, InvalidValueError, NonFiniteError
from bbsvi.estimators import Estimator, ScoreFunction
from bbsvi.families import Family
from bbsvi.optimization.convergence import Convergence
from bbsvi.optimization.loop import copy_optimizer
from bbsvi.posterior import Posterior
from bbsvi.randomness import as_seed, fold_in, new_seed
from bbsvi.recording import check_draws_apart
from bbsvi.run import Plan, Progress, Run
from bbsvi.score_check import ScoreCheck, check_score
from bbsvi.targets import Target
from bbsvi.tracing import Traced
from bbsvi.validation import known_name, one_line, positive_integer

DEFAULT_SAMPLE_SIZE = 64
_CHECK_DRAWS = 64  # draws from the initial q that log p is checked at before compilation
_SCORE_CHECK_DRAWS = 1_000  # and those that the scores are checked at, which ask nothing of log p


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
      family: "mean_field", "full_rank", "low_rank", a `bbsvi.families` object or a `tfd.Distribution` with
        trainable variables (over the latents' own values). An object is trained in place; the
        posterior has a copy, except of a distribution or an encoder of yours.
      data: {site: array}, observed values of a joint distribution; {} where nothing is observed.
      estimator: None: `ScoreFunction()`, which needs only values of log p.
      optimizer: a Keras optimizer, copied; None: `Adam(0.02, beta_2=0.99)`, with 0.001 for a flow or an encoder.
      sample_size: draws of z per step; None: 64.
      num_steps: at most this many.
      convergence: "auto": `Convergence()`; None: run all the steps.
      seed: an int; the same seed on the same machine in the same mode gives the same history to the
        last bit (XLA and the plain graph draw different numbers). None: a new one, kept in `Posterior.seed`.
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
      LogProbError: a numpy log density raised an exception, which is its `__cause__`.
        Whatever is raised once steps have been taken has `posterior` attached.
    """
    estimator = _checked_estimator(estimator)
    sample_size = _checked_sample_size(sample_size, estimator)
    num_steps = positive_integer("num_steps", num_steps)
    rule = _checked_rule(convergence)
    optimizer = None if optimizer is None else copy_optimizer(optimizer)
    if not (isinstance(jit_compile, bool) or (isinstance(jit_compile, str) and jit_compile == "auto")):
        raise InvalidValueError(f"jit_compile must be True, False or 'auto', got {jit_compile!r}.")
    if not isinstance(progress_bar, bool):
        raise InvalidTypeError(f"progress_bar must be True or False, got {progress_bar!r}.")
    callbacks = _checked_callbacks(callbacks)
    seed = new_seed() if seed is None else seed
    root = as_seed(seed)
    target = Target.of(target, data)
    if jit_compile is True and not target.is_compilable:
        raise InvalidValueError("jit_compile=True: XLA cannot compile a numpy log density; use 'auto' or False.")
    q = families.resolve(family, target)
    _check_start(target, q, fold_in(root, 0))
    plan = Plan(
        target=target,
        family=q,
        estimator=estimator,
        optimizer=default_optimizer(q.learning_rate) if optimizer is None else optimizer,
        sample_size=sample_size,
        num_steps=num_steps,
        rule=rule,
        seed=int(seed),
        jit_compile=jit_compile,
        callbacks=callbacks,
    )
    return Run(plan).posterior_after(progress_bar)


def default_optimizer(learning_rate: float) -> Any:
    """Adam with a short memory.

    At the start f often spreads a hundred times wider than at the end. With Adam's usual
    beta_2 = 0.999 the large early gradients hold the steps down for thousands of steps, long enough
    for a category that was unlucky early to be lost for good (coal mining: 1 fit in 5).
    """
    if keras.backend.backend() != "tensorflow":
        raise InvalidValueError(
            f"Keras runs on the {keras.backend.backend()!r} backend; set KERAS_BACKEND=tensorflow first."
        )
    return keras.optimizers.Adam(learning_rate, beta_2=0.99)


def _checked_estimator(estimator: Any) -> Estimator:
    estimator = ScoreFunction() if estimator is None else estimator
    methods = ("init", "estimate", "minimum_sample_size")
    if isinstance(estimator, type) or not all(hasattr(estimator, method) for method in methods):
        hint = f" (write {estimator.__name__}())" if isinstance(estimator, type) else ""
        if hasattr(estimator, "apply"):
            hint = " (a control variate goes into bbsvi.estimators.ScoreFunction(control_variate=...))"
        raise InvalidTypeError(f"estimator must be a bbsvi.estimators object, got {estimator!r}{hint}.")
    return estimator


def _checked_sample_size(sample_size: Any, estimator: Estimator) -> int:
    minimum = estimator.minimum_sample_size
    if sample_size is None:
        return max(DEFAULT_SAMPLE_SIZE, minimum)
    baseline = type(getattr(estimator, "control_variate", estimator)).__name__
    reason = f"{baseline} compares draws with one another" if minimum > 1 else ""
    return positive_integer("sample_size", sample_size, minimum=minimum, reason=reason)


def _checked_rule(convergence: Any) -> Convergence | None:
    if isinstance(convergence, str):
        known_name("convergence", convergence, ["auto"])
        return Convergence()
    if convergence is None or isinstance(convergence, Convergence):
        return convergence
    raise InvalidTypeError(f"convergence must be 'auto', None or a bbsvi.Convergence, got {convergence!r}.")


def _checked_callbacks(callbacks: Any) -> tuple[Callable[[Progress], Any], ...]:
    if callable(callbacks):
        return (callbacks,)
    if not isinstance(callbacks, Sequence):
        raise InvalidTypeError(f"callbacks must be a sequence of functions of a bbsvi.Progress, got {callbacks!r}.")
    for callback in callbacks:
        if not callable(callback):
            raise InvalidTypeError(f"callbacks must be functions of a bbsvi.Progress, got {callback!r}.")
    return tuple(callbacks)


def _check_start(target: Target, family: Family, seed: Any) -> None:
    """Everything that can be known to be wrong before compiling: log p, log q and the scores."""
    draws = family.sample(max(_CHECK_DRAWS, target.num_probe_draws), seed)
    target.check(draws.value)
    log_q = family.log_prob(draws).numpy()
    if not np.isfinite(log_q).all():
        raise NonFiniteError(
            f"log q is not finite for {np.sum(~np.isfinite(log_q))} of {len(log_q)} draws of the initial q."
        )
    check_draws_apart("log q", family.log_prob, draws)
    _check_graph(target, draws.value)
    found = _checked_score(family)
    if found.num_non_finite:
        raise NonFiniteError(f"at the initial q: {found}")
    if not found.passed:
        warnings.warn(str(found), BBSVIWarning, stacklevel=3)


def _checked_score(family: Family) -> ScoreCheck:
    """`check_score` a little way off the initial parameters: where a concentration is exactly 1, as many
    a Beta or Dirichlet begins, the derivative of TensorFlow's xlogy(concentration - 1, x) is wrong."""
    begin, rng = family.parameters(), np.random.default_rng(0)
    family.assign([(p + 1e-3 * rng.normal(size=p.shape)).astype(p.dtype) for p in begin])
    try:
        return check_score(family, _SCORE_CHECK_DRAWS)
    finally:
        family.assign(begin)


def _check_graph(target: Target, values: Any) -> None:
    """That log p can be traced: what ran eagerly just now may be numpy code in disguise."""
    try:
        Traced(target.log_prob)(dict(values))
    except BBSVIError:
        raise
    except Exception as error:
        raise InvalidTypeError(
            f"log p runs eagerly but not in a graph: {one_line(error)}. Use TensorFlow operations in it (tf.where in "
            "place of if), or bbsvi.Target.from_numpy for numpy code."
        ) from error
