"""A benchmark's rows as a printed table, a JSON file and, where matplotlib is installed, a figure."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import math
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PACKAGES = ("bbsvi", "tensorflow", "tensorflow-probability", "keras", "numpy", "jax", "numpyro")


def report(
    name: str,
    rows: Sequence[dict[str, Any]],
    output: Path,
    *,
    settings: dict[str, Any],
    notes: Sequence[str] = (),
    draw: Callable[[Any, Sequence[dict[str, Any]]], None] | None = None,
) -> None:
    """Print the rows and write `NAME.json` and `NAME.png` to `output`.

    Args:
      rows: one dict a row, the same keys in each; None where there is no number, and then `note`
        says why.
      settings: what the numbers depend on: sample sizes, repeats, seeds.
      notes: sentences printed below the table.
      draw: draws the rows on a matplotlib figure.
    """
    place = environment()
    print(f"{name}: {', '.join(f'{key} {value}' for key, value in settings.items())}")
    print(f"{place['cpus']} CPUs, Python {place['python']}, {_listed(place['packages'])}\n")
    print(table(rows))
    for note in notes:
        print(note)
    output.mkdir(parents=True, exist_ok=True)
    content = {"benchmark": name, "settings": settings, "environment": place, "rows": list(rows), "notes": list(notes)}
    written = [output / f"{name}.json"]
    written[0].write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
    if draw is not None and importlib.util.find_spec("matplotlib"):
        written.append(output / f"{name}.png")
        _save_figure(written[1], rows, draw)
    print(f"\nWritten: {', '.join(str(path) for path in written)}")


def environment() -> dict[str, Any]:
    """Versions and the number of CPUs that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        "cpus": len(affinity(0)) if affinity else os.cpu_count(),
        "packages": {package: _version(package) for package in PACKAGES},
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as text: words to the left, numbers to the right; `note` stands at the end of its row."""
    columns = [key for key in rows[0] if key != "note"]
    cells = [[key.replace("_", " ") for key in columns]] + [[cell(row[key]) for key in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    is_text = [isinstance(rows[0][key], str) for key in columns]
    lines = [
        "  ".join(c.ljust(w) if text else c.rjust(w) for c, w, text in zip(line, widths, is_text)) for line in cells
    ]
    notes = [""] + [row.get("note") or "" for row in rows]
    return "\n".join(f"{line}  {note}".rstrip() for line, note in zip(lines, notes))


def cell(value: Any) -> str:
    """Three digits of a number, "-" for None."""
    if value is None:
        return "-"
    if isinstance(value, float):
        if math.isfinite(value) and abs(value) >= 1000:
            return f"{value:,.0f}" if abs(value) < 1e7 else f"{value:.1e}"
        return f"{value:.3g}"
    return str(value)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _listed(packages: dict[str, str | None]) -> str:
    return ", ".join(f"{package} {version or 'not installed'}" for package, version in packages.items())


def _save_figure(
    path: Path, rows: Sequence[dict[str, Any]], draw: Callable[[Any, Sequence[dict[str, Any]]], None]
) -> None:
    from matplotlib.figure import Figure  # without pyplot: no window system, no global state

    figure = Figure(layout="constrained")
    draw(figure, rows)
    figure.savefig(path, dpi=150)
