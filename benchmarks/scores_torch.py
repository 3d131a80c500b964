"""torch.func's vmap(grad) and the same contractions, of the same densities at the same parameters.

In a process of its own, which has no TensorFlow: the two libraries loaded together can crash.
`python -m benchmarks.scores_torch IN.npz OUT.npz` is that process.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.score_densities import FULL_RANK, log_density


def run(of: Any, repeats: int) -> tuple[list[np.ndarray], float]:
    """The contractions of a `score_problems.Problem`, one array after the other, and the median seconds of a call."""
    arrays = {f"parameter_{index:02}": value for index, value in enumerate(of.family.parameters())}
    arrays |= {f"mask_{index:02}": mask for index, mask in enumerate(of.masks)}
    arrays |= {"draws": of.draws.numpy().astype(np.float32), "w": of.w.numpy(), "inputs": of.inputs}
    arrays |= {"kind": of.kind, "size": of.size, "repeats": repeats}
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("in.npz", "out.npz")]
        np.savez(files[0], **arrays)
        subprocess.run([sys.executable, "-m", "benchmarks.scores_torch", *map(str, files)], check=True)
        with np.load(files[1]) as out:
            return [out[f"arr_{index}"] for index in range(len(out.files) - 1)], float(out["seconds"])


def main(read: str, written: str) -> None:
    import torch

    given = dict(np.load(read))
    parameters, masks = (
        tuple(torch.from_numpy(given[name]) for name in sorted(given) if name.startswith(prefix))
        for prefix in ("parameter_", "mask_")
    )
    draws, w = torch.from_numpy(given["draws"]), torch.from_numpy(given["w"])
    kind, size = str(given["kind"]), int(given["size"])
    order = torch.arange(size - 1, -1, -1)
    log_prob = (
        full_rank(size)
        if kind == FULL_RANK
        else log_density(kind, torch, masks, torch.from_numpy(given["inputs"]), order)
    )
    per_sample = torch.func.vmap(torch.func.grad(log_prob), (None, 0))
    seconds = []
    for _ in range(int(given["repeats"]) + 1):
        begin = time.perf_counter()
        scores = per_sample(parameters, draws)
        norms = sum(h.square().reshape(len(w), -1).sum(1) for h in scores)
        first = [torch.tensordot(w, h, 1) for h in scores]
        second = [torch.tensordot(w, h.square(), 1) for h in scores]
        seconds.append(time.perf_counter() - begin)
    arrays = [array.numpy() for array in (*first, *second, norms)]
    np.savez(written, *arrays, seconds=statistics.median(seconds[1:]))


def full_rank(size: int) -> Callable[[tuple, Any], Any]:
    """(parameters, one draw) -> log q."""
    import torch

    # Each element of L is one of lower's, or a zero put at its end.
    index = torch.full((size, size), size * (size - 1) // 2)
    index[tuple(torch.tril_indices(size, size, -1))] = torch.arange(size * (size - 1) // 2)

    def log_prob(parameters: tuple, z: Any) -> Any:
        loc, log_diag, lower = parameters
        scale = torch.cat([lower, lower.new_zeros(1)])[index] + torch.diag(log_diag.exp())
        noise = torch.linalg.solve_triangular(scale, (z - loc)[:, None], upper=False)
        return -0.5 * noise.square().sum() - log_diag.sum()

    return log_prob


if __name__ == "__main__":
    main(*sys.argv[1:])
