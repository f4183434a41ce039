"""The clients of a world: shipped producers, consumers and administrators, each in a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from raylog.base.errors import (
    ClientClosed,
    CommitFailed,
    DeliveryTimedOut,
    ElectionNotNeeded,
    FencedInstanceId,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    NoReassignmentInProgress,
    OffsetOutOfRange,
    RaylogError,
    StopRefused,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
    UnreleasedInstanceId,
)
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.futures import AsyncSendFuture
from raylog.client.producer.producer import AsyncProducer
from tests.simulation.whole.books import At, Books, Sent
from tests.simulation.whole.plan import UNCLEAN
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.world import World

Result = TypeVar("Result")
DELIVERY_S: Final = 12.0
API_S: Final = 10.0
LAST_API_S: Final = 60.0
RECOVERED_S: Final = 10.0
"""Time from the loss of one node until every sent record is stored within its delivery timeout."""
REST_LOOK_S: Final = 5.0
PAUSED_S: Final = 2.5
"""A round of a member that took longer was delayed by a pause."""
AUTOMATIC: Final = "automatic"
"""The group whose members commit automatically."""
BY_HAND: Final = "by-hand"


def shortened(value: bytes) -> str:
    """Return a record's name, without what fills it up."""
    return b"/".join(value.split(b"/")[:2]).decode(errors="replace")


def outcome(result: object) -> str:
    """Return what a call has returned in a few words; empty: nothing that a reader would miss."""
    if isinstance(result, dict):
        parts = [f"{key} {outcome(found)}" for key, found in result.items()]
        return ", ".join(parts)[:160]
    if isinstance(result, list) and result and hasattr(result[0], "offset"):
        return ", ".join(str(each.offset) for each in result)[:160]
    if result is None:
        return "done"
    return "" if result == [] or hasattr(result, "__await__") else repr(result)[:160]


class Client:
    """Shared by all clients: their books, and the deadline of each call."""

    def __init__(self, world: World, name: str) -> None:
        """``name`` is that of its process."""
        self.world = world
        self.books: Books = world.books
        self.name = name

    async def call(self, what: str, work: Awaitable[Result], timeout_s: float) -> Result:
        """Await a call that must return within a time."""
        number = self.books.begin(self.world.now_s + timeout_s, f"{self.name}: {what}")
        try:
            result = await work
        except RaylogError as error:
            self.note(f"{what}: {error!r}")
            raise
        else:
            if self.world.plan.is_detailed and (found := outcome(result)):
                self.note(f"{what}: {found}")
            return result
        finally:
            self.books.end(number)

    def note(self, what: str) -> None:
        """Add a line to a story with each call."""
        if self.world.plan.is_detailed:
            self.world.log(self.name, what)

    async def tried(self, what: str, work: Awaitable[Result], timeout_s: float, *allowed: type[RaylogError]) -> bool:
        """Await a call that may fail with a retriable cause; return whether it succeeded."""
        try:
            await self.call(what, work, timeout_s)
        except RaylogError as error:
            if not error.retriable and not isinstance(error, allowed):
                raise Violation("W8", f"{self.name}: {what} failed for good: {error!r}") from error
            self.world.log(self.name, f"{what}: {error!r}")
            return False
        return True

    async def resume(self, admin: AsyncAdmin, broker: int) -> None:
        """Let a broker that was stopped take part again."""
        while True:
            if await self.tried(f"resume broker {broker}", admin.resume_broker(broker, timeout_s=API_S), API_S):
                return
            await asyncio.sleep(0.5)

    def beside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task beside the client's own; a violation in it ends the run."""
        return asyncio.get_running_loop().create_task(self.world.guarded(self.name, work))

    def between(self, low: float, high: float) -> float:
        """Draw a number."""
        return self.world.scheduler.between(low, high)

    def pick(self, choices: list[Any]) -> Any:
        """Draw one of several."""
        return choices[int(self.world.scheduler.random.random() * len(choices))]

    def chance(self, probability: float) -> bool:
        """Draw once."""
        return self.world.scheduler.chance(probability)


