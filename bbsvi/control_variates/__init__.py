"""Control variates: arrays in, arrays out; no model, no family, no sampling."""

from bbsvi.control_variates.base import ControlVariate, Weights
from bbsvi.control_variates.baselines import LeaveOneOut, MovingAverage, NoControlVariate
from bbsvi.control_variates.optimal import OptimalCoefficients

__all__ = ["ControlVariate", "LeaveOneOut", "MovingAverage", "NoControlVariate", "OptimalCoefficients", "Weights"]
