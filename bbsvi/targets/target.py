"""`Target`: a log density over named latents, however it was written."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from bbsvi import supports
from bbsvi.errors import BBSVIWarning, InvalidTypeError, InvalidValueError, NonFiniteError
from bbsvi.targets import joint as joints
from bbsvi.targets.base import Latent, Terms, check_signature, check_terms, evaluated, probe_sizes
from bbsvi.targets.black_box import NumpyFunction, function_terms
from bbsvi.typing import Tensor, Values
from bbsvi.validation import event_shape as checked_shape
from bbsvi.validation import float_dtype, known_name, one_line


class Target:
    """An unnormalised log density log p(z) over named latents.

    log p is `log_prob`, or the sum of `log_prior` and `log_likelihood`. Each is called with every
    latent by name, [S, *event_shape] (a single latent by position), and returns [S];
    `log_likelihood` may return [S, N], a column for each of N data.

    Args:
      log_prob: function of the latents, [S].
      event_shape: {name: shape}; a bare shape for a single latent, which is then called "z".
      support: {name: support}; missing names are "real". One of "real", "positive",
        "unit_interval", ("interval", a, b) with either end infinite if need be, "simplex",
        "ordered", "binary", ("categorical", K), "count", or a TFP bijector from the reals.
        For a single unnamed latent, the bare support.
      dtype: "float32" or "float64", of the continuous latents and of q. Binary and categorical
        latents arrive as int32, counts in `dtype`.
      log_prior, log_likelihood: the split form; both or neither.

    Raises:
      InvalidValueError, InvalidTypeError: naming the argument, what was got and what was wanted.
    """

    def __init__(
        self,
        log_prob: Callable[..., Any] | None = None,
        event_shape: Any = None,
        support: Any = None,
        dtype: Any = "float32",
        *,
        log_prior: Callable[..., Any] | None = None,
        log_likelihood: Callable[..., Any] | None = None,
    ):
        functions = _functions(log_prob, log_prior, log_likelihood)
        latents = _named_latents(event_shape, support, float_dtype("dtype", dtype))
        for argument, fn in functions.items():
            if not isinstance(fn, NumpyFunction):
                check_signature(argument, fn, list(latents))
        self._setup(latents, function_terms(functions), float_dtype("dtype", dtype))

    def _setup(self, latents: dict[str, Latent], terms: Terms, dtype: tf.DType) -> None:
        self.latents = latents
        self.terms = terms  # values -> {term name: [S]}
        self.dtype = dtype
        self.observed: dict[str, np.ndarray] = {}
        self._numpy: NumpyFunction | None = None

    @classmethod
    def from_joint(cls, joint: Any, data: Mapping[str, Any] | None = None) -> Target:
        """The posterior density of a joint distribution's unobserved sites; terms are its sites.

        Args:
          joint: any `tfd.JointDistribution*`, pinned or not. Supports are read off its
            distributions, discrete ones included.
          data: {site: array}. `data={}` says that nothing is observed.
        """
        if not joints.is_joint(joint):
            raise InvalidTypeError(f"joint must be a tfd.JointDistribution*, got {type(joint).__name__}.")
        if data is not None and not isinstance(data, Mapping):
            raise InvalidTypeError(f"data must be a dict {{site: array}}, got {type(data).__name__}.")
        latents, terms, observed = joints.split(joint, data)
        target = cls.__new__(cls)
        target._setup(latents, terms, joints.float_dtype(latents))
        target.observed = observed
        return target

    @classmethod
    def of(cls, target: Any, data: Any = None) -> Target:
        """`target` as a Target: a joint distribution with its data, or a Target as it is.

        Raises:
          InvalidTypeError: it is neither.
          InvalidValueError: data for a Target, which has its data inside.
        """
        if joints.is_joint(target):
            return cls.from_joint(target, data)
        if isinstance(target, Target):
            if data is not None:
                raise InvalidValueError(
                    "data is for joint distributions; a bbsvi.Target has its data inside log_prob (or, built by "
                    "Target.from_joint, already has it)."
                )
            return target
        if callable(target) and not isinstance(target, type):
            raise InvalidTypeError(
                "target is a function, which has no shapes: wrap it as bbsvi.Target(log_prob, "
                "event_shape={name: shape}, support={name: support})."
            )
        raise InvalidTypeError(f"target must be a tfd.JointDistribution* or a bbsvi.Target, got {target!r}.")

    @classmethod
    def from_numpy(
        cls,
        log_prob: Callable[..., Any],
        event_shape: Any = None,
        support: Any = None,
        dtype: Any = "float32",
        *,
        vectorized: bool = True,
    ) -> Target:
        """A log density in numpy, or in anything else that takes and gives numbers.

        Args:
          log_prob: takes numpy arrays. `vectorized`: [S, *event_shape] to [S]; otherwise one draw,
            [*event_shape], to a scalar.
          event_shape, support, dtype: as for `Target`.
        """
        if not isinstance(vectorized, bool):
            raise InvalidTypeError(f"vectorized must be True or False, got {vectorized!r}.")
        names = list(_named_latents(event_shape, support, float_dtype("dtype", dtype)))
        check_signature("log_prob", log_prob, names)
        function = NumpyFunction(log_prob, names, vectorized=vectorized)
        target = cls(function, event_shape, support, dtype)
        target._numpy = function
        return target

    @property
    def is_compilable(self) -> bool:
        """Whether log p can be compiled by XLA: a numpy function cannot."""
        return self._numpy is None

    @property
    def model_error(self) -> Exception | None:
        """The exception that the last call of a numpy log density raised, if it did."""
        return None if self._numpy is None else self._numpy.error

    def log_prob(self, values: Values) -> Tensor:
        """log p at S draws, [S], summed over terms in float64: differences of 1 between log
        densities near 1e7 are lost in float32."""
        return tf.add_n([tf.cast(term, tf.float64) for term in self.terms(values).values()])

    def check(self, values: Values) -> None:
        """That log p is a log density: [S] for two different S, each draw on its own, no NaN.

        -inf says that a draw is outside what the model allows: a few are worth a warning, more than
        half an error.

        Args:
          values: draws of the initial q, {name: [S, *event]}, more than a handful.

        Raises:
          InvalidValueError: a term has a wrong shape or mixes the draws.
          LogProbError: log p raised an exception.
          NonFiniteError: a term is NaN or +inf at a draw, or -inf at most of them; names the term.
        """
        check_terms(self.terms, values, self.latents)
        terms = evaluated(self.terms, values)
        total = np.sum([np.asarray(term, np.float64) for term in terms.values()], axis=0)
        finite = np.isfinite(total)
        if finite.all():
            return
        sentence = (
            f"log p is not finite for {np.sum(~finite)} of {len(finite)} draws from the initial q; "
            f"{self.name_non_finite(terms, values)}"
        )
        if np.any(~finite & (total != -np.inf)) or finite.mean() < 0.5:
            raise NonFiniteError(
                f"{sentence} Is a support missing? q begins with normals N(0, 1) in unconstrained space and rates of 1."
            )
        warnings.warn(f"{sentence} Such draws are left out of the gradients.", BBSVIWarning, stacklevel=4)

    def name_non_finite(self, terms: Mapping[str, Any], values: Values) -> str:
        """A sentence naming the first term that is not finite, and the draw it happened at."""
        for name, term in terms.items():
            bad = ~np.isfinite(np.asarray(term))
            if bad.any():
                draw = int(np.argmax(bad))
                at = ", ".join(f"{latent} = {_short(value[draw])}" for latent, value in values.items())
                return f"term {name!r} is {np.asarray(term)[draw]} at draw {draw}: {at}."
        return "every term is finite on its own."

    @property
    def num_probe_draws(self) -> int:
        """How many draws `check` needs at the least."""
        return max(probe_sizes(self.latents))


def _short(value: Any) -> str:
    return np.array2string(np.asarray(value), precision=4, threshold=8, separator=", ")


def _functions(log_prob: Any, log_prior: Any, log_likelihood: Any) -> dict[str, Callable[..., Any]]:
    if log_prob is not None:
        if log_prior is not None or log_likelihood is not None:
            raise InvalidValueError("give log_prob, or log_prior and log_likelihood, not both forms.")
        return {"log_prob": log_prob}
    if log_prior is None or log_likelihood is None:
        given = {"log_likelihood": log_prior, "log_prior": log_likelihood}  # each one's missing half
        missing = next((half for half, other in given.items() if other is not None), "log_prob")
        raise InvalidValueError(f"{missing} is missing: give log_prob, or both log_prior and log_likelihood.")
    return {"log_prior": log_prior, "log_likelihood": log_likelihood}


def _named_latents(event_shape: Any, support: Any, dtype: tf.DType) -> dict[str, Latent]:
    if event_shape is None:
        raise InvalidValueError(
            "event_shape is missing: a function has no shapes of its own, so give event_shape={name: shape}, "
            "e.g. {'mu': (), 'theta': (8,)}."
        )
    if not isinstance(event_shape, Mapping):
        event_shape = {"z": event_shape}
        support = {} if support is None else support if isinstance(support, Mapping) else {"z": support}
    if not event_shape:
        raise InvalidValueError("event_shape is empty: there is no latent to fit.")
    for name in event_shape:
        if not isinstance(name, str):
            raise InvalidTypeError(f"event_shape must be a dict {{latent name: shape}}, got {name!r} for a name.")
    if support is not None and not isinstance(support, Mapping):
        raise InvalidTypeError(f"support must be a dict {{latent: support}}, got {support!r}.")
    for name in support or {}:
        known_name("support", name, event_shape)
    latents = {}
    for name, shape in event_shape.items():
        resolved = supports.resolve((support or {}).get(name, "real"), dtype, name)
        shape = checked_shape(f"event_shape[{name!r}]", shape)
        latents[name] = Latent(name, shape, resolved, resolved.value_dtype(dtype))
        _check_shape_suits(latents[name])
    return latents


def _check_shape_suits(latent: Latent) -> None:
    if latent.is_discrete:
        return
    needed = latent.support.bijector.inverse_min_event_ndims
    wanted = ("scalars", "a vector", "a matrix")[needed] if needed < 3 else f"at least {needed} axes"
    if latent.support.name == "simplex":
        wanted = "a vector of at least two parts"
    if len(latent.event_shape) < needed or (latent.support.name == "simplex" and latent.event_shape[-1] < 2):
        raise InvalidValueError(
            f"event_shape[{latent.name!r}] is {latent.event_shape}, but support {latent.support.name!r} wants {wanted}."
        )
    try:
        latent.support.bijector.forward(tf.zeros(latent.base_shape, latent.dtype))
    except Exception as error:  # a bijector's own complaint about shape or dtype
        raise InvalidValueError(
            f"support[{latent.name!r}]: bijector {latent.support.name!r} gives no {latent.dtype.name} values of shape "
            f"{latent.event_shape}: {one_line(error)}."
        ) from error
