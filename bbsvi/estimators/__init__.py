"""Gradient estimators: (target, family, draws) -> gradient of the ELBO."""

from bbsvi.estimators.base import Estimator, GradientEstimate
from bbsvi.estimators.score_function import ScoreFunction

__all__ = ["Estimator", "GradientEstimate", "ScoreFunction"]
