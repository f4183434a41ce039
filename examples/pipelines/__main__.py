"""Runs all pipelines on a whole year; exits non-zero on a mismatch. ``python -m examples.pipelines [--limit N]``."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

from rich.console import Console

import raylog
from examples.flights.__main__ import fresh_directory
from examples.flights.checks import Checks
from examples.flights.screen import own_lines_only, step
from examples.pipelines import data, rotations
from examples.pipelines.kills import Kills
from examples.pipelines.place import Place
from examples.pipelines.run import Run, Size

BROKERS = 3
LOG = "ray-and-spark.log"
ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Run everything; returns the process's exit code."""
    arguments = _arguments()
    root = fresh_directory(arguments.data_dir)
    log = root / LOG
    try:
        with own_lines_only(log) as console:
            console.print(f"Output of Ray and Spark: {log}")
            return _run(console, root, arguments)
    except BaseException:  # an interrupt too: the log is named, and the error goes on
        print(f"The pipelines ended early; {log} may say why.", file=sys.stderr)
        raise


def _run(console: Console, root: Path, arguments: argparse.Namespace) -> int:
    from examples.pipelines import plots

    def shown(what: str) -> AbstractContextManager[None]:
        return step(console, what)

    began = time.monotonic()
    pictures = arguments.pictures or root / "pictures"
    checks = Checks(console)
    with shown("Reading the files"):
        tables = data.load(arguments.limit)
    with shown(f"Starting Ray and {BROKERS} brokers"):
        cluster = raylog.start(root / "brokers", brokers=BROKERS)
    try:
        with shown("Starting Spark on Ray"):
            spark = raylog.spark.session("pipelines", config=_settings())
        try:
            place = Place(spark, root)
            run = Run(place, Kills(cluster), checks, shown, tables, Size(limit=arguments.limit))
            run.all()
            with shown("Drawing"):
                plots.draw(pictures, run.hours, run.rotations, run.predicted, run.errors)
        finally:
            raylog.spark.stop()
    finally:
        cluster.stop()
    console.print(checks.table())
    console.print(run.figures.table())
    console.print(f"{len(run.kills.done)} actors were killed meanwhile: {run.kills.summary()}.")
    console.print(f"All of it took {time.monotonic() - began:.0f} s; pictures are in {pictures}, data in {root}.")
    return 0 if checks.all_hold else 1


def _settings() -> dict[str, str]:
    """Settings of the session: the state store, and where executors find the code of the examples."""
    return {
        **rotations.STORE,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.pipelines", description=__doc__)
    parser.add_argument("--limit", type=int, default=None, help="use only the first N flights (default: all 336,776)")
    parser.add_argument("--data-dir", type=Path, default=Path("pipelines-data"), help="where everything is written")
    parser.add_argument(
        "--pictures", type=Path, default=None, help="where the pictures go (default: the data's folder)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
