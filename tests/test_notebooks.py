"""The notebooks: that they run from top to bottom, and that what is committed is fit to be read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MEGABYTE = 1_000_000
MACHINE_PATH = re.compile(r"(?<![\w.:/])/(?:home|Users|root|tmp|work|usr|opt|mnt|var)/|\b[A-Z]:\\\\?\w|site-packages")

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> Any:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def printed(notebook: Any) -> str:
    """All outputs that are text: streams and tables."""
    parts = []
    for output in outputs(notebook):
        parts.append(output.get("text", ""))
        parts += [value for kind, value in output.get("data", {}).items() if kind.startswith("text/")]
    return "\n".join(parts)


def assert_run_in_order(notebook: Any) -> None:
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1)), "run it from top to bottom, then save it"


def test_there_are_notebooks():
    assert NOTEBOOKS, f"no notebook in {FOLDER}: every other test here would pass over nothing"


@each_notebook
def test_runs(path, tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))  # no kernels but the interpreter's own
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    notebook = read(path)
    client = NotebookClient(notebook, timeout=300, kernel_name="python3")
    client.execute(cwd=str(tmp_path))  # a cell that raises ends this with its traceback
    assert "error" not in [output.output_type for output in outputs(notebook)]
    assert "ConvergenceWarning" not in printed(notebook)
    assert_run_in_order(notebook)
    assert sum("image/png" in output.get("data", {}) for output in outputs(notebook)) >= 1


@each_notebook
def test_committed_outputs(path):
    notebook = read(path)
    assert_run_in_order(notebook)
    assert len(json.dumps(outputs(notebook))) < MEGABYTE
    for output in outputs(notebook):
        assert output.output_type != "error"
        assert output.get("name") != "stderr", output.get("text")
    sources = "\n".join(cell.source for cell in notebook.cells)
    found = MACHINE_PATH.search("\n".join([sources, printed(notebook), json.dumps(notebook.metadata)]))
    assert found is None, f"a path of the machine that it ran on: {found}"


@pytest.mark.parametrize(
    ("words", "is_path"),
    [
        ("/home/ada/notes.txt", True),
        ("in /tmp/x.py:3", True),
        ("C:\\Users\\ada", True),
        ("lib/python3.11/site-packages/arviz", True),
        ("https://example.org/home/page", False),
        ("log p(y, z) / work", False),
    ],
)
def test_machine_paths_are_known(words, is_path):
    assert bool(MACHINE_PATH.search(words)) == is_path
