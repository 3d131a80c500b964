"""Black-box stochastic variational inference on TensorFlow Probability."""

import os

# TensorFlow announces the CPU it found and the GPU it did not; whoever wants to hear it sets this.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from bbsvi import control_variates, estimators, examples, families
from bbsvi.distribution_scores import per_sample_scores
from bbsvi.errors import (
    BBSVIError,
    BBSVIWarning,
    ConvergenceWarning,
    InvalidTypeError,
    InvalidValueError,
    LogProbError,
    NonFiniteError,
)
from bbsvi.fitting import fit
from bbsvi.optimization.convergence import Convergence
from bbsvi.per_sample import per_sample_gradients
from bbsvi.posterior import Diagnostics, Estimate, Posterior, load
from bbsvi.run import Progress
from bbsvi.score_check import ScoreCheck, check_score
from bbsvi.scores import DenseScores, Scores
from bbsvi.targets import Target

__version__ = "0.1.0"

__all__ = [
    "BBSVIError",
    "BBSVIWarning",
    "Convergence",
    "ConvergenceWarning",
    "DenseScores",
    "Diagnostics",
    "Estimate",
    "InvalidTypeError",
    "InvalidValueError",
    "LogProbError",
    "NonFiniteError",
    "Posterior",
    "Progress",
    "ScoreCheck",
    "Scores",
    "Target",
    "check_score",
    "control_variates",
    "estimators",
    "examples",
    "families",
    "fit",
    "load",
    "per_sample_gradients",
    "per_sample_scores",
]
