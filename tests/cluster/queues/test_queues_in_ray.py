"""Queues in a real Ray with three brokers: killed leaders, the command line, and a Ray Serve application.

They run in file order, on the cluster that stays; each has a topic of its own.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import raylog
from raylog.cli.app import cli
from tests.cluster.ray_support import kill_leaders
from tests.waiting import wait_for

RECORDS = 2_000
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def has_grown(seen: Counter[bytes], before: int) -> bool:
    """Whether there is more than before, or everything."""
    return seen.total() > before or len(seen) == RECORDS


def is_worked_off(admin: raylog.Admin, group: str) -> bool:
    """Whether nothing is left to hand out, or held: a refused acknowledgement is followed by another hand-out."""
    try:
        return all(part.backlog == 0 for part in admin.describe_queue(group))
    except raylog.RaylogError:
        return False  # a leader is being replaced


def test_no_acknowledged_record_comes_again_when_leaders_are_killed(admin: raylog.Admin) -> None:
    admin.create_topic("jobs", partitions=2, replication_factor=3)
    values = [b"%d" % number for number in range(RECORDS)]
    with raylog.Producer(linger_ms=5) as producer:
        for number, value in enumerate(values):
            producer.send("jobs", value, key=str(number % 50).encode())
        producer.flush()
    acknowledged: Counter[bytes] = Counter()
    answered: dict[bytes, float] = {}
    lock, is_over = threading.Lock(), threading.Event()

    def work() -> None:
        with raylog.QueueConsumer("jobs", group_id="workers", consumer_timeout_ms=15_000, max_poll_records=50) as queue:
            while not is_over.is_set():
                batch = queue.poll(timeout_ms=500, max_records=50)
                with lock:  # what an earlier leader has handed out may wait here while another member works on it
                    again = [each.value for each in batch if answered.get(each.value, math.inf) < each.handed_at]
                assert not again, again
                held = [message for message in batch if message.is_locked]  # others ran out
                try:
                    for message in held:
                        message.ack()
                    queue.commit()
                except raylog.InvalidRecordState:
                    continue
                with lock:
                    acknowledged.update(message.value for message in held)
                    answered.update((message.value, time.time()) for message in held)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(acknowledged) > 300, what="work has begun", timeout_s=60)
    for topic in ("jobs", "__share_state", "jobs"):
        before = acknowledged.total()
        assert kill_leaders(admin, topic) > 0
        wait_for(partial(has_grown, acknowledged, before), what=f"work goes on without {topic}", timeout_s=60)
    wait_for(lambda: is_worked_off(admin, "workers"), what="every record is acknowledged", timeout_s=100)
    is_over.set()
    for thread in threads:
        thread.join(60)
    assert set(acknowledged) <= set(values)


def test_the_command_line_shows_and_resets_queues(admin: raylog.Admin, tmp_path: Path) -> None:
    admin.create_topic("shown", partitions=1, replication_factor=3)
    with raylog.Producer() as producer:
        for number in range(3):
            producer.send("shown", b"%d" % number).result(30)
    address = admin._asynchronous.cluster.address
    assert address is not None
    assert isinstance(address.secret, bytes)
    bootstrap = ",".join(f"{broker.host}:{broker.port}" for broker in admin.describe_cluster().brokers)
    environment = {"RAYLOG_SECRET": address.secret.hex()}

    def run(*words: str) -> str:
        done = CliRunner().invoke(cli, ["queue", *words, "--bootstrap", bootstrap], env=environment)
        assert done.exit_code == 0, done.output
        return done.output

    with raylog.QueueConsumer("shown", group_id="viewers", max_poll_records=3) as queue:
        done, failed, held = (queue.getone(timeout_ms=20_000) for _ in range(3))
        assert done is not None
        assert failed is not None
        assert held is not None
        done.ack()
        failed.retry(delay="10m")
        queue.commit()
        assert "viewers" in run("list")
        peeked = run("peek", "viewers")
        assert "waiting" in peeked
        assert "acquired" in peeked
        assert "shown-0" in run("describe", "viewers")
        with pytest.raises(raylog.NonEmptyGroup):
            admin.reset_queue("viewers", "shown", to="earliest")
    assert run("reset", "viewers", "shown", "--to", "earliest").endswith("offset 0.\n")
    with raylog.QueueConsumer("shown", group_id="viewers") as queue:
        assert [message.value for message in queue.poll(20_000)] == [b"0", b"1", b"2"]


def test_serves_task_consumers_need_no_other_broker(three_brokers: raylog.Cluster) -> None:
    serve: Any = pytest.importorskip("ray.serve", reason="needs ray[serve]", exc_type=ImportError)
    from ray.serve.schema import TaskProcessorConfig
    from ray.serve.task_consumer import instantiate_adapter_from_config, task_consumer, task_handler

    config = TaskProcessorConfig(
        queue_name="tasks",
        adapter="raylog.serve_tasks.RaylogTaskProcessorAdapter",
        adapter_config={"partitions": 2, "retry": "50ms 50ms 50ms"},
        max_retries=2,
        failed_task_queue_name="tasks-failed",
    )

    @serve.deployment(num_replicas=1, ray_actor_options={"num_cpus": 0})
    @task_consumer(task_processor_config=config)
    class Sums:
        @task_handler(name="add")
        def add(self, one: int, other: int) -> int:
            return one + other

        @task_handler(name="fail")
        def fail(self) -> None:
            raise ValueError("never")

    application: Any = Sums
    serve.run(application.bind(), name="sums", route_prefix=None)
    try:
        adapter: Any = instantiate_adapter_from_config(task_processor_config=config)
        sums = [adapter.enqueue_task_sync("add", args=[number, 1]) for number in range(20)]
        failing = adapter.enqueue_task_sync("fail")
        wait_for(
            lambda: all(adapter.get_task_status_sync(task.id).status == "SUCCESS" for task in sums),
            what="the tasks are done",
            timeout_s=60,
        )
        assert [adapter.get_task_status_sync(task.id).result for task in sums] == list(range(1, 21))
        wait_for(
            lambda: adapter.get_task_status_sync(failing.id).status == "FAILURE", what="a task fails", timeout_s=60
        )
        with raylog.Consumer("tasks-failed", auto_offset_reset="earliest") as reader:
            wait_for(lambda: bool(reader.poll(500)), what="it is a dead letter", timeout_s=60)
        adapter.stop_consumer()
    finally:
        serve.shutdown()