class ProducingClient(Client):
    """Sends records in bursts, each value once, until the world is quiet."""

    def __init__(self, world: World, name: str, *, acks: Any, idempotent: bool) -> None:
        """One producer."""
        super().__init__(world, name)
        self.acks, self.idempotent = acks, idempotent
        self._count = 0

    async def run(self) -> None:
        """Produce until the work is over, then flush and stop."""
        options = self.world.plan.producer_options(self.world.scheduler.random)
        producer = AsyncProducer(
            acks=self.acks,
            enable_idempotence=self.idempotent,
            delivery_timeout_ms=int(DELIVERY_S * 1000),
            max_block_ms=int(API_S * 1000),
            **options,
        )
        while not await self.tried("start", producer.start(), LAST_API_S):
            producer = AsyncProducer(
                acks=self.acks,
                enable_idempotence=self.idempotent,
                delivery_timeout_ms=int(DELIVERY_S * 1000),
                max_block_ms=int(API_S * 1000),
                **options,
            )
            await asyncio.sleep(0.5)
        waits: set[asyncio.Task[None]] = set()
        while not self.world.is_quiet:
            for _ in range(int(self.between(1, 12))):
                waiting = await self._send(producer, self.pick(self.world.open_partitions()))
                if waiting is not None:
                    waits.add(waiting)
                    waiting.add_done_callback(waits.discard)
            await self._rest(self.pause_s())
        await self.call("stop", producer.stop(), DELIVERY_S + 10.0)
        while waits:
            await asyncio.wait(set(waits))

    def pause_s(self) -> float:
        """Return how long to wait between two bursts."""
        return self.between(0.0, self.world.plan.send_pause_s)

    async def _rest(self, for_s: float) -> None:
        """Wait, until the world is quiet at most."""
        until_s = self.world.now_s + for_s
        while not self.world.is_quiet and (left_s := until_s - self.world.now_s) > 0:  # noqa: ASYNC110  # of the world
            await asyncio.sleep(min(left_s, REST_LOOK_S))

    async def write(self, producer: AsyncProducer, at: At) -> None:
        """Send one record and wait until it is stored, which must succeed."""
        waiting = await self._send(producer, at)
        if waiting is not None:
            await waiting
        failed = [
            record.failed for record in self.books.sent.values() if record.producer == self.name and record.failed
        ]
        if failed:
            raise Violation("W16", f"{at} takes no write although all is as it should be: {failed[0]}")

    async def _send(self, producer: AsyncProducer, at: At) -> asyncio.Task[None] | None:
        books, world = self.books, self.world
        self._count += 1
        filler = "x" * int(self.between(0, 200) if self.chance(0.95) else self.between(0, 4000))
        value = f"{self.name}/{self._count}/{filler}".encode()
        books.sent[value] = Sent(self.name, at, self.acks, self.idempotent, world.now_s, self._count)
        try:
            future = await self.call("send", producer.send(at[0], value, partition=at[1]), API_S)
        except RaylogError as error:
            self._failed(value, error)
            return None
        number = books.begin(world.now_s + DELIVERY_S, f"{self.name}: the delivery of {value[:40]!r}")
        return self.beside(self._wait(value, future, number))

    async def _wait(self, value: bytes, future: AsyncSendFuture, number: int) -> None:
        try:
            stored = await future
        except RaylogError as error:
            self._failed(value, error)
        else:
            at = TopicPartition(stored.topic, stored.partition)
            self.note(f"{shortened(value)} is stored at {stored.offset} of {at}")
            self.books.stored(value, at, stored.offset, self.world.now_s)
        finally:
            self.books.end(number)

    def _failed(self, value: bytes, error: RaylogError) -> None:
        self.note(f"{shortened(value)} failed: {error!r}")
        record = self.books.sent[value]
        record.failed = repr(error)
        is_doomed = record.at[0] in self.books.doomed
        if not (error.retriable or is_doomed or isinstance(error, (DeliveryTimedOut, ClientClosed))):
            raise Violation("W8", f"{self.name}: {value[:40]!r} failed for good: {error!r}")
        if record.sent_s > self.world.nemesis.lost_s + RECOVERED_S and not is_doomed:
            raise Violation("W16", f"{self.name}: {value[:40]!r} failed with one node lost: {error!r}")


