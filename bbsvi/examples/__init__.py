"""Small real models with their data and their posteriors as known from elsewhere."""

from bbsvi.examples.base import Example, Reference
from bbsvi.examples.beta_binomial import beta_binomial
from bbsvi.examples.coal_mining import coal_mining
from bbsvi.examples.eight_schools import eight_schools, eight_schools_centered
from bbsvi.validation import known_name

__all__ = ["Example", "Reference", "load", "names"]

_EXAMPLES = {make.__name__: make for make in (eight_schools, eight_schools_centered, coal_mining, beta_binomial)}


def names() -> list[str]:
    """The names that `load` knows."""
    return list(_EXAMPLES)


def load(name: str) -> Example:
    """A bundled example by name: `fit(example.target, data=example.data)`."""
    return _EXAMPLES[known_name("name", name, _EXAMPLES)]()
