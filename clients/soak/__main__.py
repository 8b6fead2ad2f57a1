"""`python -m soak --seconds 600`: prints what was sent, what came back, and every problem."""

import argparse
import sys
import tempfile
from pathlib import Path

from .measure import MEASUREMENTS, measured
from .run import soak


def main():
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--measure", choices=MEASUREMENTS, help="measure a single cost instead")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.measure:
            print(measured(Path(folder), MEASUREMENTS[options.measure]))
            return
        report = soak(Path(folder), options.seconds, options.seed)
    print(report)
    sys.exit(1 if report.problems else 0)


if __name__ == "__main__":
    main()