class GroupMember(Client):
    """Reads as a member of a group, commits what it has read, and leaves or is killed now and then."""

    def __init__(self, world: World, name: str, group: str, topics: list[str], instance: str | None) -> None:
        """One life of one member. In :data:`AUTOMATIC` the consumer commits by itself."""
        super().__init__(world, name)
        self.group, self.topics, self.instance = group, topics, instance
        self._is_fenced = False
        self._commits_itself = group == AUTOMATIC
        self._round_s = world.now_s
        self._last: dict[At, int] = {}
        self._before: dict[At, int] = {}

    async def run(self) -> None:
        """Read until the world is out of work."""
        options = self.world.plan.consumer_options(self.world.scheduler.random)
        consumer = AsyncConsumer(
            group_id=self.group,
            group_instance_id=self.instance,
            auto_offset_reset="earliest",
            enable_auto_commit=self._commits_itself,
            auto_commit_interval_ms=500,
            default_api_timeout_ms=int(API_S * 1000),
            **options,
        )
        if not await self.tried("start", consumer.start(), LAST_API_S):
            return
        consumer.subscribe(
            self.topics,
            on_assigned=lambda parts: self._assigned(consumer, parts),
            on_revoked=self._revoked,
        )
        lives_until_s = self.world.now_s + self.between(5.0, 40.0)
        while not self.world.is_over and (self.world.now_s < lives_until_s or self.world.is_quiet):
            if self._is_fenced:
                break
            await self._round(consumer)
        await self.call("stop", consumer.stop(autocommit=self._commits_itself), 35.0)

    async def _round(self, consumer: AsyncConsumer) -> None:
        if self.world.now_s - self._round_s > PAUSED_S and self._last and not self._commits_itself:
            await self._commit(consumer)  # a member that was paused has missed the events meanwhile
        self._round_s = self.world.now_s
        wait_s = self.between(0.0, 1.0)
        try:
            found = await self.call("getmany", consumer.getmany(timeout_ms=wait_s * 1000), wait_s + 1.0)
        except RaylogError as error:
            # A join of the place's former process may arrive after this one's, and takes the instance. Where the
            # coordinator assigns, that process keeps it for another session after each failover.
            is_held = isinstance(error, FencedInstanceId | UnreleasedInstanceId)
            self._is_fenced = is_held and self.instance is not None
            if not error.retriable and not self._is_fenced:
                raise Violation("W8", f"{self.name}: poll failed for good: {error!r}") from error
            await asyncio.sleep(0.1)
            return
        for partition, records in found.items():
            for record in records:
                self._read(partition, record.offset, record.value)
        if self._last and not self._commits_itself and self.chance(0.3):
            await self._commit(consumer)

    def _read(self, at: At, offset: int, value: bytes) -> None:
        books = self.books
        books.seen(self.name, at, offset, value)
        if at in self._last:
            books.step(self.name, at, self._last[at], offset)
        else:
            books.begins(self.group, at, offset, self._before.get(at, 0), self.name)
        self._last[at] = offset
        books.delivered[(self.group, at)].add(offset)

    @property
    def _refusals(self) -> tuple[type[RaylogError], ...]:
        return (CommitFailed,) if self.instance is None else (CommitFailed, FencedInstanceId)

    async def _commit(self, consumer: AsyncConsumer) -> None:
        offsets = {at: last + 1 for at, last in self._last.items()}
        if await self.tried("commit", consumer.commit(offsets, timeout_s=API_S), API_S, *self._refusals):
            for at, offset in offsets.items():
                self.books.committed(self.group, at, offset)

    def _assigned(self, consumer: AsyncConsumer, partitions: list[TopicPartition]) -> None:
        group = consumer._engine.group
        assert group is not None
        member, held = group.membership, consumer.assignment()
        for at in sorted(held):  # a cooperative member holds what it kept in the new generation too
            self.books.owns(self.group, member.commit_identity[0], at, self.instance or self.name)
        for at in partitions:
            if at not in self._last:
                self._before[at] = self.books.commits.get((self.group, at), 0)
        for at in [at for at in self._last if at not in held]:
            del self._last[at]

    def _revoked(self, partitions: list[TopicPartition]) -> None:
        for at in partitions:
            self._last.pop(at, None)


