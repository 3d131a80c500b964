"""Supports: what values a latent may take, and how unconstrained reals are carried there.

A continuous support has a bijector from the reals; a discrete one (binary, categorical, count) has
none, and its factor of q is a distribution on the support itself.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from bbsvi.errors import InvalidTypeError, InvalidValueError
from bbsvi.typing import Tensor
from bbsvi.validation import known_name, nearest

tfb, tfd = tfp.bijectors, tfp.distributions

_BY_NAME = ("real", "positive", "unit_interval", "simplex", "ordered", "binary", "count")
_WITH_ARGUMENTS = ("interval", "categorical")


@dataclasses.dataclass(frozen=True)
class Support:
    """A resolved support.

    Attributes:
      name: for messages, e.g. "positive" or "categorical(111)".
      bijector: from unconstrained reals to the support; None where the support is discrete.
      num_categories: K where the support is 0..K-1, otherwise None.
    """

    name: str
    bijector: Any = None
    num_categories: int | None = None

    @property
    def is_discrete(self) -> bool:
        return self.bijector is None

    def value_dtype(self, dtype: tf.DType) -> tf.DType:
        """dtype of a value: int32 for categories and bits (as TFP has it), else the target's."""
        return tf.int32 if self.num_categories is not None else dtype

    def contains(self, value: Tensor, event_ndims: int) -> Tensor:
        """Whether each draw lies in the support, [S] bool. value: [S, *event].

        The ends of an interval count as inside: a draw may be rounded to one.
        """
        value = tf.convert_to_tensor(value)
        if self.num_categories is not None:
            inside = (value >= 0) & (value < self.num_categories)
        elif self.is_discrete:
            inside = (value >= 0) & (tf.floor(value) == value)
        else:
            # Out and back: outside the support the inverse is not finite, or does not return. A bijector
            # remembers what it has mapped and would hand back `value` itself, but for the copies.
            back = self.bijector.forward(tf.identity(self.bijector.inverse(tf.identity(value))))
            tolerance = 100 * np.finfo(value.dtype.as_numpy_dtype).eps * (1 + tf.abs(value))
            inside = tf.math.is_finite(back) & (tf.abs(back - value) <= tolerance)
        return tf.reduce_all(inside, axis=list(range(1, 1 + event_ndims)))


class IsometricLogRatio(tfp.bijectors.Bijector):
    """The simplex from K - 1 reals: x = softmax(V z), V an orthonormal basis of {y: sum y = 0}.

    Every part is treated alike (a standard normal z gives exchangeable parts), which stick-breaking
    and the additive log-ratio do not. The volume is that of the first K - 1 parts, the measure that
    Dirichlet densities are written in: log|det| = sum_k log x_k + log(K) / 2.
    Egozcue et al. 2003, "Isometric logratio transformations for compositional data analysis".
    """

    def __init__(self, name: str = "isometric_log_ratio"):
        super().__init__(forward_min_event_ndims=1, parameters={}, name=name)

    @staticmethod
    def _basis(num_parts: int, dtype: Any) -> Tensor:
        # Helmert: column j contrasts the first j + 1 parts with part j + 1.
        j = np.arange(1, num_parts)
        basis = np.triu(np.ones((num_parts, num_parts - 1)))
        basis[j, j - 1] = -j
        return tf.constant(basis / np.sqrt(j * (j + 1.0)), dtype)

    def _logits(self, z: Tensor) -> Tensor:
        return tf.linalg.matvec(self._basis(z.shape[-1] + 1, z.dtype), z)

    def _forward(self, x: Tensor) -> Tensor:
        return tf.nn.softmax(self._logits(x))

    def _inverse(self, y: Tensor) -> Tensor:
        return tf.linalg.matvec(self._basis(y.shape[-1], y.dtype), tf.math.log(y), transpose_a=True)

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        log_parts = tf.nn.log_softmax(self._logits(x))
        num_parts = tf.cast(log_parts.shape[-1], x.dtype)
        return tf.reduce_sum(log_parts, axis=-1) + tf.math.log(num_parts) / 2

    def _forward_event_shape(self, input_shape: tf.TensorShape) -> tf.TensorShape:
        return input_shape[:-1].concatenate(input_shape[-1] + 1)

    def _inverse_event_shape(self, output_shape: tf.TensorShape) -> tf.TensorShape:
        return output_shape[:-1].concatenate(output_shape[-1] - 1)

    @classmethod
    def _parameter_properties(cls, dtype: Any) -> dict[str, Any]:  # noqa: ARG003 (TFP's signature)
        return {}


