"""Imports run downwards only, and the public surface is what it is written to be."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import bbsvi

PACKAGE = Path(bbsvi.__file__).parent
# From the ground to the roof: a room imports from its own package and from rooms before it.
ROOMS = [
    "errors",
    "typing",
    "validation",
    "randomness",
    "tracing",
    "diagnostics",  # functions of numpy arrays: the roof uses them, and so does the convergence rule
    "examples",
    "supports",
    "targets",
    "scores",
    "per_sample",
    "factored",
    "recording",
    "distribution_scores",
    "families",
    "score_check",
    "control_variates",
    "estimators",
    "optimization",
    "storage",
    "posterior",
    "run",
    "fitting",
    "__init__",
    "__main__",
]
PUBLIC = {
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
}
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "bbsvi":
            parts = node.module.split(".")
            rooms |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                if parts[0] == "bbsvi":
                    rooms.add(parts[1] if len(parts) > 1 else "__init__")
    return rooms


def test_every_file_is_in_a_known_room():
    assert len(FILES) > 20
    assert {room_of(path) for path in FILES} == set(ROOMS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_downwards(path):
    here = ROOMS.index(room_of(path))
    for room in imported_rooms(path):
        assert room in ROOMS, f"{path.name} imports {room}, which is no room"
        below = ROOMS.index(room) < here or room == room_of(path)
        assert below, f"{path.relative_to(PACKAGE)} imports {room}, which is above it"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_is_read_in_one_sitting(path):
    assert len(path.read_text().splitlines()) <= 350


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_is_evaluated_sample_by_sample(path):
    """No map over samples and no Jacobian, which cost S times what one batched pass does."""
    called = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
    assert not called & {"map_fn", "jacobian", "batch_jacobian"}


def test_public_names():
    assert set(bbsvi.__all__) == PUBLIC
    assert all(hasattr(bbsvi, name) for name in bbsvi.__all__)


def test_import_leaves_optional_and_slow_packages_unloaded():
    """arviz takes seconds to import; matplotlib is an extra, though TensorFlow loads it where it is installed."""
    code = (
        "import sys, keras, tensorflow, tensorflow_probability; before = set(sys.modules); import bbsvi; "
        "print(*({'matplotlib', 'arviz', 'pandas', 'IPython'} & (set(sys.modules) - before)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""