class Reader(Client):
    """Reads partitions without a group, with seeks, and at last reads everything to its end."""

    def __init__(self, world: World, name: str, *, seeks: float = 0.0) -> None:
        """``seeks``: the share of polls that a seek follows; 0 = that of the plan."""
        super().__init__(world, name)
        self._seeks = seeks

    async def run(self) -> None:
        """Read until the world is out of work."""
        consumer = AsyncConsumer(auto_offset_reset="earliest", default_api_timeout_ms=int(API_S * 1000))
        if not await self.tried("start", consumer.start(), LAST_API_S):
            return
        wanted = [at for at in self.world.open_partitions() if at.topic in self.world.steady_topics]
        consumer.assign(wanted)
        timeout_ms = int(API_S * 1000)
        observer = AsyncConsumer(group_id=BY_HAND, enable_auto_commit=False, default_api_timeout_ms=timeout_ms)
        while not await self.tried("start", observer.start(), LAST_API_S):
            observer = AsyncConsumer(group_id=BY_HAND, enable_auto_commit=False, default_api_timeout_ms=timeout_ms)
        watching = self.beside(self._observe(observer, wanted))
        last: dict[At, int] = {}
        while not self.world.is_over:
            wait_s = self.between(0.0, 0.5)
            found = await self.call("getmany", consumer.getmany(timeout_ms=wait_s * 1000), wait_s + 1.0)
            for at, records in found.items():
                for record in records:
                    self.books.seen(self.name, at, record.offset, record.value)
                    self.books.step(self.name, at, last.get(at), record.offset)
                    last[at] = record.offset
            if last and self.chance(self._seeks or self.world.plan.seek_share):
                await asyncio.sleep(self.between(0.0, 0.3))  # so that the seek meets a buffer
                at = self.pick(list(last))
                target = int(self.between(0, last[at] + 1))
                consumer.seek(at, target)
                last[at] = target - 1  # the next record is that of the seek, whatever a fetch brings meanwhile
        await watching
        await self.call("stop", consumer.stop(), 35.0)

    async def _observe(self, observer: AsyncConsumer, wanted: list[At]) -> None:
        """Fetch the group's committed offsets repeatedly."""
        while not self.world.is_over:
            await asyncio.sleep(self.between(0.1, 1.0))
            at = self.pick(wanted)
            committed = self.books.commits.get((BY_HAND, at), 0)
            try:
                found = await self.call("committed", observer.committed(at), API_S)
            except RaylogError as error:
                self.world.log(self.name, f"committed: {error!r}")
            else:
                self.books.fetched(BY_HAND, at, committed, found)
            try:
                [end] = (await self.call("end offsets", observer.end_offsets([at]), API_S)).values()
            except RaylogError as error:
                self.world.log(self.name, f"end offsets: {error!r}")
            else:
                self.books.on_committed(at, end, f"{self.name} has learned that {at} ends at {end}", False)
        await self.call("stop", observer.stop(), 35.0)