def interval(low: Any, high: Any, dtype: tf.DType, argument: str = "support") -> Support:
    """The open interval (low, high); either end may be infinite."""
    try:
        low, high = float(low), float(high)
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(f"{argument}: ('interval', a, b) wants numbers, got {low!r} and {high!r}.") from error
    if not low < high:
        raise InvalidValueError(f"{argument}: ('interval', a, b) wants a < b, got a = {low:g} and b = {high:g}.")
    number = dtype.as_numpy_dtype
    name = f"interval({low:g}, {high:g})"
    if np.isinf(low) and np.isinf(high):
        return Support("real", tfb.Identity())
    if np.isinf(high):
        return Support(name, tfb.Chain([tfb.Shift(number(low)), tfb.Exp()]))
    if np.isinf(low):
        return Support(name, tfb.Chain([tfb.Shift(number(high)), tfb.Scale(number(-1)), tfb.Exp()]))
    return Support(name, tfb.Sigmoid(low=number(low), high=number(high)))


def resolve(spec: Any, dtype: tf.DType, latent: str) -> Support:
    """The support that `spec` names, for the latent called `latent`.

    Args:
      spec: "real", "positive", "unit_interval", "simplex", "ordered", "binary", "count",
        ("interval", a, b), ("categorical", K), or a TFP bijector from the reals.
      dtype: the target's float dtype.
      latent: for messages.

    Raises:
      InvalidValueError: `spec` is none of these.
      InvalidTypeError: an interval whose ends are no numbers.
    """
    argument = f"support[{latent!r}]"
    if isinstance(spec, Support):
        return spec
    if isinstance(spec, tfb.Bijector):
        return Support(spec.name, spec)
    if isinstance(spec, str) and spec not in _WITH_ARGUMENTS:
        known_name(argument, spec, _BY_NAME + _WITH_ARGUMENTS)
        return {
            "real": lambda: Support("real", tfb.Identity()),
            "positive": lambda: Support("positive", tfb.Exp()),
            "unit_interval": lambda: interval(0.0, 1.0, dtype),
            "simplex": lambda: Support("simplex", IsometricLogRatio()),
            "ordered": lambda: Support("ordered", tfb.Ascending()),
            "binary": lambda: Support("binary", num_categories=2),
            "count": lambda: Support("count"),
        }[spec]()
    if isinstance(spec, (tuple, list)) and len(spec) == 3 and spec[0] == "interval":
        return interval(spec[1], spec[2], dtype, argument)
    if isinstance(spec, (tuple, list)) and len(spec) == 2 and spec[0] == "categorical":
        if not isinstance(spec[1], (int, np.integer)) or spec[1] < 2:
            raise InvalidValueError(f"{argument}: ('categorical', K) wants an int K of at least 2, got {spec[1]!r}.")
        return Support(f"categorical({spec[1]})", num_categories=int(spec[1]))
    name = spec[0] if isinstance(spec, (tuple, list)) and spec else spec
    hint = nearest(name, _BY_NAME + _WITH_ARGUMENTS) if isinstance(name, str) and name not in _WITH_ARGUMENTS else ""
    raise InvalidValueError(
        f"{argument}: {spec!r} is no support; use one of {list(_BY_NAME)}, ('interval', a, b), "
        f"('categorical', K) or a tfp.bijectors.Bijector.{hint}"
    )


