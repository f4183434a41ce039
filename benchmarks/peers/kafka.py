"""Apache Kafka in KRaft mode: one or three processes, each broker and controller at once, with Kafka's own defaults."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.optional import module
from benchmarks.peers.maven import fetched, version_in
from benchmarks.peers.processes import STOP_TIMEOUT_S, ServerProcess, Unavailable, free_ports, listens

POM = Path(__file__).with_name("kafka-pom.xml")
CLUSTER_ID = "cmF5bG9nLWJlbmNobWFyaw"
HEAP = ("-Xms512m", "-Xmx1g")
JVM = (
    "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true",
)  # fmt: skip
"""The JVM options of Kafka's own start script, with its default heap."""
START_TIMEOUT_S = 90.0
DELETE_DELAY_MS = 1_000
"""Files of deleted topics are removed after this time instead of a minute, before other servers are measured."""
NEVER = str(2**63 - 1)
LOG4J = """\
Configuration:
  status: error
  Appenders: {Console: {name: out, target: SYSTEM_OUT, PatternLayout: {pattern: "%d %p %c %m%n"}}}
  Loggers: {Root: {level: warn, AppenderRef: {ref: out}}}
"""


def version() -> str:
    """The version of Kafka in the list of jars."""
    return version_in(POM, "kafka")


