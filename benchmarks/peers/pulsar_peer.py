"""Pulsar standalone from its jars: one broker and three bookies in one process, each message on all three bookies.

A message is acknowledged when two of them have it, in the page cache, as the other peers acknowledge. The process
listens on the loopback address alone.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

from benchmarks.optional import module, version_of
from benchmarks.peers.base import OneProcess
from benchmarks.peers.maven import server_jars, version_in
from benchmarks.peers.processes import ServerProcess, Unavailable, free_ports, listens

POM = Path(__file__).with_name("pulsar-pom.xml")
OPENED = (
    "java.base/java.nio", "java.base/java.lang", "java.base/sun.net", "java.base/sun.nio.ch",
    "java.base/jdk.internal.misc", "java.base/jdk.internal.platform", "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)  # fmt: skip
"""Packages of Java that Pulsar's own start script opens to it."""
JVM = (
    "-Xms512m", "-Xmx2g", "-XX:MaxDirectMemorySize=4g", "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dlog4j2.level=WARN", *(f"--add-opens={package}=ALL-UNNAMED" for package in OPENED),
)  # fmt: skip
SETTINGS = """\
clusterName=bench
brokerServicePort={port}
webServicePort={web}
bindAddress=127.0.0.1
advertisedAddress=127.0.0.1
listeningInterface=lo
allowLoopback=true
httpServerEnabled=false
managedLedgerDefaultEnsembleSize={bookies}
managedLedgerDefaultWriteQuorum={bookies}
managedLedgerDefaultAckQuorum={quorum}
journalSyncData=false
defaultRetentionTimeInMinutes=-1
defaultRetentionSizeInMB=-1
delayedDeliveryTickTimeMillis={tick_ms}
isDelayedDeliveryDeliverAtTimeStrict=true
acknowledgmentAtBatchIndexLevelEnabled=true
"""
"""Topics keep what was acknowledged, as a log does, so that each round can work one off. `Strict`, because by default
Pulsar may deliver a tick too early; `BatchIndex`, because by default one message that is not acknowledged brings its
whole batch again."""
BOOKIES: Final = 3
QUORUM: Final = 2
TICK_MS: Final = 1000
"""Pulsar's own default."""
START_TIMEOUT_S: Final = 120.0
ANSWER_TIMEOUT_S: Final = 30.0


class Pulsar(OneProcess):
    """One process."""

    name = "pulsar"

    def __init__(self, root: Path, cache: Path) -> None:
        self._root = root / "pulsar"
        self._cache = cache
        self._port, self._web = free_ports(2)

    def start(self) -> None:
        """Start it, and wait until its namespace of topics is there."""
        module("pulsar")
        found = server_jars(self._cache, POM, "pulsar", "Pulsar")
        if self._server is None:
            self._root.mkdir(parents=True)
            self._server = ServerProcess("Pulsar", self._command(found), self._root / "standalone.out", cwd=self._root)
        self._server.start()
        self._server.wait_until(self._serves, START_TIMEOUT_S)

    def _command(self, jars: Path) -> list[str]:
        """The start of the server, whose settings are written here."""
        settings = self._root / "standalone.conf"
        text = SETTINGS.format(port=self._port, web=self._web, bookies=BOOKIES, quorum=QUORUM, tick_ms=TICK_MS)
        settings.write_text(text, encoding="utf-8")
        return [
            "java", *JVM, "-cp", f"{jars}/*", "org.apache.pulsar.PulsarStandaloneStarter",
            "--config", str(settings), "--no-functions-worker", "--no-stream-storage", "--num-bookies", str(BOOKIES),
            "--metadata-dir", str(self._root / "metadata"), "--bookkeeper-dir", str(self._root / "bookies"),
        ]  # fmt: skip

    def _serves(self) -> bool:
        """Whether it takes clients, and has made its namespace, which comes last."""
        if not (listens(self._port) and listens(self._web)):
            return False
        try:
            return b"public/default" in self._request("GET", "namespaces/public")
        except Unavailable:
            return False

    def _request(self, method: str, path: str) -> bytes:
        """A request to its interface for administrators. Raises Unavailable when it is not granted."""
        url = f"http://127.0.0.1:{self._web}/admin/v2/{path}"
        request = urllib.request.Request(url, method=method, headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S) as answer:
                body: bytes = answer.read()
                return body
        except (OSError, urllib.error.URLError) as error:
            raise Unavailable(f"Pulsar did not grant {method} {path}: {error}") from error

    def create_topic(self, name: str, partitions: int, replication: int, *, fsync: bool) -> None:
        """Create a topic without partitions, which each subscription makes a queue."""
        if replication != BOOKIES or partitions > 1 or fsync:
            raise Unavailable(f"Pulsar is measured with topics of one partition on {BOOKIES} bookies")
        self._request("PUT", f"persistent/public/default/{name}")

    def delete_topic(self, name: str) -> None:
        """Delete it, with its subscriptions."""
        self._request("DELETE", f"persistent/public/default/{name}?force=true")

    def describe(self) -> dict[str, str]:
        """Version and settings."""
        return {
            "version": version_in(POM, "pulsar"),
            "client": f"pulsar-client {version_of('pulsar-client')}",
            "processes": f"1 with a broker and {BOOKIES} bookies, of which {QUORUM} answer first",
            "delayedDeliveryTickTimeMillis": str(TICK_MS),
        }