def of_distribution(distribution: Any, dtype: tf.DType, latent: str) -> Support:
    """The support of a TFP distribution, for a latent of a joint distribution.

    One name means one transform: TFP's own choice between exp and softplus for a positive latent
    depends on the class, ours is exp throughout; its simplex map is replaced by `IsometricLogRatio`.

    Raises:
      InvalidValueError: no map from the reals is known, or there is none for all elements together.
    """
    inner = distribution
    while isinstance(inner, (tfd.Independent, tfd.Sample, tfd.BatchBroadcast, tfd.Masked)):
        inner = inner.distribution
    if isinstance(inner, tfd.Bernoulli):
        return resolve("binary", dtype, latent)
    if isinstance(inner, tfd.Categorical):
        return resolve(("categorical", int(inner._num_categories())), dtype, latent)
    if isinstance(inner, (tfd.Binomial, tfd.BetaBinomial)):
        return resolve(("categorical", _static_total_count(inner, latent) + 1), dtype, latent)
    if isinstance(inner, (tfd.Poisson, tfd.NegativeBinomial, tfd.Geometric)):
        return resolve("count", dtype, latent)
    if isinstance(inner, (tfd.TruncatedNormal, tfd.TruncatedCauchy, tfd.Uniform)):
        low, high = np.asarray(inner.low), np.asarray(inner.high)
        if low.min() == low.max() and high.min() == high.max():
            return interval(low.flat[0], high.flat[0], dtype)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise InvalidValueError(
                f"latent {latent!r}: its elements have different bounds, some of them infinite; give each its own "
                "latent."
            )
    if isinstance(inner, (tfd.Dirichlet, tfd.RelaxedOneHotCategorical)):
        return resolve("simplex", dtype, latent)
    if isinstance(inner, (tfd.InverseGamma, tfd.InverseGaussian)):  # TFP has another map for each
        return resolve("positive", dtype, latent)
    if isinstance(inner, (tfd.WishartTriL, tfd.WishartLinearOperator)):
        if inner.input_output_cholesky:
            raise InvalidValueError(
                f"latent {latent!r} is {type(inner).__name__} with input_output_cholesky=True, whose density is that "
                "of L L^T and not of its value L; leave that option out."
            )
        # TFP's map applies softplus to the diagonal twice and never gets below log 2.
        cholesky = [tfb.TransformDiagonal(tfb.Exp()), tfb.FillTriangular()]
        return Support("positive_definite", tfb.Chain([tfb.CholeskyOuterProduct(), *cholesky]))
    if isinstance(inner, tfd.LKJ):
        raise InvalidValueError(
            f"latent {latent!r} is LKJ, for which TFP's map from the reals has a wrong volume; use tfd.CholeskyLKJ, "
            "whose L gives the correlations as L L^T."
        )
    if isinstance(inner, (tfd.Deterministic, tfd.VectorDeterministic)):
        raise InvalidValueError(
            f"latent {latent!r} is {type(inner).__name__}: a constant has no density to fit. Compute it inside the "
            "distributions that use it."
        )
    try:
        support = _plain(inner.experimental_default_event_space_bijector())
        base_shape = support.bijector.inverse_event_shape(distribution.event_shape)
        # Some of TFP's maps are of float32 alone.
        usable = support.bijector.forward(tf.zeros(base_shape, inner.dtype)).shape == distribution.event_shape
    except Exception:  # whatever TFP raises, it has no map
        usable = False
    if not usable or inner.dtype.is_integer:
        raise InvalidValueError(
            f"latent {latent!r}: no support is known for {type(inner).__name__} of {inner.dtype.name}; write the "
            f"model as a bbsvi.Target with support={{{latent!r}: ...}}."
        )
    return support


def _static_total_count(distribution: Any, latent: str) -> int:
    counts = np.asarray(distribution.total_count)
    if counts.min() != counts.max():
        raise InvalidValueError(
            f"latent {latent!r}: its elements have different total_counts ({counts.min()} to {counts.max()}); "
            "give each its own latent."
        )
    return int(counts.flat[0])


def _plain(bijector: Any) -> Support:
    """TFP's default bijector with softplus and the centred softmax replaced by ours."""
    if isinstance(bijector, tfb.Identity):
        return Support("real", bijector)
    if isinstance(bijector, (tfb.Exp, tfb.Softplus)):
        return Support("positive", tfb.Exp())
    if isinstance(bijector, tfb.SoftmaxCentered):
        return Support("simplex", IsometricLogRatio())
    if isinstance(bijector, tfb.Chain):
        parts = [_plain(part).bijector for part in bijector.bijectors if not _is_zero_shift(part)]
        if len(parts) == 1:
            return _plain(parts[0])
        return Support(bijector.name, tfb.Chain(parts))
    return Support(bijector.name, bijector)


def _is_zero_shift(bijector: Any) -> bool:
    return isinstance(bijector, tfb.Shift) and not np.any(np.asarray(bijector.shift))