class View(dict[At, dict[int, bytes]]):
    """What the reader of the topic with unclean elections has read, the last record for each offset."""


class UncleanReader(Client):
    """Reads the topic with unclean elections, whose records change; at last it has read its present history."""

    async def run(self) -> None:
        """Read until the world is out of work."""
        consumer = AsyncConsumer(auto_offset_reset="earliest", metadata_max_age_ms=1_000)
        while not await self.tried("start", consumer.start(), LAST_API_S):
            consumer = AsyncConsumer(auto_offset_reset="earliest", metadata_max_age_ms=1_000)
        consumer.assign([TopicPartition(UNCLEAN, 0)])
        while not self.world.is_over:
            found = await self.call("getmany", consumer.getmany(timeout_ms=300), 1.5)
            for at, records in found.items():
                for record in records:
                    self.books.seen(self.name, at, record.offset, record.value)
                    view = self.world.view.setdefault(at, {})
                    if view.get(record.offset) == record.value and not record.offset:
                        raise Violation("W5", f"{self.name} reads {at} from its start, and not where it was cut off")
                    view[record.offset] = record.value
        await self.call("stop", consumer.stop(), 35.0)


class Administrator(Client):
    """Creates, grows and deletes topics, moves replicas, deletes records, changes configurations, elects leaders."""

    def __init__(self, world: World, name: str) -> None:
        """One administrator."""
        super().__init__(world, name)
        self._unsure: set[At] = set()
        """Partitions with an unknown outcome of a move."""

    async def run(self) -> None:
        """Change things until the world is quiet."""
        admin = AsyncAdmin(request_timeout_ms=int(API_S * 1000))
        while not await self.tried("start", admin.start(), LAST_API_S):
            admin = AsyncAdmin(request_timeout_ms=int(API_S * 1000))
            await asyncio.sleep(0.5)
        deeds = [
            self._grow,
            self._move,
            self._move,
            self._delete_records,
            self._configure,
            self._elect,
            self._come_and_go,
            *([self._stop_and_start] * 3 if self.world.plan.is_operated else []),
            *([self._wake, self._wake, self._set_sleep] if self.world.plan.sleeps else []),
            *([self._set_doze] if self.world.plan.dozes else []),
        ]
        number = 0
        while not self.world.is_quiet:
            await asyncio.sleep(self.between(0.2, 3.0))
            number += 1
            await self.pick(deeds)(admin, number)
        if self.world.plan.is_operated:
            for broker in range(1, self.world.plan.brokers + 1):
                await self.resume(admin, broker)  # a stop without an answer may have been carried out late
        self.world.is_unchanged = True
        await admin.stop()

    async def _grow(self, admin: AsyncAdmin, number: int) -> None:
        topic = self.pick(self.world.steady_topics)
        total = self.books.partitions[topic] + 1
        if total <= self.world.plan.partitions_max:
            done = await self.tried(
                f"grow {topic}",
                admin.create_partitions(topic, total, timeout_s=API_S),
                API_S,
                InvalidPartitions,
                InvalidReplicationFactor,
            )
            if done:
                self.books.partitions[topic] = total

    async def _move(self, admin: AsyncAdmin, number: int) -> None:
        at: At = self.pick([at for at in self.world.open_partitions() if at[0] in self.world.steady_topics])
        brokers = list(range(1, self.world.plan.brokers + 1))
        self.world.scheduler.random.shuffle(brokers)
        target = brokers[: self.world.plan.replication_factor]
        self.books.assignments.pop(at, None)
        what = f"move {at} to {target}"
        work = admin.alter_partition_reassignments({at: target}, timeout_s=API_S)
        if await self.tried(what, work, API_S, InvalidReplicaAssignment, NoReassignmentInProgress):
            if at not in self._unsure:
                self.books.assignments[at] = tuple(target)
        else:
            self._unsure.add(at)  # a move that timed out may still be carried out, and replace later ones

    async def _delete_records(self, admin: AsyncAdmin, number: int) -> None:
        at: At = self.pick([at for at in self.world.open_partitions() if at[0] in self.world.steady_topics])
        known = self.books.content[at]
        if not known:
            return
        before = int(self.between(0, max(known)) * 0.5)
        self.books.deleted_below[at] = max(self.books.deleted_below.get(at, 0), before)
        work = admin.delete_records({at: before}, timeout_s=API_S)
        if await self.tried(f"delete records of {at} below {before}", work, API_S, OffsetOutOfRange):
            self.books.low_watermarks[at] = max(self.books.low_watermarks.get(at, 0), before)

    async def _configure(self, admin: AsyncAdmin, number: int) -> None:
        topic = self.pick(self.world.steady_topics)
        change = {"segment.bytes": str(int(self.between(4_096, 100_000)))}
        await self.tried(f"configure {topic}", admin.alter_topic_config(topic, change, timeout_s=API_S), API_S)

    async def _wake(self, admin: AsyncAdmin, number: int) -> None:
        """Wake a topic, twice at once, while records may wake it as well."""
        topic = self.pick(self.world.steady_topics)
        wakes = [self.beside(self._woken(admin, topic)) for _ in range(2)]
        await asyncio.wait(wakes)

    async def _woken(self, admin: AsyncAdmin, topic: str) -> None:
        await self.tried(f"wake {topic}", admin.wake_partitions(topic, timeout_s=API_S), API_S)

    async def _set_sleep(self, admin: AsyncAdmin, number: int) -> None:
        topic = self.pick(self.world.steady_topics)
        change = {"replica.sleep.after.ms": self.pick(["-1", "1000", "3000"])}
        work = admin.alter_topic_config(topic, change, timeout_s=API_S)
        await self.tried(f"configure {topic}", work, API_S, InvalidPartitions)  # -1 may leave too many awake

    async def _set_doze(self, admin: AsyncAdmin, number: int) -> None:
        topic = self.pick(self.world.steady_topics)
        change = {"replica.doze.after.ms": self.pick(["-1", "100", "500"])}
        await self.tried(f"configure {topic}", admin.alter_topic_config(topic, change, timeout_s=API_S), API_S)

    async def _elect(self, admin: AsyncAdmin, number: int) -> None:
        await self.tried("elect leaders", admin.elect_leaders(timeout_s=API_S), API_S, ElectionNotNeeded)

    async def _stop_and_start(self, admin: AsyncAdmin, number: int) -> None:
        """Stop a broker as an operator does, and start it again after a while."""
        broker = 1 + int(self.between(0, self.world.plan.brokers))
        work = admin.stop_broker(broker, timeout_s=API_S)
        is_stopped = await self.tried(f"stop broker {broker}", work, API_S, StopRefused)
        if is_stopped:
            await self.world.cluster.stop_broker(broker)
            await asyncio.sleep(self.between(0.5, 6.0))
            self.world.cluster.start_broker(broker)  # before it is resumed, as the command does: it may be a voter
        await self.resume(admin, broker)

    async def _come_and_go(self, admin: AsyncAdmin, number: int) -> None:
        """A topic for a while: created, written to by the producers, deleted."""
        books, name = self.books, f"brief-{number}"
        count = 1 + number % 2
        books.partitions[name] = 0
        work = admin.create_topic(name, count, self.world.plan.replication_factor, timeout_s=API_S)
        is_made = await self.tried(f"create {name}", work, API_S, TopicAlreadyExists, InvalidReplicationFactor)
        if is_made:
            books.partitions[name] = count
            await asyncio.sleep(self.between(0.5, 4.0))
        books.doomed.add(name)
        work_too = admin.delete_topic(name, timeout_s=API_S)
        if await self.tried(f"delete {name}", work_too, API_S, UnknownTopicOrPartition) and is_made:
            books.deleted.add(name)  # else a creation that timed out may be carried out only now
