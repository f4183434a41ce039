"""Writes docs/performance.md, its plots and the JSON behind both from the results of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.goals import verdicts
from benchmarks.options import Parser
from benchmarks.report.plots import draw
from benchmarks.report.results import OWN_RUN, Results
from benchmarks.report.tables import as_markdown, markdown, yes_or_no
from benchmarks.scenarios.registry import SCENARIOS

DOCS = Path(__file__).resolve().parents[2] / "docs"
NOTES = Path(__file__).with_name("notes.md")
"""Written by hand: the causes of missed goals, from the profiles."""
HEAD = """\
# Performance

Raylog beside the alternatives on one machine, with every measured row, including those Raylog loses.
`python -m benchmarks document` writes this page from a run's results ([performance.json](performance.json)).

"""
BUSY = """\
Other work loaded the machine at the start (a load average of {load} on {cores} cores), which costs contestants with
many processes and threads most: the ratios are rough, and the absolute numbers low.

"""
FEW = """\
A quick run: {rounds} rounds of {seconds} s each, shorter workloads, and a part of the cases.

"""
METHOD = """\
## How it was measured

All servers run at the same time on the machine described below, together with the clients; only one is under load at
a time. In each case the contestants take turns, so that disturbances reach all of them. A row is the median of its
rounds, with the lowest and the highest beside it.

- **Servers**: three brokers on both sides. Raylog runs on a Ray of its own, started by `raylog.start()`; the CPU time
  of all of Ray's processes counts as the server's. Kafka runs as three processes in KRaft mode, each broker and
  controller, with the heap and the flags of its own start script, and under load before the first measurement.
- **State of the machine**: earlier writes are on disk before a measurement begins. Where a rate is measured, pages
  written by earlier rounds of the case leave the page cache first, unless a client reads them, and memory of a fixed
  size is touched and freed. The reason is the virtual machine, which pays several times as much for memory that it has
  returned to its host. In an experiment with 1,000 B and one partition Raylog's processes took, as medians, 1.5 µs of
  CPU a record while the cache grew to 9 GB, 4.2 from there to 12 GB, and 1.6 when pages were given up before each
  measurement (Kafka: 9.9, 6.4 and 2.9, including the warm-up of its virtual machine). Touching memory adds nothing
  beyond the noise (1.5 and 2.5); first rounds need it.
- **Idle replicas**: a topic is deleted after the last scenario that uses it, on every server, and the next scenario
  begins when its processes have ended. Latency and small producers come first, with few idle replicas; a row under
  latency shows what all servers take at rest. Kafka removes the files of a deleted topic after a second
  (`log.segment.delete.delay.ms`) instead of a minute.
- **Durability**: acknowledged means in the page cache on both sides (Kafka's default; Raylog's own is stricter), or on
  disk on both sides where a case says `flush.messages=1`. Redis syncs its file each second and has no replicas here;
  NATS syncs by time. `min.insync.replicas` is a majority on both sides.
- **Clients** have the same settings where they support them: `linger.ms=5` (0 for latency, small producers and
  failover), `batch.size` of 128 KiB, which Kafka's clients need for their best rate, 64 MiB of buffer, idempotence with
  `acks=all`. The values are random letters, passed record by record; `send_batch` gets lists of up to 1,000. Consumers
  touch the value of every record; librdkafka may hold a million messages instead of its default of 100,000.
- **Counts**: a producer's time ends when the last record is acknowledged, and the server's end offsets must show
  exactly the records that the client has counted. The warm-up is excluded. Kafka's Java tool reports its own steady
  state, which begins after 500,000 records or 128 MB.
- **Latency** counts from a record's due time, not from its send, so that a stall shows in every record that it delays.
  Producer and consumer are two processes that read one clock.
- **Growth**: the topics of all cases exist all the time and take turns, so that idle replicas cost all cases the same;
  this cost has its own row. A quick run grows to 4 GB, and the goals of 20 GB stay open.
- **Time**: a quick run shares 465 s among its scenarios; one that needs more has fewer rounds. The run ends a minute
  later at the latest, and names what is missing.
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
        markdown(("goal", "found", "reached"), [(goal.goal, goal.found, yes_or_no(goal)) for goal in goals]),
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
    summaries = {name: (run.__doc__ or "").partition("\n\n")[0].strip() + "\n" for name, run in SCENARIOS.items()}
    return {name: "\n".join(filter(None, (words, drawn.get(name)))) for name, words in summaries.items()}


def _cautions(results: Results) -> str:
    """What a reader has to know before the numbers."""
    load, cores = results.machine.get("load average at the beginning", "0"), results.machine.get("cores", "1")
    busy = BUSY.format(load=load, cores=cores) if float(load) > float(cores) / 2 else ""
    few = FEW.format(**results.settings) if results.settings.get("quick") else ""
    own = [name.removeprefix(OWN_RUN) for name in results.settings if name.startswith(OWN_RUN)]
    apart = f"Measured in separate runs, whose settings are below: {'; '.join(own)}.\n\n" if own else ""
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
python -m benchmarks document benchmarks/results/STAMP/results.json
```

The second command needs about twelve minutes and 45 GB of temporary disk space. Given several files, the last command
takes each scenario from the last file that has it, and names such scenarios above.

`python -m benchmarks rest --partitions 100,1000,10000` measures partitions at rest, beside one Kafka: creating them,
memory and CPU, listing them, a first record, a clean stop and the start after it; its table is in
[operations.md](operations.md#beside-kafka).

`python -m benchmarks pairs BEFORE NOW` compares two checkouts, each with its own `.venv`: rows of about a second in
turn, so that what else the machine does is the same for both; the one that waits is stopped. A cluster keeps the
speed of its start within some 4 per cent, so both are started several times, in both orders (`--starts`). With the
release before delays and queues, both compiled, 20 pairs on two cores, measured while the other dozed, what stands
now has 1.02 to 1.13 of its rates and 0.86 to 0.99 of its processor time in all eight rows.

`python -m benchmarks --help` lists what else there is, with an example of each.

`mvn` downloads Kafka's jars by their Maven coordinates (`benchmarks/peers/kafka-pom.xml`) with its own settings and
mirrors; `java` must be 17 or newer. `nats-server` and `redis-server` are Debian's packages. A missing server or client
is left out, with the reason.
"""


def main(given: Sequence[str]) -> int:
    """Write the page, its plots, and the JSON behind both."""
    parser = Parser("document", __doc__)
    about = "results.json of a run; of several, each scenario is taken from the last one that has it"
    parser.add_argument("results", nargs="+", type=Path, help=about)
    chosen = parser.parse_args(given)
    results = Results.merged([Results.read(path) for path in chosen.results])
    results.write(DOCS / "performance.json")
    pictures = draw(results, DOCS / "img")
    (DOCS / "performance.md").write_text(document(results, pictures), encoding="utf-8")
    print(f"Wrote docs/performance.md and {len(pictures)} pictures.")
    return 0
