"""Errors and warnings. Each error is a `BBSVIError` and the built-in that fits."""

from __future__ import annotations

from typing import Any


class BBSVIError(Exception):
    """Base of every error raised by bbsvi.

    Attributes:
      posterior: where a fit had already begun, the `Posterior` as it stood (parameters and
        history so far); otherwise None.
    """

    posterior: Any = None


class InvalidValueError(BBSVIError, ValueError):
    """An argument has a value, shape or name that cannot be used."""


class InvalidTypeError(BBSVIError, TypeError):
    """An argument is of a kind, or a dtype, that cannot be used."""


class NonFiniteError(BBSVIError, FloatingPointError):
    """log p, log q or a score is not finite where it has to be."""


class LogProbError(BBSVIError, RuntimeError):
    """The model's log density raised an exception of its own, kept as `__cause__`."""


class BBSVIWarning(UserWarning):
    """A fit went on, but something about it should be known.

    Attributes:
      posterior: the fit, where the warning is about a finished one; otherwise None.
    """

    posterior: Any = None


class ConvergenceWarning(BBSVIWarning):
    """The fit ended before it had converged."""
