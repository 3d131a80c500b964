"""What per-sample scores cost: the same three contractions by every way there is, and by one backward pass.

The contractions are sum w h, sum w h^2 and ||h||^2, all that control variates ask for. The yardstick is
one ordinary backward pass, of sum w log q, which gives the first alone.
"""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Any

from benchmarks import score_memory
from benchmarks.figures import dots
from benchmarks.reporting import report
from benchmarks.score_densities import AMORTIZED, AUTOREGRESSIVE, FLOW, FULL_RANK, MEAN_FIELD
from benchmarks.score_problems import Problem, problem
from benchmarks.score_ways import BACKWARD, OURS, VECTORIZED, check_same, ways
from benchmarks.timing import medians

GRAPH, XLA = "graph", "XLA"
JAX, TORCH = "JAX vmap(grad)", "torch.func vmap(grad)"
# (kind, size, S, hidden units), and the most that bbsvi may take, in backward passes; None where nothing is set.
FULL = (
    ((MEAN_FIELD, 100, 1000), 1.2),
    ((MEAN_FIELD, 1000, 1000), 1.2),
    ((FULL_RANK, 200, 500), 0.5),
    ((AUTOREGRESSIVE, 256, 512, 512), 2.0),
    ((FLOW, 10, 512, 32), None),
    ((AMORTIZED, 256, 256, 128), None),
)
QUICK = (
    ((MEAN_FIELD, 20, 100), None),
    ((FULL_RANK, 20, 50), None),
    ((AUTOREGRESSIVE, 16, 32, 32), None),
    ((FLOW, 4, 16, 8), None),
    ((AMORTIZED, 8, 16, 8), None),
)
LARGEST_FOR_SLOW = 1_000_000  # S x P up to which the ways that take S passes are run
SECONDS_FOR_ONCE = 0.5  # what takes longer for a call is timed once
JAX_RATIO = MEMORY_RATIO = 20


def main(quick: bool, output: Path) -> None:
    repeats = 3 if quick else 21
    rows, notes = [], []
    for size, limit in QUICK if quick else FULL:
        of = problem(*size)
        rows += rows_of(of, repeats, slow=not quick and of.num_draws * of.num_parameters <= LARGEST_FOR_SLOW)
        notes += verdicts(of, rows, limit, quick)
    for mode in (GRAPH,) if quick else (GRAPH, XLA):
        beyond = score_memory.beyond_backward(OURS, mode)
        share = beyond / score_memory.DENSE_BYTES
        shape = f"P={score_memory.NUM_PARAMETERS:,}, S={score_memory.NUM_DRAWS}"
        notes.append(
            f"autoregressive {shape}, {mode}: the peak of memory is {beyond / 2**20:.1f} MiB above that of a backward "
            f"pass, {share:.4f} of S x P x 4 bytes; wanted under 1/{MEMORY_RATIO}: "
            f"{'MET' if share < 1 / MEMORY_RATIO else 'MISSED'}."
        )
        place = {"q": f"autoregressive, {shape}", "way": OURS, "mode": mode}
        rows.append(dict.fromkeys(rows[0]) | place | {"extra_MiB": beyond / 2**20, "note": "memory alone"})
    for library in ("jax", "torch"):
        if not importlib.util.find_spec(library):
            notes.append(f"{library} is not installed: nothing to compare with.")
    notes += [
        f"{BACKWARD}: of sum w log q, one contraction of the three. All others give the three, equal to 1e-4.",
        "to backward: over one backward pass in the same mode (XLA for JAX, graph for torch, which runs eagerly);",
        "to faster: over the faster of the two modes' backward passes.",
    ]
    settings = {"repeats": repeats, "dtype": "float32", "quick": quick}
    report("scores", rows, output, settings=settings, notes=notes, draw=draw)


def label(of: Problem) -> str:
    return f"{of.kind}, P={of.num_parameters:,}, S={of.num_draws}"


