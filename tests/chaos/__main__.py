"""The command behind ``make chaos``: injure clusters under load, and judge what their clients saw.

Five parts, each in a process of its own: the processes of one Ray node, whole Ray nodes, the network between nodes,
copies in transactions on one Ray node, and copies by a streaming query of Spark.
Exits with 0 only when every part that could run PASSED. A part that did not pass is kept, with its history, the
processes' logs and the data.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any, Final

from tests.chaos.arena import PARTS, LeftOut
from tests.chaos.evidence.checker import Verdict
from tests.chaos.evidence.report import as_plain, summary, table

SHARES: Final = {"processes": 0.3, "nodes": 0.15, "network": 0.15, "copies": 0.2, "spark": 0.2}
"""Relative to the minutes. A node takes longer to return, so its part has fewer faults in its time."""
OUTBOX: Final = "outbox"
DAY: Final = "day"
EVERYTHING: Final = "everything"
SOAK: Final = "soak"
OWN_PARTS: Final = (OUTBOX, DAY, EVERYTHING, SOAK)
"""Parts that are run by their names only: the first needs no Ray, the second a network of hosts, the others hours."""
RATE: Final = {EVERYTHING: 60.0, SOAK: 60.0}
PARTITIONS: Final = {EVERYTHING: 2, SOAK: 2}
"""Defaults of a part that differ from those of the others."""
END_S: Final = 60.0


def main(arguments: list[str] | None = None) -> int:
    """Return 0 for PASSED, 1 for everything else."""
    given = sys.argv[1:] if arguments is None else arguments
    options = _options(given)
    signal.signal(signal.SIGTERM, _end)
    if options.only is None:
        return _all_parts(options, given)
    if options.only == OUTBOX:
        from tests.chaos.outbox import run_part

        return run_part(options.kills, options.seed, options.minutes)
    if options.only == DAY:
        from tests.chaos.day import run_part as play_day

        return play_day()
    if "RAY_TMPDIR" in os.environ:
        return _one_part(options, given)
    # A separate folder isolates it from other Rays on this machine; short, because it becomes part of socket names.
    folder = tempfile.mkdtemp(prefix="rlc")
    try:
        os.environ["RAY_TMPDIR"] = folder
        return _one_part(options, given)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _all_parts(options: argparse.Namespace, given: list[str]) -> int:
    """Run the parts in order, each with its share of the time."""
    minutes = {part: options.minutes * share for part, share in SHARES.items()}
    print("split: " + ", ".join(f"{part} {share:.1f} min" for part, share in minutes.items()), flush=True)
    found = []
    with tempfile.TemporaryDirectory(prefix="raylog-chaos-") as folder:
        for part in PARTS:
            path = Path(folder) / f"{part}.json"
            out = ["--out", str(options.out / part)] if options.out else []
            command = [sys.executable, "-m", "tests.chaos", *given, "--only", part]
            result = _wait([*command, "--minutes", str(minutes[part]), "--json", str(path), *out])
            if path.exists():
                found.append(json.loads(path.read_text()))
            elif result != 0:
                found.append({"part": part, **_NOTHING})
    text, worst = summary([part for part in found if "left_out" not in part])
    print(*(f"\n{part['part']}: {part['left_out']}" for part in found if "left_out" in part), text, flush=True)
    if options.json is not None:
        _write(options.json, {"verdict": worst.value, "seed": options.seed, "parts": found})
    return 0 if worst is Verdict.PASSED else 1


def _wait(command: list[str]) -> int:
    """Run a part to its end; when this process is to end, the part ends first, with everything it started."""
    process = subprocess.Popen(command)
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _one_part(options: argparse.Namespace, given: list[str]) -> int:
    from tests.chaos.copies.run import CopiesRun
    from tests.chaos.everything.run import EverythingRun
    from tests.chaos.everything.soak import SoakRun
    from tests.chaos.run import Options, Run, run  # Ray reads its environment when it is imported
    from tests.chaos.spark.run import SparkRun

    kinds = {"copies": CopiesRun, "spark": SparkRun, EVERYTHING: EverythingRun, SOAK: SoakRun}
    try:
        result = run(
            kinds.get(options.only, Run),
            Options(
                part=options.only,
                minutes=options.minutes,
                seed=options.seed,
                brokers=options.brokers,
                partitions=options.partitions or PARTITIONS.get(options.only, 3),
                rate=options.rate or RATE.get(options.only, 600.0),
                spares=options.spares,
                faults=tuple(options.faults.split(",")) if options.faults else (),
                each_once=options.each_once,
                storm=options.storm,
                table=options.table,
                at_least_once=options.at_least_once,
                out=options.out,
                keep=options.keep,
            ),
        )
    except LeftOut as reason:
        print(f"{options.only}: {reason}", flush=True)
        if options.json is not None:
            _write(options.json, {"part": options.only, "left_out": str(reason)})
        return 0
    plain = as_plain(result)
    print(table(plain), flush=True)
    if options.json is not None:
        _write(options.json, plain)
    if result.verdict is not Verdict.PASSED:
        print(f"again: python -m tests.chaos {' '.join(given)}", flush=True)
    return 0 if result.verdict is Verdict.PASSED else 1


def _write(path: Path, plain: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(plain, indent=1) + "\n")


def _end(number: int, _: FrameType | None) -> None:
    """Leave through every ``finally``, so that nothing stays behind."""
    raise SystemExit(128 + number)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--only", choices=(*PARTS, *OWN_PARTS), help="one part, or one that is run by its name only")
    parser.add_argument("--kills", type=int, default=1_000, help="of relays, with --only outbox (default 1000)")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long faults are injected (default 1)")
    parser.add_argument("--seed", type=int, default=1, help="of the schedule and of the clients (default 1)")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--partitions", type=int, help="of the main topic (default 3, of everything 2)")
    parser.add_argument("--rate", type=float, help="records a second of each producer (default 600, of everything 60)")
    parser.add_argument("--spares", type=int, help="processes ready to become replicas (default: by the seed)")
    parser.add_argument("--faults", default="", help="kinds to draw from, by commas (with --only; default: all)")
    parser.add_argument("--each-once", action="store_true", help="each kind once in the order given, and no longer")
    parser.add_argument("--storm", action="store_true", help="do not wait until all is whole between two faults")
    parser.add_argument("--table", action="store_true", help="also write to a compacted topic, and judge it")
    parser.add_argument("--at-least-once", action="store_true", help="a control of the part spark: repeats are found")
    parser.add_argument("--json", type=Path, help="also write the report there")
    parser.add_argument("--out", type=Path, help="folder for what a failed run leaves (default: a temporary one)")
    parser.add_argument("--keep", action="store_true", help="keep it also when the run passed")
    options = parser.parse_args(arguments)
    if options.faults and options.only is None:
        parser.error("--faults names faults of one part: say which with --only")
    unknown = [kind for kind in options.faults.split(",") if kind and kind not in known_faults(options.only)]
    if unknown:
        known = ", ".join(known_faults(options.only))
        parser.error(f"unknown faults: {', '.join(unknown)}; known are {known}")
    return options


def known_faults(part: str | None) -> tuple[str, ...]:
    """Return the names of a part's faults; none for no part."""
    if part == "processes":
        from tests.chaos.injuries.processes import PROCESS_FAULTS

        return PROCESS_FAULTS
    if part == "nodes":
        from tests.chaos.injuries.nodes import NODE_FAULTS

        return NODE_FAULTS
    if part == "copies":
        from tests.chaos.copies.strikes import COPIES_FAULTS

        return COPIES_FAULTS
    if part == EVERYTHING:
        from tests.chaos.everything.strikes import EVERYTHING_FAULTS

        return EVERYTHING_FAULTS
    if part == "spark":
        from tests.chaos.spark.strikes import SPARK_FAULTS

        return SPARK_FAULTS
    if part == "network":
        from tests.chaos.injuries.network import NETWORK_FAULTS

        return NETWORK_FAULTS
    return ()


_NOTHING: Final[dict[str, Any]] = {
    "verdict": Verdict.UNKNOWN.value,
    "faults": {},
    "sends": {"ok": 0, "fail": 0, "unknown": 0},
    "records_read": 0,
    "anomalies": {},
}
"""The report of a part that ended without one."""


if __name__ == "__main__":
    sys.exit(main())
