"""`python -m bbsvi [EXAMPLE]`: fit a bundled example and print it beside its reference."""

from __future__ import annotations

import argparse
import sys
import time
import warnings

import numpy as np

import bbsvi


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bbsvi", description=__doc__)
    parser.add_argument("example", nargs="?", default="eight_schools", choices=bbsvi.examples.names())
    parser.add_argument("--family", default="mean_field", choices=["mean_field", "full_rank", "low_rank"])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", FutureWarning)  # ArviZ announces its next major version at import

    example = bbsvi.examples.load(options.example)
    print(f"{example.name}: {example.notes}.\nFitting {options.family} q by the score function, values of log p only.")
    begin = time.perf_counter()
    posterior = bbsvi.fit(
        example.target, options.family, data=example.data, seed=options.seed, progress_bar=sys.stderr.isatty()
    )
    print(f"{posterior.message} {time.perf_counter() - begin:.1f} s.\n")
    print(table(example, posterior))
    diagnostics = posterior.diagnose()
    evidence = example.reference.log_evidence
    print(f"\nELBO {posterior.elbo(100_000)}, log evidence {evidence:.4f} (the ELBO cannot exceed it).")
    print("\n".join(diagnostics.messages[2:]))


def table(example: bbsvi.examples.Example, posterior: bbsvi.Posterior) -> str:
    """The fit's quantities beside the reference's."""
    reference = example.reference
    quantities = example.quantities(posterior.sample(100_000, seed=1))
    lines = [f"{'':>16} {'fit':>18}   {'reference':>18}", f"{'':>16} {'mean':>9} {'sd':>8}   {'mean':>9} {'sd':>8}"]
    for name, draws in quantities.items():
        spread = f"{np.std(draws):8.3f}" if np.isfinite(reference.stddev[name]) else " " * 8
        known = f"{reference.stddev[name]:8.3f}" if np.isfinite(reference.stddev[name]) else ""
        lines.append(f"{name:>16} {np.mean(draws):9.3f} {spread}   {reference.mean[name]:9.3f} {known}")
    lines.append(f"reference: {reference.source}")
    return "\n".join(line.rstrip() for line in lines)


if __name__ == "__main__":
    main()
