"""Measure Raylog, alone or beside its peers: `python -m benchmarks COMMAND`, each with its own --help."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.options import Parser, meant


@dataclass(frozen=True, slots=True)
class Command:
    """A module with `main(arguments)`, what it measures, and arguments to begin with."""

    module: str
    about: str
    example: str
    first: tuple[str, ...] = ()


COMMANDS = {
    "run": Command(
        "page",
        "every scenario, Raylog beside its peers in turn; what `make bench` does; also without a command",
        "--quick",
    ),
    "document": Command(
        "report.document",
        "write docs/performance.md from the results of a run",
        "benchmarks/results/STAMP/results.json",
    ),
    "pairs": Command("pairs.compare", "the same work on two checkouts, in turn, as ratios", "../before . --pairs 5"),
    "rebalances": Command(
        "page", "a group of 50 members comes together, and one more joins", "--rounds 1", ("--only", "rebalance")
    ),
    "delays": Command(
        "delays.command", "how late delayed records come, and what those that wait cost", "together --records 300"
    ),
    "queues": Command(
        "queues.outage", "how soon a queue goes on behind an outage of its handlers", "outage --rounds 1"
    ),
    "outbox": Command("outbox", "what a relay brings from PostgreSQL into a topic", "backlog --events 5000"),
    "rest": Command(
        "rest.command", "partitions at rest, beside Kafka: memory, CPU, the first record, a restart", "--partitions 100"
    ),
    "dozing": Command(
        "rest.dozing", "the first record to a partition whose replicas doze", "--partitions 6 --rounds 1"
    ),
    "analytics": Command("analytics.command", "Spark and Ray Data on Raylog, beside Kafka", "reader-arrow --quick"),
    "compaction": Command(
        "compaction", "the log cleaner on one core: bytes a second, memory", "--records 1000000 --keys 100000"
    ),
    "scrape": Command("scrape", "the CPU time of a node's metrics page with 200 replicas", ""),
}


def listed() -> str:
    """A command a line, and an example of it in the next."""
    lines = [
        f"  {name:<11} {each.about}\n  {'':<11}   {name} {each.example}".rstrip() for name, each in COMMANDS.items()
    ]
    return "\n".join(["commands, each with an example:", *lines])


def main(given: Sequence[str]) -> int:
    """Run a command; options without one are those of `run`."""
    if given[:1] in (["-h"], ["--help"]):
        parser = Parser("", __doc__)
        parser.usage, parser.epilog = "python -m benchmarks [COMMAND] [OPTION ...]", listed()
        parser.print_help()
        return 0
    name, rest = (given[0], given[1:]) if given and not given[0].startswith("-") else ("run", given)
    if name not in COMMANDS:
        Parser("", None).error(complaint(name))
    command = COMMANDS[name]
    found: int = importlib.import_module(f"benchmarks.{command.module}").main([*command.first, *rest])
    return found


def complaint(name: str) -> str:
    """What is wrong with the name of a command; scenarios are parts of `run`."""
    from benchmarks.scenarios.registry import SCENARIOS  # which loads all that they measure

    if name in SCENARIOS:
        return f"{name!r} is a scenario: python -m benchmarks run --only {name}"
    return meant(name, COMMANDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
