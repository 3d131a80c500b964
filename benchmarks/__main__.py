"""`python -m benchmarks NAME [--quick] [--output DIR]`: measure, print a table, write JSON and a figure."""

from __future__ import annotations

import argparse
import importlib
import logging
from pathlib import Path

NAMES = {
    "estimators": "variance, signal-to-noise and cost of the gradient estimators",
    "loop": "1,000 steps of the compiled loop against NumPyro and TFP",
    "per_sample": "per-sample gradients against one call a sample",
    "scores": "moments of per-sample scores, every way there is, against one backward pass",
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog="\n".join(f"{name}: {what}" for name, what in NAMES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=list(NAMES))
    parser.add_argument("--quick", action="store_true", help="fewer repeats: under a minute")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"), help="directory of JSON and figure")
    options = parser.parse_args(arguments)
    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # it warns of every function traced more than once
    importlib.import_module(f"benchmarks.{options.name}").main(options.quick, options.output)


if __name__ == "__main__":
    main()
