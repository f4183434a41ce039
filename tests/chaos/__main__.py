"""The command behind ``make chaos``: injure a cluster under load, and judge what its clients saw.

Exits with 0 only for PASSED. A run that did not pass is kept, with its history, the processes' logs and the data.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from tests.chaos.checker import Verdict
from tests.chaos.faults import FAULTS


def main(arguments: list[str] | None = None) -> int:
    """Return 0 for PASSED, 1 for everything else."""
    options = _options(arguments)
    signal.signal(signal.SIGTERM, _end)
    if "RAY_TMPDIR" in os.environ:
        return _run(options)
    # A folder of its own, so that no other Ray of this machine is met; short, because it becomes part of socket names.
    with tempfile.TemporaryDirectory(prefix="rlc", ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    from tests.chaos.report import table
    from tests.chaos.run import Options, run  # Ray reads its environment when it is imported

    result = run(
        Options(
            minutes=options.minutes,
            seed=options.seed,
            brokers=options.brokers,
            partitions=options.partitions,
            rate=options.rate,
            faults=tuple(options.faults.split(",")) if options.faults else tuple(FAULTS),
            each_once=options.each_once,
            storm=options.storm,
            out=options.out,
            keep=options.keep,
        )
    )
    print(table(result), flush=True)
    if result.verdict is not Verdict.PASSED:
        print(f"again: python -m tests.chaos {' '.join(sys.argv[1:])}", flush=True)
    return 0 if result.verdict is Verdict.PASSED else 1


def _end(number: int, _: FrameType | None) -> None:
    """Leave by way of every ``finally``, so that nothing stays behind."""
    raise SystemExit(128 + number)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long faults are injected (default 1)")
    parser.add_argument("--seed", type=int, default=1, help="of the schedule and of the clients (default 1)")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=3)
    parser.add_argument("--rate", type=float, default=60.0, help="records a second of each of the two producers")
    parser.add_argument("--faults", default="", help=f"kinds to draw from, by commas; default all: {', '.join(FAULTS)}")
    parser.add_argument("--each-once", action="store_true", help="each kind once in the order given, and no longer")
    parser.add_argument("--storm", action="store_true", help="do not wait until all is whole between two faults")
    parser.add_argument("--out", type=Path, help="folder for what a failed run leaves (default: a temporary one)")
    parser.add_argument("--keep", action="store_true", help="keep it also when the run passed")
    options = parser.parse_args(arguments)
    unknown = [kind for kind in options.faults.split(",") if kind and kind not in FAULTS]
    if unknown:
        parser.error(f"unknown faults: {', '.join(unknown)}; known are {', '.join(FAULTS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
