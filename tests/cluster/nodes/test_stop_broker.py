"""One broker of a real cluster is stopped and started by the command line, while a producer and a consumer run."""

import json
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Self

import pytest

import raylog
from tests.cluster.commands.test_cli import Shell, shell
from tests.cluster.ray_support import actor, own_ray

__all__ = ["shell"]

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(400)]


def status(shell: Shell, expect: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shell.run("status", "--json", expect=expect))
    return found


def actors(shell: Shell) -> list[str]:
    """The names of the cluster's actors, queried from outside."""
    import sys

    program = (
        "import json; from raylog.cli import ray_node; from pathlib import Path\n"
        "ray_node.join(None, Path('raylog-data').absolute())\n"
        "from raylog.launch.stopping import actor_names; print(json.dumps(actor_names()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=shell.folder,
        env=shell.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    names: list[str] = json.loads(done.stdout.splitlines()[-1])
    return names


class Load:
    """Produces and consumes in threads until the end is requested; notes the slowest acknowledgement."""

    def __init__(self, **reach: Any) -> None:
        self.reach = reach
        self.sent: list[bytes] = []
        self.read: list[bytes] = []
        self.slowest_s = 0.0
        self.failures: list[BaseException] = []
        self._done = threading.Event()
        self._all_sent = threading.Event()
        self._threads = [threading.Thread(target=self._guard, args=(work,)) for work in (self._produce, self._consume)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(60)

    def _guard(self, work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except BaseException as error:  # the test has to see any failure
            self.failures.append(error)

    def _produce(self) -> None:
        with raylog.Producer(acks="all", **self.reach) as producer:
            while not self._done.is_set():
                value = b"%d" % len(self.sent)
                begun = time.monotonic()
                producer.send("flights", value).result(60)
                self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
                self.sent.append(value)
        self._all_sent.set()

    def _consume(self) -> None:
        with raylog.Consumer("flights", group_id="g", auto_offset_reset="earliest", **self.reach) as consumer:
            # Not `_done`: then the last record may still be in flight, and is in neither list yet.
            while not (self._all_sent.is_set() or self.failures) or len(self.read) < len(self.sent):
                for records in consumer.poll(timeout_ms=200).values():
                    self.read.extend(record.value for record in records)


def stop_once_possible(shell: Shell, broker: int) -> str:
    """Stop a broker; the command refuses it while the replicas that the load has woken are still starting."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return shell.run("stop", "--broker", str(broker))
        except AssertionError as refused:
            if "no replica could lead" not in str(refused) or time.monotonic() >= deadline:
                raise


def test_a_broker_stops_and_starts_by_command_and_no_request_fails(shell: Shell) -> None:
    shell.run("start", "--address", "local", "--brokers", "3")
    shell.run("topic", "create", "flights", "--partitions", "3", "--replication-factor", "3")
    shell.run("topic", "create", "single", "--partitions", "1", "--replication-factor", "1")
    deadline = time.monotonic() + 60
    before = status(shell)
    while any(len(flight["isr"]) < 3 for flight in before["topics"]["flights"]):
        assert time.monotonic() < deadline, "the replicas that came last are in sync, too"
        before = status(shell)
    [alone] = before["topics"]["single"]
    victim = alone["leader"] % 3 + 1
    brokers = {broker["broker"]: broker for broker in before["brokers"]}
    reach = ",".join(f"{item['host']}:{item['port']}" for number, item in brokers.items() if number != victim)
    secret = (shell.folder / "raylog-data" / "secret").read_text().strip()

    with Load(bootstrap=reach, secret=secret) as load:
        deadline = time.monotonic() + 60
        while len(load.sent) < 50 and not load.failures:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        begun = time.monotonic()
        output = stop_once_possible(shell, victim)
        took_s = time.monotonic() - begun
        assert f"Broker {victim} has stopped" in output
        assert not [name for name in actors(shell) if f"broker-{victim}" in name]
        found = status(shell)
        assert found["stopped_brokers"] == [victim]
        assert found["offline_brokers"] == []
        assert found["offline_partitions"] == []
        assert "stopped" in shell.run("status")
        assert f"Broker {victim} runs." in shell.run("start", "--broker", str(victim))
        after = status(shell)
        assert after["stopped_brokers"] == []
        assert all(victim in flight["isr"] for flight in after["topics"]["flights"])
    assert load.failures == []
    assert sorted(load.read) == sorted(load.sent)
    print(f"stop took {took_s:.1f} s; slowest acknowledgement {load.slowest_s * 1000:.0f} ms of {len(load.sent)}")

    shell.run("topic", "elect", "--all")
    assert [flight["leader"] for flight in status(shell)["topics"]["flights"]] == [
        flight["replicas"][0] for flight in after["topics"]["flights"]
    ]

    refused = shell.run("stop", "--broker", str(alone["leader"]), expect=1)
    assert "no replica could lead single-0" in refused
    assert "--force" in refused
    assert "There is no broker 9; the brokers of this cluster are: 1, 2, 3" in shell.run(
        "stop", "--broker", "9", expect=1
    )
    shell.run("stop", "--broker", str(alone["leader"]), "--force")
    shell.run("status", expect=1)
    shell.run("start")
    assert status(shell)["stopped_brokers"] == []


def test_a_stopped_broker_starts_without_which_there_is_no_majority(tmp_path: Path) -> None:
    """Another voter is lost meanwhile: nothing is committed, not even that the broker takes part again."""
    import ray

    with own_ray(), raylog.start(tmp_path, brokers=3) as cluster:
        cluster.stop_broker(2)
        ray.kill(actor("broker-1"), no_restart=True)
        cluster.start_broker(2, timeout_s=30)
        assert [row["stopped"] for row in cluster.status()["brokers"] if row["broker"] == 2] == [False]
        with raylog.Admin() as admin:
            admin.create_topic("flights", 1, 2)
