"""The loop: many gradient steps in one compiled call, nothing per step in Python."""

from __future__ import annotations

import time
import warnings
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bbsvi.errors import BBSVIWarning, InvalidTypeError, InvalidValueError, LogProbError
from bbsvi.estimators import Estimator, GradientEstimate
from bbsvi.families import Family
from bbsvi.randomness import fold_in
from bbsvi.targets import Target
from bbsvi.tracing import Traced
from bbsvi.typing import Tensor
from bbsvi.validation import one_line

CHUNK = 250  # steps between two looks at convergence; callbacks see each chunk
BLOCK = 10  # steps whose parameters are averaged into one recorded iterate
_CALL_SECONDS = 0.5  # a compiled call longer than this keeps Ctrl-C and the progress bar waiting


class Record(NamedTuple):
    """What a run of n steps leaves behind, as numpy arrays; nan where a step was not taken."""

    elbo: np.ndarray  # [n]
    elbo_variance: np.ndarray  # [n]
    gradient_norm: np.ndarray  # [n]
    gradient_snr: np.ndarray  # [n]
    num_dropped: np.ndarray  # [n] int
    was_taken: np.ndarray  # [n] bool
    iterates: np.ndarray  # [blocks, P]: parameters averaged over each block that ended here


class Steps:
    """Gradient steps of an estimator on a family's variables.

    Args:
      optimizer: a Keras optimizer; it is copied by its config, so that the caller's stays as it was.
      seed: stateless seed; step t uses fold_in(seed, t), however the steps are cut into calls.
      jit_compile: True, False, or "auto": XLA unless the target or the family does not suit it, and
        the plain graph, with a warning, where XLA cannot compile them.
    """

    def __init__(
        self,
        target: Target,
        family: Family,
        estimator: Estimator,
        optimizer: Any,
        *,
        sample_size: int,
        seed: Any,
        jit_compile: bool | str,
    ):
        self._target, self._family, self._estimator = target, family, estimator
        self._variables = family.trainable_variables
        self._optimizer = copy_optimizer(optimizer)
        self._optimizer.build(self._variables)
        self._sample_size = sample_size
        # Step seeds count from 0; the estimator's own first batch comes from a stream beside them.
        self._seed = seed
        self._state = estimator.init(target, family, sample_size=sample_size, seed=fold_in(seed, -1))
        self._num_parameters = sum(variable.shape.num_elements() for variable in self._variables)
        self._block = tf.zeros([self._num_parameters], tf.float64)
        self._may_fall_back = jit_compile == "auto"
        if jit_compile == "auto":
            jit_compile = target.is_compilable and family.suits_xla
        self.jit_compile = bool(jit_compile)
        self._compiled: Any = None
        self._count = 1  # the first call is one step: it pays for the compilation
        self.step = 0

    def advance(self, limit: int) -> Record:
        """Run steps, at most `limit` and no further than the end of the chunk."""
        count = min(self._count, limit, CHUNK - self.step % CHUNK)
        first = self._compiled is None
        begin = time.perf_counter()
        record = self._call(count)
        seconds = time.perf_counter() - begin
        if first:
            self._count = BLOCK
        else:
            grown = int(count * min(_CALL_SECONDS / max(seconds, 1e-6), CHUNK))
            self._count = max(1, min(grown, CHUNK))
        self.step += count
        return record

    def _call(self, count: int) -> Record:
        if self._compiled is None:
            self._compile()
        args = (tf.constant(self.step), tf.constant(count), self._state, self._block)
        try:
            result = self._compiled(*args)
        except (tf.errors.OpError, ValueError, TypeError, NotImplementedError, LookupError) as error:
            if self._target.model_error is not None:
                cause = self._target.model_error
                raise LogProbError(f"log_prob raised {type(cause).__name__}: {cause}") from cause
            if not (self._may_fall_back and self.jit_compile and self.step == 0):
                raise
            reason = one_line(error)[:200]
            warnings.warn(
                f"XLA cannot compile this fit, running as a plain graph: {reason}", BBSVIWarning, stacklevel=2
            )
            self.jit_compile = False
            self._compile()
            result = self._compiled(*args)
        self._state, self._block, trace, blocks = result
        ended = (self.step + count) // BLOCK - self.step // BLOCK
        *floats, dropped, taken = trace.numpy()[:count].T
        return Record._make([*floats, dropped.astype(int), taken.astype(bool), blocks.numpy()[:ended]])

    def _compile(self) -> None:
        self._compiled = Traced(self._run, jit_compile=self.jit_compile)

    def _run(self, start: Tensor, count: Tensor, state: Any, block: Tensor) -> Any:
        # Few wide writes: in a compiled step this small, what counts is the number of operations.
        trace = tf.TensorArray(tf.float64, CHUNK, element_shape=[_TRACED])
        blocks = tf.TensorArray(tf.float64, CHUNK // BLOCK + 1, element_shape=[self._num_parameters])

        def body(step: Tensor, state: Any, block: Tensor, trace: Any, blocks: Any) -> Any:
            estimate, state = self._estimator.estimate(
                state, self._target, self._family, sample_size=self._sample_size, seed=fold_in(self._seed, step)
            )
            taken = self._apply(estimate)
            trace = trace.write(step - start, _traced(estimate, taken))
            flat = [tf.reshape(tf.cast(variable, tf.float64), [-1]) for variable in self._variables]
            block = block + tf.concat(flat, axis=0) / BLOCK
            # While a block is open it goes to the last slot, which nobody reads.
            ends = tf.equal((step + 1) % BLOCK, 0)
            slot = tf.where(ends, (step + 1) // BLOCK - start // BLOCK - 1, CHUNK // BLOCK)
            blocks = blocks.write(slot, block)
            block = tf.where(ends, tf.zeros_like(block), block)
            return step + 1, state, block, trace, blocks

        _, state, block, trace, blocks = tf.while_loop(
            lambda step, *_: step < start + count, body, (start, state, block, trace, blocks)
        )
        return state, block, trace.stack(), blocks.stack()

    def _apply(self, estimate: GradientEstimate) -> Tensor:
        """Take the step, or leave variables and optimizer as they are; whether it was taken, [] bool."""
        # The square has to be finite too: optimizers keep a running mean of it in the same dtype.
        finite = [tf.reduce_all(tf.math.is_finite(tf.square(g))) for g in estimate.gradient]
        descent = [-g for g in estimate.gradient]  # optimizers minimise

        def move() -> Tensor:
            self._optimizer.apply_gradients(zip(descent, self._variables, strict=True))
            return tf.constant(True)

        return tf.cond(estimate.is_usable & tf.reduce_all(finite), move, lambda: tf.constant(False))


_TRACED = len(Record._fields) - 1  # all but the iterates


def _traced(estimate: GradientEstimate, taken: Tensor) -> Tensor:
    """A step's row of the trace, float64 [_TRACED]."""
    square = tf.add_n([tf.reduce_sum(tf.square(tf.cast(g, tf.float64))) for g in estimate.gradient])
    variance = tf.add_n([tf.reduce_sum(tf.cast(v, tf.float64)) for v in estimate.gradient_variance])
    # Noise alone has a squared norm of its own variance, which is no signal.
    snr = tf.sqrt(tf.math.divide_no_nan(tf.maximum(square - variance, 0), variance))
    row = tf.stack([estimate.elbo, estimate.elbo_variance, tf.sqrt(square), snr])
    row = tf.where(taken, row, tf.constant(float("nan"), tf.float64))
    counts = [tf.cast(estimate.num_dropped, tf.float64), tf.cast(taken, tf.float64)]
    return tf.concat([row, tf.stack(counts)], axis=0)


def copy_optimizer(optimizer: Any) -> Any:
    """A fresh optimizer of the same configuration.

    A Keras optimizer is bound to the first variables it sees; copied, the same object serves any
    number of fits.
    """
    if isinstance(optimizer, type) or not all(
        hasattr(optimizer, m) for m in ("get_config", "build", "apply_gradients")
    ):
        hint = f" (write {optimizer.__name__}())" if isinstance(optimizer, type) else ""
        raise InvalidTypeError(f"optimizer must be a keras.optimizers.Optimizer, got {optimizer!r}{hint}.")
    if getattr(optimizer, "use_ema", False):
        raise InvalidValueError("optimizer: use_ema=True is not wanted here, fit averages its iterates itself.")
    try:
        return type(optimizer).from_config(optimizer.get_config())
    except Exception as error:
        raise InvalidTypeError(
            f"optimizer {optimizer!r} cannot be copied by its config ({one_line(error)}); a class of your own needs "
            "get_config and keras.saving.register_keras_serializable."
        ) from error
