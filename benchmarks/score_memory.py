"""Peak memory of the moments of an autoregressive net's scores, in processes of their own.

`python -m benchmarks.score_memory WAY MODE` prints the most bytes that it held.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

from benchmarks.score_densities import AUTOREGRESSIVE
from benchmarks.score_problems import problem
from benchmarks.score_ways import BACKWARD, ways

BITS, HIDDEN, NUM_DRAWS = 500, 999, 512
NUM_PARAMETERS = 2 * BITS * HIDDEN + BITS + HIDDEN  # 1,000,499
DENSE_BYTES = 4 * NUM_DRAWS * NUM_PARAMETERS


def beyond_backward(way: str, mode: str) -> int:
    """Bytes by which the peak of a process that takes the moments once is above that of one backward pass."""
    commands = [[sys.executable, "-m", "benchmarks.score_memory", name, mode] for name in (way, BACKWARD)]
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for command in commands
    ]
    ends = [process.communicate() for process in both]
    for process, (_, errors) in zip(both, ends):
        if process.returncode:
            raise RuntimeError(f"{' '.join(process.args)} failed:\n{errors}")
    peak, of_backward = (int(printed.split()[-1]) for printed, _ in ends)
    return peak - of_backward


def main(way: str, mode: str) -> None:
    of = problem(AUTOREGRESSIVE, BITS, NUM_DRAWS, HIDDEN)
    ways(of, jit_compile=mode == "XLA", slow=False)[way]()
    print(_own_peak())


def _own_peak() -> int:
    status = Path("/proc/self/status")
    if status.exists():
        # Linux's ru_maxrss counts what the process was before its exec: a copy of its parent, larger than itself.
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    main(*sys.argv[1:])
