"""`python -m tests.conformance`: run each program with each client, and show where Raylog behaves another way.

Kafka's jars are fetched with Maven the first time. Exit code 1: a difference that `differences` does not list, or one
that is listed and was not seen. `--note` keeps what Kafka's clients saw in `seen_on_kafka.json`, to which
`tests/cluster/clients/test_conformance.py` holds Raylog without a Kafka.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import raylog
from benchmarks.peers.kafka import Kafka
from tests.conformance.base import Kit
from tests.conformance.confluent_kit import ConfluentKit
from tests.conformance.differences import DIFFERENCES
from tests.conformance.kafka_python_kit import KafkaPythonKit
from tests.conformance.programs import PROGRAMS, Program
from tests.conformance.raylog_kit import RaylogKit
from tests.conformance.stage import Stage, read

CACHE = Path("build/peers")
START_S = 60.0
SEEN = Path(__file__).with_name("seen_on_kafka.json")
"""What each program saw on Kafka, by client."""


def outcome(kit: Kit, run: Program) -> Any:
    """What a program returns, as JSON has it; an error that it did not expect is its outcome too."""
    try:
        with Stage(kit) as stage:
            found = run(stage)
    except Exception as error:  # any: shown in the table, and compared as all else
        traceback.print_exc()
        found = f"ended by {kit.name_of(error)}"
    return json.loads(json.dumps(found, default=lambda value: value.decode("latin-1")))


def wait_for_coordinators(kit: Kit) -> None:
    """Read as a group until that works: a Kafka that has just started has no coordinators yet. Raises TimeoutError."""
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        with Stage(kit) as stage:
            reader = stage.member(stage.filled(1), stage.name("g"))
            if not stage.refused(lambda reader=reader: read(reader, 1)) and not stage.refused(reader.commit):  # type: ignore[misc]
                return
    raise TimeoutError(f"Kafka served no group within {START_S:.0f} s.")


def compare(kits: list[Kit], only: list[str]) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Run the programs and print what each client saw; returns what was not expected, and what each saw on Kafka."""
    wrong, agree, seconds = [], 0, dict.fromkeys((kit.name for kit in kits), 0.0)
    seen: dict[str, dict[str, Any]] = {}
    for name, run in PROGRAMS.items():
        if only and name not in only:
            continue
        found = {}
        for kit in kits:
            began_s = time.monotonic()
            found[kit.name] = outcome(kit, run)
            seconds[kit.name] += time.monotonic() - began_s
        *kafka, ours = found.values()
        seen[name] = {client: shown for client, shown in found.items() if client != kits[-1].name}
        same = ours in kafka
        agree += same
        print(f"{'same     ' if same else 'different'} {name}")
        if not same or any(other != ours for other in kafka):
            for client, shown in found.items():
                print(f"          {client:16} {json.dumps(shown)}")
        if same == (name in DIFFERENCES):
            wrong.append(f"{name}: {'listed, but the same' if same else 'another behaviour, not listed'}")
    print(f"{agree} of {len(only) or len(PROGRAMS)} programs see on Raylog what they see on Kafka.")
    print("; ".join(f"{client}: {spent_s:.0f} s" for client, spent_s in seconds.items()))
    return wrong, seen


def main() -> int:
    """Start both clusters, compare, stop them."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("programs", nargs="*", help="names of programs (default: all)")
    parser.add_argument("--note", action="store_true", help="keep what Kafka's clients saw")
    chosen = parser.parse_args()
    unknown = set(chosen.programs) - set(PROGRAMS)
    if unknown:
        parser.error(f"there is no program {min(unknown)}; there are {', '.join(PROGRAMS)}")
    with tempfile.TemporaryDirectory(prefix="rlcf-") as folder:
        kafka = Kafka(Path(folder), CACHE, 1)
        try:
            kafka.start()
            with raylog.start(Path(folder) / "raylog", address="local"):
                wait_for_coordinators(ConfluentKit(kafka.bootstrap()))
                kits: list[Kit] = [ConfluentKit(kafka.bootstrap()), KafkaPythonKit(kafka.bootstrap()), RaylogKit()]
                wrong, seen = compare(kits, chosen.programs)
        finally:
            kafka.stop()
    if chosen.note:
        kept = {**json.loads(SEEN.read_text(encoding="utf-8")), **seen} if chosen.programs else seen
        SEEN.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
