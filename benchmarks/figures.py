"""Shapes of figure that more than one benchmark draws, on a matplotlib figure given to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.reporting import cell


def bars(figure: Any, labels: Sequence[str], values: Sequence[float], xlabel: str) -> None:
    """Horizontal bars from zero, each with its number."""
    figure.set_size_inches(8, 1.2 + 0.4 * len(labels))
    axes = figure.subplots()
    drawn = axes.barh(labels, values, color="tab:blue")
    axes.bar_label(drawn, labels=[cell(float(value)) for value in values], padding=4)
    axes.set_xlim(0, max(values) * 1.15)
    axes.set_xlabel(xlabel)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)


def dots(figure: Any, panels: Mapping[str, Mapping[str, float | None]], xlabel: str, *, missing: str) -> None:
    """A row of panels {title: {label: value}}, the same labels and log scale in each; `missing` stands for no value."""
    figure.set_size_inches(2 + 3.2 * len(panels), 1.2 + 0.4 * max(map(len, panels.values())))
    for axes, (title, values) in zip(figure.subplots(1, len(panels), sharex=True, sharey=True), panels.items()):
        for height, value in enumerate(values.values()):
            if value is not None:
                axes.plot(value, height, "o", color="tab:blue")
                axes.annotate(cell(value), (value, height), xytext=(7, 0), textcoords="offset points", va="center")
            else:
                axes.text(
                    0.5, height, missing, transform=axes.get_yaxis_transform(), ha="center", va="center", style="italic"
                )
        axes.set_yticks(range(len(values)), list(values))
        axes.set_title(title, fontsize="medium")
        axes.grid(axis="x", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    everything = [value for values in panels.values() for value in values.values() if value is not None]
    axes.set_xscale("log")
    axes.set_xlim(min(everything) / 3, max(everything) * 60)  # room for the number beside the last dot
    axes.set_ylim(len(values) - 0.5, -0.5)
    figure.supxlabel(xlabel, fontsize="medium")