def rows_of(of: Problem, repeats: int, *, slow: bool) -> list[dict[str, Any]]:
    """Every way in every mode, checked and then timed in turns."""
    runs = {(name, GRAPH): run for name, run in ways(of, jit_compile=False, slow=slow).items()}
    runs |= {(name, XLA): run for name, run in ways(of, jit_compile=True, slow=slow).items()}
    if importlib.util.find_spec("jax"):
        from benchmarks import scores_jax

        runs[JAX, XLA] = scores_jax.way(of)
    wanted = (VECTORIZED, GRAPH)
    alone = {}  # timed in a process of its own
    if importlib.util.find_spec("torch"):
        from benchmarks import scores_torch

        arrays, torch_seconds = scores_torch.run(of, repeats)
        check_same(
            {(VECTORIZED, GRAPH): runs[VECTORIZED, GRAPH], (TORCH, "eager"): lambda: arrays}, (VECTORIZED, GRAPH)
        )
        alone = {(TORCH, "eager"): torch_seconds}
    check_same(runs, wanted)
    once = {way: taken for way, run in runs.items() if (taken := _seconds(run)) > SECONDS_FOR_ONCE}
    seconds = once | medians({way: run for way, run in runs.items() if way not in once}, repeats)
    seconds = {way: seconds[way] for way in runs} | alone
    backward = {mode: seconds[BACKWARD, mode] for mode in (GRAPH, XLA)}
    return [
        {
            "q": label(of),
            "way": name,
            "mode": mode,
            "ms": 1e3 * taken,
            "to_backward": taken / backward[mode if mode in backward else GRAPH],
            "to_faster": taken / min(backward.values()),
            "extra_MiB": None,
            "note": "timed once" if (name, mode) in once else "own process" if (name, mode) in alone else "",
        }
        for (name, mode), taken in seconds.items()
    ]


def _seconds(run: Any) -> float:
    """Of one call, already compiled."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def verdicts(of: Problem, rows: list[dict[str, Any]], limit: float | None, quick: bool) -> list[str]:
    """Sentences on bbsvi's times for one q, each in its faster mode."""
    ms = {(row["way"], row["mode"]): row["ms"] for row in rows if row["q"] == label(of)}
    faster = min((GRAPH, XLA), key=lambda mode: ms[OURS, mode])
    ours, backward = ms[OURS, faster], min(ms[BACKWARD, mode] for mode in (GRAPH, XLA))
    chosen = XLA if of.family.suits_xla else GRAPH
    sentence = f"{label(of)}: bbsvi's faster mode ({faster}; by default {chosen}) takes {ours / backward:.2f} of the "
    sentence += "faster backward pass"
    if limit is None:
        return [f"{sentence}; a quick run's sizes say nothing about full ones." if quick else f"{sentence}."]
    notes = [f"{sentence}; wanted {limit}: {'MET' if ours <= limit * backward else 'MISSED'}."]
    if of.kind == AUTOREGRESSIVE and (JAX, XLA) in ms:
        share = ms[JAX, XLA] / ours
        notes.append(
            f"{label(of)}: bbsvi takes 1/{share:.0f} of JAX vmap(grad) with the same contractions; wanted "
            f"1/{JAX_RATIO}: {'MET' if share >= JAX_RATIO else 'MISSED'}."
        )
    return notes


def draw(figure: Any, rows: Any) -> None:
    timed = [row for row in rows if row["ms"] is not None]
    names = dict.fromkeys(row["way"] for row in timed)
    panels = {}
    for q in dict.fromkeys(row["q"] for row in timed):
        best = {name: None for name in names}
        for row in timed:
            if row["q"] == q and (best[row["way"]] is None or row["ms"] < best[row["way"]]):
                best[row["way"]] = row["ms"]
        panels[q.replace(", P", "\nP")] = best
    dots(figure, panels, "milliseconds, in the faster mode", missing="not run")
