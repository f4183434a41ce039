"""Ray Serve's task consumers on a Raylog queue: no Redis and no RabbitMQ beside the cluster.

    TaskProcessorConfig(
        queue_name="resize", adapter="raylog.serve_tasks.RaylogTaskProcessorAdapter", adapter_config={}, max_retries=3,
        failed_task_queue_name="resize-failed",
    )

A task is a record of the topic `queue_name`. Its outcome is a record of the compacted topic `<queue_name>.results`,
with the task's id as key, kept for `results_ms`. May touch: the network through the clients, threads.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from ray.serve.schema import TaskProcessorAdapter, TaskProcessorConfig, TaskResult

from raylog.base.errors import InvalidConfig, RaylogError, TopicAlreadyExists, did_you_mean
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import Admin
from raylog.client.cluster.credentials import CredentialFile
from raylog.client.consumer.consumer import Consumer
from raylog.client.producer.producer import Producer
from raylog.client.queues.consumer import QueueConsumer, QueueMessage, Reject

PENDING: Final = "PENDING"
SUCCESS: Final = "SUCCESS"
FAILURE: Final = "FAILURE"
REVOKED: Final = "REVOKED"
KEYS: Final = (
    "bootstrap",
    "secret_file",
    "token_file",
    "group_id",
    "partitions",
    "replication_factor",
    "lock",
    "retry",
    "results_ms",
)
RESULTS_MS: Final = 7 * 86_400_000
SEND_TIMEOUT_S: Final = 30.0
RETRY: Final = "exponential(1s, 2, 1m, 0.2)"


class _Task(msgspec.Struct, array_like=True):
    id: str
    name: str
    args: list[Any]
    kwargs: dict[str, Any]
    created_s: float


class _Outcome(msgspec.Struct, array_like=True):
    status: str
    created_s: float
    result: Any = None


def _where(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the clients, which read the files by themselves. Raises InvalidConfig for a bad file."""
    found = {name: given[name] for name in ("bootstrap", "secret_file", "token_file") if given.get(name) is not None}
    for name in found.keys() - {"bootstrap"}:
        try:
            CredentialFile(found[name], is_token=name == "token_file")
        except InvalidConfig as error:
            raise InvalidConfig(f"In adapter_config: {error.message}") from None
    return found


class Outcomes(dict[str, _Outcome]):
    """The outcomes of tasks by their ids; outcomes of older records are forgotten. Pure."""

    def __init__(self, kept_ms: int) -> None:
        """`kept_ms`: how long an outcome is kept after its record's timestamp."""
        super().__init__()
        self.kept_ms = kept_ms
        self._times: OrderedDict[str, float] = OrderedDict()

    def add(self, task_id: str, outcome: _Outcome, at_ms: float) -> None:
        """Take in an outcome whose record has this timestamp (ms since 1970)."""
        self[task_id] = outcome
        self._times[task_id] = at_ms
        self._times.move_to_end(task_id)

    def forget(self, now_ms: float) -> None:
        """Drop the outcomes that are too old by now."""
        while self._times and next(iter(self._times.values())) <= now_ms - self.kept_ms:
            task_id, _ = self._times.popitem(last=False)
            del self[task_id]


def _results_ms(given: Mapping[str, Any]) -> int:
    """How long outcomes are kept. Raises InvalidConfig."""
    kept = given.get("results_ms", RESULTS_MS)
    if not isinstance(kept, int) or isinstance(kept, bool) or kept < 1:
        raise InvalidConfig(f"results_ms of adapter_config is a number of milliseconds from 1 on, not {kept!r}.")
    return kept


