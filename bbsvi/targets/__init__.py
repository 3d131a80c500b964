"""log p: joint distributions, Python functions and numpy functions as one `Target`."""

from bbsvi.targets.base import Latent
from bbsvi.targets.target import Target

__all__ = ["Latent", "Target"]
