"""Writes docs/performance.md from a run: `python -m benchmarks.report.document RESULTS.json`."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.goals import verdicts
from benchmarks.report.plots import draw
from benchmarks.report.results import OWN_RUN, Results
from benchmarks.report.tables import as_markdown, markdown, said
from benchmarks.scenarios import SCENARIOS

DOCS = Path(__file__).resolve().parents[2] / "docs"
NOTES = Path(__file__).with_name("notes.md")
"""Written by hand: the causes of missed goals, from the profiles."""
HEAD = """\
# Performance

Raylog beside what you would pick instead, on one machine, in turns. This page is written by
`python -m benchmarks.report.document` from what the run has kept ([performance.json](performance.json)): every row that
was measured is here, also those that Raylog loses.

"""
BUSY = """\
The machine was busy with other work when this run began (a load average of {load} on {cores} cores), which costs every
contestant, and those with more processes and threads most: take the ratios as rough, and the absolute numbers as low.

"""
FEW = """\
This was a quick run: {rounds} rounds of {seconds} s each, fewer of what takes long, and only a part of the cases.

"""
METHOD = """\
## How it was measured

All servers run at the same time on the machine described below, together with the clients; only one is under load at
a time. For each case the contestants take turns, one measurement each and then again, so that what disturbs the machine
disturbs all of them. A row is the median of its rounds, with the lowest and the highest beside it.

- **Servers**: three brokers on both sides. Raylog runs on a Ray of its own, started by `raylog.start()`, and the CPU
  time of all of Ray's processes counts as the server's. Kafka runs as three processes in KRaft mode, each broker and
  controller, with the heap and the flags of its own start script. It has run under load before anything counts: its
  virtual machine gets faster.
- **Every measurement begins alike**: what was written before is on disk first. Where a rate is measured, the pages
  of what earlier rounds of a case have written then leave the page cache, unless somebody reads them, and memory of a
  fixed size is touched and freed. A virtual machine that gives freed memory back to its host pays several times as
  much for a page the next time, so whoever makes the page cache grow would pay for having written more, or later, than
  others. In an experiment on a busy machine (1,000 B, one partition; the contestants in turn, the ways one after the
  other; 3 to 4 rounds each) the servers took, as medians, 1.5 µs of CPU a record (Raylog) and 0.9 (the prototype) while
  the cache grew to 9 GB, 4.2 and 3.8 from there to 12 GB, and 1.6 and 0.9 again when pages were given up before each
  measurement. Kafka took 9.9, 6.4 and 2.9, of which its virtual machine's own warming up cannot be told apart. What
  touching adds is within the noise (1.5, 0.8 and 2.5); it stays because first rounds have no pages to give up.
- **Idle replicas**: topics are deleted as soon as no later scenario of the run uses them, on every server alike, and
  what comes next waits until their processes have ended. Latency and small producers come first, while few replicas are
  there; what all servers take at rest is in a row of its own under latency. Kafka removes the files of a deleted topic
  after a second (`log.segment.delete.delay.ms`), and not after a minute as by default.
- **The bare prototype** takes turns with the others where a goal compares with it: the same values, seconds and
  warm-up, one connection, five batches on their way, each checked (CRC-32C) and appended to a file before it is
  acknowledged. Its batches are as large as everybody's (128 KiB) in one row and 1 MiB in the other.
- **Durability**: acknowledged means in the page cache on both sides (Kafka's default; Raylog's own is stricter), or on
  disk on both sides where a case says `flush.messages=1`. Redis syncs its file each second and has no replicas
  here; NATS syncs by time. `min.insync.replicas` is a majority on both sides.
- **Clients**: the same settings for all that know them: `linger.ms=5` (0 for latency, small producers and failover),
  `batch.size` of 128 KiB, as Kafka's clients need it for their best rate, 64 MiB of buffer, idempotence with
  `acks=all`.
  The values are random letters, handed over record by record; `send_batch` gets lists of up to 1,000. Consumers touch
  the value of every record; librdkafka may hold a million messages, since by default it rests when it has 100,000.
- **What counts**: a producer's time ends when the last record is acknowledged, and the server's end offsets must show
  exactly the records that the client has counted. A warm-up goes first and is left out. Kafka's Java tool reports its
  own steady state, which begins after 500,000 records or 128 MB, because its virtual machine, too, gets faster.
- **Latency** counts from the moment at which a record was due, not from when it was sent, so a stall shows in every
  record that it delays. Producer and consumer are two processes that read one clock. All servers are up meanwhile.