class RaylogTaskProcessorAdapter(TaskProcessorAdapter):
    """Sends tasks to a queue, and works on them. ``adapter_config`` may have these keys (defaults in brackets):

    - ``bootstrap`` (the cluster of this Ray), with ``secret_file`` or ``token_file``, paths on each node (the variables
      `RAYLOG_SECRET` or `RAYLOG_TOKEN`). Serve keeps and shows the configuration, so it must not hold a secret itself.
    - ``group_id`` (`serve`).
    - ``partitions`` (4) and ``replication_factor`` (the cluster's default), for a queue that does not exist yet.
    - ``lock`` and ``retry``, as for `QueueConsumer`.
    - ``results_ms`` (a week): how long the outcome of a task is kept. It has to be as long as the longest delay of a
      task that may be cancelled.

    ``failed_task_queue_name`` is the group's dead-letter topic. A task that has no handler, or cannot be read, goes to
    ``unprocessable_task_queue_name`` if that is given, and to the dead-letter topic otherwise.
    """

    def __init__(self, config: TaskProcessorConfig) -> None:
        """Raises InvalidConfig for an unknown or wrong key of ``adapter_config``."""
        super().__init__(config)  # type: ignore[no-untyped-call]  # Ray has no types for it
        given: Mapping[str, Any] = config.adapter_config or {}
        for key in given:
            if key in ("secret", "token"):
                raise InvalidConfig(
                    f"Ray Serve keeps adapter_config and shows it: give {key}_file, a path that is on each node, or "
                    f"set RAYLOG_{key.upper()} where Ray is started."
                )
            if key not in KEYS:
                raise InvalidConfig(did_you_mean("key of adapter_config", str(key), KEYS))
        self._config = config
        self._given = given
        self._where = _where(given)
        self._topic = config.queue_name
        self._results = f"{config.queue_name}.results"
        self._handlers: dict[str, Callable[..., Any]] = {}
        self._concurrency = 1
        self._producer: Producer | None = None
        self._worker: threading.Thread | None = None
        self._queue: QueueConsumer | None = None
        self._reader: Consumer | None = None
        self._known = Outcomes(_results_ms(given))
        self._reading = threading.Lock()

    def initialize(self, consumer_concurrency: int = 1) -> None:
        """Create the topics unless they exist, and connect."""
        self._concurrency = consumer_concurrency
        partitions, factor = self._given.get("partitions", 4), self._given.get("replication_factor", -1)
        kept = {"cleanup.policy": "compact,delete", "retention.ms": str(self._known.kept_ms)}
        with Admin(**self._where) as admin:
            known = admin.list_topics()
            for topic, settings in ((self._topic, {}), (self._results, kept)):
                if topic not in known:
                    try:
                        admin.create_topic(topic, partitions, factor, settings)
                    except TopicAlreadyExists:
                        pass  # another process was faster
        self._producer = Producer(**self._where)

    def register_task_handle(self, func: Callable[..., Any], name: str | None = None) -> None:
        """Let a function handle the tasks of a name; by default the function's own name."""
        self._handlers[name or func.__name__] = func

    # Sending

    def enqueue_task_sync(self, task_name: str, args: Any = None, kwargs: Any = None, **options: Any) -> TaskResult:
        """Store a task; returns when every in-sync replica has it. ``options``: those of `Producer.send`."""
        task = _Task(uuid.uuid4().hex, task_name, list(args or ()), dict(kwargs or {}), time.time())
        options.setdefault("key", task.id.encode())
        self._sender().send(self._topic, msgspec.json.encode(task), **options).result(SEND_TIMEOUT_S)
        return TaskResult(id=task.id, status=PENDING, created_at=task.created_s, result=None)

    async def enqueue_task_async(
        self, task_name: str, args: Any = None, kwargs: Any = None, **options: Any
    ) -> TaskResult:
        """As `enqueue_task_sync`."""
        return await asyncio.to_thread(self.enqueue_task_sync, task_name, args, kwargs, **options)

    def get_task_status_sync(self, task_id: str) -> TaskResult:
        """The outcome of a task; PENDING while none is known."""
        outcome = self._outcomes().get(task_id) or _Outcome(PENDING, 0.0)
        created = outcome.created_s or None
        return TaskResult(id=task_id, status=outcome.status, created_at=created, result=outcome.result)

    async def get_task_status_async(self, task_id: str) -> TaskResult:
        """As `get_task_status_sync`."""
        return await asyncio.to_thread(self.get_task_status_sync, task_id)

    def cancel_task_sync(self, task_id: str) -> None:
        """Revoke a task that has not begun, so that no worker runs it; does nothing for a task with an outcome."""
        if task_id not in self._outcomes():
            self._report(task_id, _Outcome(REVOKED, 0.0))

    async def cancel_task_async(self, task_id: str) -> None:
        """As `cancel_task_sync`."""
        await asyncio.to_thread(self.cancel_task_sync, task_id)

    # Working

    def start_consumer(self, **kwargs: Any) -> None:
        """Work on tasks in the background, in a thread of its own with one thread for each running task."""
        retries = self._config.max_retries
        self._queue = QueueConsumer(
            self._topic,
            group_id=self._given.get("group_id", "serve"),
            delivery_limit=-1 if retries is None else retries + 1,
            retry=self._given.get("retry", RETRY),
            lock=self._given.get("lock"),
            dead_letter_topic=self._config.failed_task_queue_name,
            max_poll_records=2 * self._concurrency,
            **self._where,
        )
        self._worker = threading.Thread(target=self._work, name="raylog-tasks", daemon=True)
        self._worker.start()

    def _work(self) -> None:
        if self._queue is not None:
            self._queue.run(self._handle, concurrency=self._concurrency)

    def stop_consumer(self, timeout: float = 10.0) -> None:
        """Wait for the running tasks up to `timeout` seconds, give back the others, and close the clients."""
        if self._queue is not None:
            self._queue.end()
            if self._worker is not None:
                self._worker.join(timeout)
            self._queue.close(timeout)
            self._queue = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    def _handle(self, message: QueueMessage) -> None:
        try:
            task = msgspec.json.decode(message.value, type=_Task)
        except msgspec.MsgspecError as error:
            self._unprocessable(message, f"it is no task: {error}")
            return
        handler = self._handlers.get(task.name)
        if handler is None:
            self._report(task.id, _Outcome(FAILURE, task.created_s, f"no handler is named {task.name!r}"))
            self._unprocessable(message, did_you_mean("task", task.name, self._handlers))
            return
        if (known := self._outcomes().get(task.id)) is not None and known.status in (SUCCESS, REVOKED):
            return  # it was cancelled, or it was done and only its acknowledgement was lost
        try:
            result = handler(*task.args, **task.kwargs)
            if inspect.iscoroutine(result):
                result = asyncio.run(result)
        except Exception as error:
            retries = self._config.max_retries
            if retries is not None and message.delivery_count > retries:
                self._report(task.id, _Outcome(FAILURE, task.created_s, f"{type(error).__name__}: {error}"))
            raise
        self._report(task.id, _Outcome(SUCCESS, task.created_s, result))

    def _unprocessable(self, message: QueueMessage, reason: str) -> None:
        other = self._config.unprocessable_task_queue_name
        if not other:
            raise Reject(reason)
        headers = [*message.headers, ("raylog-dead-reason", reason.encode())]
        self._sender().send(other, message.value, key=message.key, headers=headers).result(SEND_TIMEOUT_S)

    # Outcomes

    def _sender(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(**self._where)
        return self._producer

    def _report(self, task_id: str, outcome: _Outcome) -> None:
        try:
            value = msgspec.json.encode(outcome)
        except (TypeError, ValueError):
            value = msgspec.json.encode(_Outcome(outcome.status, outcome.created_s, repr(outcome.result)))
        self._sender().send(self._results, value, key=task_id.encode()).result(SEND_TIMEOUT_S)

    def _outcomes(self) -> Outcomes:
        """The outcomes that are kept, read up to the present end of the results topic."""
        with self._reading:
            if self._reader is None:
                self._reader = Consumer(auto_offset_reset="earliest", enable_auto_commit=False, **self._where)
                with Admin(**self._where) as admin:
                    count = len(admin.describe_topic(self._results).partitions)
                self._reader.assign([TopicPartition(self._results, number) for number in range(count)])
            ends = self._reader.end_offsets(list(self._reader.assignment()))
            while any(self._reader.position(partition) < end for partition, end in ends.items()):
                for records in self._reader.poll(1_000, max_records=10_000).values():
                    for record in records:
                        if record.key is not None and record.value is not None:
                            outcome = msgspec.json.decode(record.value, type=_Outcome)
                            self._known.add(record.key.decode(), outcome, record.timestamp_ms)
                self._known.forget(time.time() * 1000)  # also during the read of a long log, to bound the memory
            self._known.forget(time.time() * 1000)
            return self._known

    # Operations

    def get_metrics_sync(self) -> dict[str, Any]:
        """The numbers of records of the queue by state, summed over its partitions; zeros without the queue."""
        with Admin(**self._where) as admin:
            try:
                rows = admin.describe_queue(self._given.get("group_id", "serve"), self._topic)
            except RaylogError:
                return {"backlog": 0, "acquired": 0, "waiting": 0, "archiving": 0}
        names = ("backlog", "available", "acquired", "waiting", "archiving")
        return {name: sum(getattr(row, name) for row in rows) for name in names}

    async def get_metrics_async(self) -> dict[str, Any]:
        """As `get_metrics_sync`."""
        return await asyncio.to_thread(self.get_metrics_sync)

    def health_check_sync(self) -> list[dict[str, Any]]:
        """Whether this process works on the queue. Raises RaylogError when the cluster cannot be reached."""
        with Admin(**self._where) as admin:
            brokers = len(admin.describe_cluster().brokers)
        is_working = self._worker is not None and self._worker.is_alive()
        return [{"queue": self._topic, "brokers": brokers, "working": is_working}]

    async def health_check_async(self) -> list[dict[str, Any]]:
        """As `health_check_sync`."""
        return await asyncio.to_thread(self.health_check_sync)