def topic_config(replication: int, *, fsync: bool) -> dict[str, str]:
    """A topic's settings, with acknowledgements from the page cache, or from the disk."""
    return {"flush.messages": "1" if fsync else NEVER, "min.insync.replicas": str(replication // 2 + 1)}


class Kafka:
    """A Kafka cluster on this machine."""

    name = "kafka"

    def __init__(self, root: Path, cache: Path, brokers: int, *, start_timeout_s: float = START_TIMEOUT_S) -> None:
        self._root = root / "kafka"
        self._start_timeout_s = start_timeout_s
        self._cache = cache
        self._count = brokers
        self._ports = free_ports(2 * brokers)
        self._brokers: list[ServerProcess] = []
        self._admin_client: Any = None
        self.jars = Path()

    def start(self) -> None:
        """Format the directories the first time, start the brokers and wait until they serve. Raises Unavailable."""
        module("confluent_kafka")  # used to create topics
        if shutil.which("java") is None:
            raise Unavailable("there is no java on the path: install a Java runtime of version 17 or newer")
        self.jars = fetched(self._cache / f"kafka-{version()}", POM, "Kafka's jars")
        if not self._brokers:
            self._root.mkdir(parents=True)
            (self._root / "log4j2.yaml").write_text(LOG4J, encoding="utf-8")
            for number in range(self._count):
                self._format(number)
        for broker in self._brokers:
            broker.start()
        self._wait()

    def runs(self) -> bool:
        """Whether all brokers run."""
        return all(broker.runs() for broker in self._brokers)

    def _wait(self) -> None:
        for number, broker in enumerate(self._brokers):
            broker.wait_until(lambda number=number: listens(self._ports[2 * number]), self._start_timeout_s)  # type: ignore[misc]
        deadline_s = time.monotonic() + self._start_timeout_s
        while self._brokers_online() < self._count:
            if time.monotonic() > deadline_s:
                raise Unavailable(f"not all brokers registered within {self._start_timeout_s:.0f} s")
            time.sleep(0.1)

    def _brokers_online(self) -> int:
        try:
            return len(self._admin().list_topics(timeout=10).brokers)
        except module("confluent_kafka").KafkaException:  # while the first of them elect a controller
            return 0

    def _format(self, number: int) -> None:
        folder = self._root / f"broker-{number + 1}"
        file = self._root / f"broker-{number + 1}.properties"
        voters = ",".join(f"{item + 1}@127.0.0.1:{self._ports[2 * item + 1]}" for item in range(self._count))
        internal = min(3, self._count)
        here, control = self._ports[2 * number], self._ports[2 * number + 1]
        lines = [
            f"node.id={number + 1}", "process.roles=broker,controller", f"controller.quorum.voters={voters}",
            f"listeners=PLAINTEXT://127.0.0.1:{here},CONTROLLER://127.0.0.1:{control}",
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{here}", "controller.listener.names=CONTROLLER",
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT", f"log.dirs={folder}",
            f"offsets.topic.replication.factor={internal}", f"transaction.state.log.replication.factor={internal}",
            f"transaction.state.log.min.isr={max(1, internal - 1)}", "offsets.topic.num.partitions=4",
            f"share.coordinator.state.topic.replication.factor={internal}",
            f"share.coordinator.state.topic.min.isr={max(1, internal - 1)}",
            "share.coordinator.state.topic.num.partitions=4",
            "auto.create.topics.enable=false", f"log.segment.delete.delay.ms={DELETE_DELAY_MS}",
        ]  # fmt: skip
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        formatted = subprocess.run(
            self.java("kafka.tools.StorageTool", ["format", "-t", CLUSTER_ID, "-c", str(file)]),
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        if formatted.returncode:
            raise Unavailable(f"Kafka's directory could not be formatted: {formatted.stderr[-300:]}")
        command = self.java("kafka.Kafka", [str(file)], [*HEAP, *JVM])
        self._brokers.append(
            ServerProcess(f"Kafka broker {number + 1}", command, self._root / f"broker-{number + 1}.out")
        )

    def java(self, main: str, arguments: Sequence[str], options: Sequence[str] = ()) -> list[str]:
        """The command that runs a class of Kafka's jars."""
        logging = f"-Dlog4j2.configurationFile={self._root / 'log4j2.yaml'}"
        return ["java", *options, logging, "-cp", f"{self.jars}/*", main, *arguments]

    def _admin(self) -> Any:
        if self._admin_client is None:
            self._admin_client = module("confluent_kafka.admin").AdminClient({"bootstrap.servers": self.bootstrap()})
        return self._admin_client

    def bootstrap(self) -> str:
        """The brokers' addresses."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports[::2])

    def address(self) -> dict[str, str]:
        """The connection settings of a client process."""
        return {"bootstrap": self.bootstrap(), "jars": str(self.jars), "log4j": str(self._root / "log4j2.yaml")}

    def create_topic(self, name: str, partitions: int, replication: int, *, fsync: bool) -> None:
        """Create a topic; with `fsync` acknowledged records are on disk (flush.messages=1)."""
        topic = module("confluent_kafka.admin").NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=replication,
            config=topic_config(replication, fsync=fsync),
        )
        with self._kafka_errors():
            self._admin().create_topics([topic])[name].result(30)
        self._leaders(name, partitions)

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        with self._kafka_errors():
            self._admin().delete_topics([name])[name].result(30)

    @contextlib.contextmanager
    def _kafka_errors(self) -> Iterator[None]:
        """Raise Kafka's refusals as Unavailable, with Kafka's message."""
        try:
            yield
        except module("confluent_kafka").KafkaException as error:
            raise Unavailable(f"Kafka reported: {error}") from error

    def _leaders(self, topic: str, count: int) -> list[int]:
        """The leaders of the first partitions, as soon as each has one."""
        deadline_s = time.monotonic() + 30
        with self._kafka_errors():
            while time.monotonic() < deadline_s:
                found = self._admin().list_topics(topic, timeout=10).topics[topic].partitions
                leaders = [found[item].leader for item in range(count) if item in found]
                if len(leaders) == count and all(leader > 0 for leader in leaders):
                    return leaders
                time.sleep(0.01)
        raise Unavailable(f"not every partition of {topic} has a leader")

    def pids(self) -> list[int]:
        """The server's processes."""
        return [broker.pid for broker in self._brokers]

    def replica_pids(self) -> list[int]:
        """The processes that hold replicas, for their memory."""
        return self.pids()

    def kill_leader(self, topic: str) -> None:
        """Kill the broker that leads the topic's partition 0."""
        with self._kafka_errors():
            self._brokers[self._leaders(topic, 1)[0] - 1].kill()

    def heal(self) -> None:
        """Restart the killed broker, and wait until it serves."""
        for broker in self._brokers:
            try:
                _ = broker.pid
            except Unavailable:
                broker.start()
        self._wait()

    def folder(self) -> Path:
        """The folders of the logs."""
        return self._root

    def stop(self) -> None:
        """Stop the brokers; data stays until the run's folder is removed."""
        with contextlib.suppress(Unavailable):
            self.stop_within(STOP_TIMEOUT_S)

    def stop_within(self, timeout_s: float) -> None:
        """As `stop`, with its own timeout; raises Unavailable when a broker had to be killed."""
        self._admin_client = None  # it would try to connect until the next start
        for broker in self._brokers:
            broker.terminate()
        deadline_s = time.monotonic() + timeout_s
        killed: list[str] = []
        for broker in self._brokers:
            try:
                broker.stop_within(max(0.0, deadline_s - time.monotonic()))
            except Unavailable as error:
                killed.append(str(error))
        if killed:
            raise Unavailable("; ".join(killed))

    def describe(self) -> dict[str, str]:
        """Version and settings, for the record."""
        return {
            "version": version(),
            "processes": f"{self._count}, each broker and controller",
            "virtual machine": " ".join((*HEAP, *JVM[:2])),
        }