- **Growth**: the topics of all cases are there all the time and take turns, so what replicas at rest cost falls on all
  cases alike; it is measured by itself. A quick run grows to 4 GB only, and the goals of 20 GB stay open.
- **Time**: a quick run shares 465 s among its scenarios, and one that needs more has fewer rounds; a minute later the
  run is broken off, and what is missing is named above.
- **Ratios** in the column "Raylog is" compare with Raylog's first row, which is record by record like the others.

"""


def document(results: Results, pictures: list[Path]) -> str:
    """The page."""
    goals = verdicts(results)
    reached, measured = (sum(1 for goal in goals if goal.reached is is_so) for is_so in (True, False))
    parts = [
        HEAD,
        _cautions(results),
        "## Goals\n\n",
        f"Of {len(goals)} goals {reached} were reached in this run and {measured} were not",
        f"; {left} were not measured.\n\n" if (left := len(goals) - reached - measured) else ".\n\n",
        markdown(("goal", "found", "reached"), [(goal.goal, goal.found, said(goal)) for goal in goals]),
        "\n",
        NOTES.read_text(encoding="utf-8") + "\n" if NOTES.exists() else "",
        _left_out(results),
        "## Every measurement\n\n",
        as_markdown(results, _about(pictures)),
        "\n",
        METHOD,
        "## Machine, versions and settings\n\n",
        markdown(("what", "value"), [*results.machine.items(), *results.versions.items()]),
        "\n",
        markdown(("setting of the run", "value"), [(name, str(value)) for name, value in results.settings.items()]),
        _repeat(results),
    ]
    return "".join(parts)


def _about(pictures: list[Path]) -> dict[str, str]:
    """The text before a scenario's table: a sentence, and its plot."""
    drawn = {path.stem: f"![{path.stem}: medians and ranges](img/{path.name})\n" for path in pictures}
    said_of = {name: (run.__doc__ or "").partition("\n\n")[0].strip() + "\n" for name, run in SCENARIOS.items()}
    return {name: "\n".join(filter(None, (words, drawn.get(name)))) for name, words in said_of.items()}


def _cautions(results: Results) -> str:
    """What a reader has to know before the numbers."""
    load, cores = results.machine.get("load average at the beginning", "0"), results.machine.get("cores", "1")
    busy = BUSY.format(load=load, cores=cores) if float(load) > float(cores) / 2 else ""
    few = FEW.format(**results.settings) if results.settings.get("quick") else ""
    own = [name.removeprefix(OWN_RUN) for name in results.settings if name.startswith(OWN_RUN)]
    apart = f"Measured in a run of its own, whose settings are below: {'; '.join(own)}.\n\n" if own else ""
    return few + apart + busy


def _left_out(results: Results) -> str:
    lines = [f"- {what} was left out: {reason}.\n" for what, reason in results.left_out.items()]
    lines += [f"- Does not add up: {line}.\n" for line in results.miscounts()]
    return "".join([*lines, "\n"]) if lines else ""


def _repeat(results: Results) -> str:
    quick = " QUICK=1" if results.settings.get("quick") else ""
    return f"""
## How to repeat it

```bash
make bench{quick}
make bench BENCH_ARGS="--only growth --peers raylog,kafka"
python -m benchmarks --only produce,latency
python -m benchmarks.report.document benchmarks/results/STAMP/results.json
```

The second needs about twelve minutes and 45 GB of disk, which it gives back. Given several files, the last command
takes each scenario from the last of them that has it, and says so above.

Kafka's jars come by their Maven coordinates (`benchmarks/peers/kafka-pom.xml`) through the `mvn` of the machine, which
keeps to its own settings and mirrors; `java` must be 17 or newer. `nats-server` and `redis-server` are Debian's
packages. What is not there is left out, and the run says why.
"""


def main() -> None:
    """Write the page, its plots, and the JSON behind both."""
    if len(sys.argv) < 2:
        sys.exit("usage: python -m benchmarks.report.document RESULTS.json [RESULTS.json ...]")
    results = Results.merged([Results.read(Path(item)) for item in sys.argv[1:]])
    results.write(DOCS / "performance.json")
    pictures = draw(results, DOCS / "img")
    (DOCS / "performance.md").write_text(document(results, pictures), encoding="utf-8")
    print(f"Wrote docs/performance.md and {len(pictures)} pictures.")


if __name__ == "__main__":
    main()
