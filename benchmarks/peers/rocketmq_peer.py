"""RocketMQ 5: one broker from its jars, with timer messages. Clients get its address: it needs no name server."""

from __future__ import annotations

from pathlib import Path

from benchmarks.clients import rocketmq_client
from benchmarks.peers.base import OneProcess
from benchmarks.peers.maven import server_jars, version_in
from benchmarks.peers.processes import ServerProcess, Unavailable, free_ports, listens

POM = Path(__file__).with_name("rocketmq-pom.xml")
JVM = (
    "-Xms512m", "-Xmx1g", "-XX:MaxDirectMemorySize=1g", "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)  # fmt: skip
SETTINGS = """\
brokerClusterName=bench
brokerName=bench
brokerId=0
brokerIP1=127.0.0.1
listenPort={port}
haListenPort={replicas}
storePathRootDir={folder}/store
storePathCommitLog={folder}/store/commitlog
mappedFileSizeCommitLog=268435456
flushDiskType=ASYNC_FLUSH
timerWheelEnable=true
waitTimeMillsInSendQueue=10000
timerPrecisionMs={precision_ms}
"""
PRECISION_MS = 1000
"""RocketMQ's own default."""
START_TIMEOUT_S = 90.0


def version() -> str:
    """The version in the list of jars."""
    return version_in(POM, "rocketmq")


class RocketMq(OneProcess):
    """One broker."""

    name = "rocketmq"

    def __init__(self, root: Path, cache: Path) -> None:
        self._root = root / "rocketmq"
        self._cache = cache
        self._port = 0

    def start(self) -> None:
        """Start it."""
        found = server_jars(self._cache, POM, "rocketmq", "RocketMQ")
        if self._server is None:
            (self._root / "home" / "conf").mkdir(parents=True)
            self._port, replicas = free_ports(2)
            settings = SETTINGS.format(port=self._port, replicas=replicas, folder=self._root, precision_ms=PRECISION_MS)
            (self._root / "broker.conf").write_text(settings, encoding="utf-8")
            command = [
                "java", *JVM, f"-Duser.home={self._root}", "-cp", f"{found}/*",
                "org.apache.rocketmq.broker.BrokerStartup", "-c", str(self._root / "broker.conf"),
            ]  # fmt: skip
            environment = {"ROCKETMQ_HOME": str(self._root / "home")}
            self._server = ServerProcess(
                "RocketMQ's broker", command, self._root / "broker.out", environment=environment
            )
        self._server.start()
        self._server.wait_until(lambda: listens(self._port), START_TIMEOUT_S)

    def create_topic(self, name: str, partitions: int, replication: int, *, fsync: bool) -> None:
        """Create a topic with one queue."""
        if replication > 1 or partitions > 1 or fsync:
            raise Unavailable("RocketMQ is measured with one broker and one queue")
        rocketmq_client.create_topic(self._port, name)

    def delete_topic(self, name: str) -> None:
        """Delete it."""
        rocketmq_client.delete_topic(self._port, name)

    def describe(self) -> dict[str, str]:
        """Version and settings."""
        return {"version": version(), "processes": "1 broker", "timerPrecisionMs": str(PRECISION_MS)}
