"""Kafka's own perf tools, run as processes: ProducerPerformance and ConsumerPerformance."""

from __future__ import annotations

import re
import resource
import subprocess
from collections.abc import Sequence

from benchmarks.job import Job, Outcome
from benchmarks.peers.processes import Unavailable, cpu_seconds

TIMEOUT_S = 180
RUNS = "org.apache.kafka.tools."
STEADY = re.compile(r"(\d+) steady state records sent, ([\d.]+) records/sec")
WARM_RECORDS, WARM_BYTES = 500_000, 128 * 10**6
"""After so much, whichever is first, the JVM has compiled the hot code; less is not its best."""
_rates: dict[tuple[int, str, str, str], float] = {}
"""Records per second of earlier measurements, by size, acks, compression and topic: they give the count for the wanted
time."""


def _run(job: Job, main: str, arguments: Sequence[str]) -> str:
    command = [
        "java", "-Xms512m", "-Xmx1g", "-XX:+UseG1GC", f"-Dlog4j2.configurationFile={job.address['log4j']}",
        "-cp", f"{job.address['jars']}/*", RUNS + main, *arguments,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise Unavailable(f"{main} failed: {(done.stderr or done.stdout)[-300:]}")
    return done.stdout


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def produce(job: Job) -> Outcome:
    """Send for the job's time or longer; the rate is the tool's own, without its warm-up."""
    key = (job.size, job.acks, job.compression, job.topic)
    warmup = min(WARM_RECORDS, WARM_BYTES // job.size)
    wanted = max(warmup, int(_rates.get(key, 0.0) * job.seconds))
    outcome = _produce(job, warmup + wanted, warmup)
    _rates[key] = outcome["rate"]
    return outcome


def _produce(job: Job, count: int, warmup: int) -> Outcome:
    properties = [
        f"bootstrap.servers={job.address['bootstrap']}", f"acks={job.acks}", f"linger.ms={job.linger_ms}",
        f"batch.size={job.batch_bytes}", f"compression.type={job.compression}", "buffer.memory=67108864",
        f"enable.idempotence={'true' if job.acks == 'all' else 'false'}",
    ]  # fmt: skip
    server_s, client_s = cpu_seconds(job.server_pids), _children_cpu_s()
    arguments = ["--topic", job.topic, "--num-records", str(count), "--record-size", str(job.size)]
    arguments += ["--throughput", "-1", "--warmup-records", str(warmup), "--producer-props", *properties]
    output = _run(job, "ProducerPerformance", arguments)
    found = STEADY.search(output)
    if found is None:
        raise Unavailable(f"ProducerPerformance printed no line for its steady state: {output[-300:]}")
    rate, records = float(found[2]), int(found[1])
    # Its CPU cannot be separated from that of its warm-up, so both are spread over all its records.
    share = records / count
    return {
        "records": records,
        "bytes": records * job.size,
        "seconds": records / rate,
        "rate": rate,
        "client_cpu_s": (_children_cpu_s() - client_s) * share,
        "server_cpu_s": (cpu_seconds(job.server_pids) - server_s) * share,
        "stored": records,
    }


def consume(job: Job) -> Outcome:
    """Read the topic once; the rate is the tool's own for fetching, without joining the group."""
    server_s, client_s = cpu_seconds(job.server_pids), _children_cpu_s()
    arguments = ["--topic", job.topic, "--num-records", str(job.count), "--bootstrap-server", job.address["bootstrap"]]
    output = _run(job, "ConsumerPerformance", [*arguments, "--hide-header", "--timeout", "20000"])
    row = next((line.split(", ") for line in reversed(output.splitlines()) if line.count(", ") >= 9), None)
    if row is None:
        raise Unavailable(f"ConsumerPerformance gave no numbers: {output[-300:]}")
    records, fetch_ms = int(row[4]), float(row[7])
    return {
        "records": records,
        "bytes": records * job.size,
        "seconds": fetch_ms / 1000,
        "rate": float(row[9]),
        "client_cpu_s": _children_cpu_s() - client_s,
        "server_cpu_s": cpu_seconds(job.server_pids) - server_s,
        "stored": job.count,
        "once": records,
    }
