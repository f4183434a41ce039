"""What of a run's story a person needs to follow its failure: what each actor did, in order, and only what matters.

A line matters if it is of a fault or of an actor's life, or if it names what the violation is about: partitions, their
topics, and clients. Lines that say the same of several replicas are one. Called by the command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from tests.simulation.world import Violation

LINES_MAX: Final = 150
"""Most lines; of more, the first few and the last ones are kept."""
FIRST: Final = 30
BEGAN_S: Final = 100.0
"""The time at which each world begins."""
FAULTS: Final = ("nemesis", "VIOLATION", "world", "transactions")
"""Sources of lines that always matter."""
ROUTINE: Final = (
    " was cleaned up to offset ",
    " replaces the metadata below ",
    " is no longer wanted",
    "starts again in epoch",
    "ends: ended for good",
    "vouches for",
)
"""What shells log in any run, fails or not."""
_STORY_LINE: Final = re.compile(r"^ *(?P<when>\d+\.\d+)  (?P<source>\S(?:.*?\S)?) {1,}(?P<what>.*)$")
_PLACE: Final = re.compile(r"[A-Za-z_][\w.-]*-\d+")
_VALUE: Final = re.compile(r"b'([A-Za-z][\w.-]*)/")
"""The client in the value of a record."""
_REPLICA: Final = re.compile(r"replica:(?P<place>[\w.-]+-\d+):broker-(?P<broker>\d+)(?::[0-9a-f]+)?")


def subjects(violation: Violation) -> tuple[str, ...]:
    """Return the names of partitions, brokers, clients that a violation is about."""
    return tuple(dict.fromkeys([*_PLACE.findall(violation.claim), *_VALUE.findall(violation.claim)]))


def essence(story: Sequence[str], violation: Violation) -> list[str]:
    """Return the lines of a whole world's story that matter, with times from its beginning on."""
    about = subjects(violation)
    kept = list(_once(line for line in story if _matters(line, about)))
    if len(kept) > LINES_MAX:
        left_out = len(kept) - LINES_MAX
        kept = [*kept[:FIRST], f"{'...':>11}  {left_out} lines are left out", *kept[FIRST - LINES_MAX :]]
    return kept


def _matters(line: str, about: Sequence[str]) -> bool:
    found = _STORY_LINE.match(line)
    if found is None:
        return "VIOLATION" in line
    source, what = found["source"], found["what"]
    if source in FAULTS or "UNHANDLED" in what:
        return True
    if any(routine in what for routine in ROUTINE):
        return False
    if any(name in source or name in what for name in about):
        return True
    is_of_life = what.startswith(("ends:", "is paused", "goes on", "life "))
    return is_of_life and not source.startswith("replica:")


def _once(lines: Iterator[str]) -> Iterator[str]:
    """Leave out what a line says again, and shorten the names of replicas."""
    last: dict[str, str] = {}
    for line in lines:
        found = _STORY_LINE.match(line)
        if found is None:
            yield line
            continue
        what = found["what"].removeprefix("info: ")
        source = _REPLICA.sub(r"\g<place> on broker \g<broker>", found["source"])
        key = what if found["source"].startswith("replica:") and "leader " in what else f"{source}: {what}"
        topic = key.split(":")[0]
        if last.get(topic) == key:
            continue
        last[topic] = key
        what = _REPLICA.sub(r"the replica of \g<place> on broker \g<broker>", what)
        yield f"{float(found['when']) - BEGAN_S:11.6f}  {source:<30} {what}"
