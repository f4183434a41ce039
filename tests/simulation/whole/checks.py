"""Claims that hold once everything was healed: convergence, and the contents found by a last reader."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Final

from raylog.base.errors import RaylogError, RetriableError
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from raylog.core.configuration.config import SLEEP_KEY
from raylog.core.metadata.entries import AWAKE_KEY
from tests.simulation.whole.books import At
from tests.simulation.whole.clients import API_S, AUTOMATIC, BY_HAND, DELIVERY_S, LAST_API_S, Client, ProducingClient
from tests.simulation.whole.compaction.clients import TableReader
from tests.simulation.whole.compaction.leftovers import dirty_table
from tests.simulation.whole.expiries import ExpiriesFinish
from tests.simulation.whole.forwarding.clients import send_the_rest_on
from tests.simulation.whole.leftovers import leftover
from tests.simulation.whole.moves_asleep import SleepersMove
from tests.simulation.whole.plan import UNCLEAN
from tests.simulation.whole.queues.leaders import queues_of
from tests.simulation.whole.renewed import Renewer
from tests.simulation.whole.stops import StopCalledOff
from tests.simulation.whole.transactions.finish import TransactionsFinish
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.world import World

POLL_S: Final = 0.3
REST_S: Final = 10.0
REST_LOOKS: Final = 6
"""How often replicas are watched for so long at the end, until their dozes last."""
SLEEPER_LOOKS: Final = 40
"""How often a partition that sleeps is looked for at the end."""


class Finish:
    """The last client of a world."""

    def __init__(self, world: World) -> None:
        """Created when the world is quiet."""
        self._world = world
        self._books = world.books
        self._client = Client(world, "finish")

    async def run(self) -> None:
        """Wait until the cluster has converged, read everything, and compare it with the books."""
        await self._until("the administrator is done", self._is_changed)
        admin = await self._admin()
        if AWAKE_KEY in self._world.plan.config:
            await self._until("every topic may sleep", lambda: self._let_sleep(admin))
        await self._until("every partition is whole", lambda: self._is_whole(admin))
        await self._until("every producer is done", self._nothing_waits)
        await self._write_everywhere("last-producer")
        if self._world.plan.is_operated:
            await self._stop_a_broker(admin)
        if AWAKE_KEY in self._world.plan.config:
            await self._lift_limit()
        await self._write_without_waiting()
        if self._world.plan.sleeps:
            await self._read_a_sleeper()
            await self._until("what sleeps has no process", self._sleepers_have_ended)
            await SleepersMove(self._world, self._client, admin, self._until).run()
            await self._until("every partition stays awake", lambda: self._keep_awake(admin))
            await StopCalledOff(self._world, self._until).run()
        if self._world.tables:
            await self._until("tables are cleaned", self._has_dirty_tables)
        if self._world.transactions is not None:
            await TransactionsFinish(self._world, self._until, lambda: self._is_whole(admin)).run()
        await self._forget_and_renew()
        if self._world.plan.delayers:
            await self._until("delayed records have arrived", self._delayed_are_missing)
        if self._world.plan.payers:
            await self._until("half messages are decided", lambda: self._halves_are_held(admin))
            await self._until("what was committed has arrived", self._payments_are_missing)
        if self._world.plan.workers:
            await self._until("queues are worked off", self._jobs_are_unfinished)
        if self._world.plan.expirers:
            await self._until("expired records are dead letters", self._letters_are_missing)
            await self._until("dead letters are sent on", lambda: self._letters_are_left(admin))
        for part in self._world.parts:
            await part.finish(admin, self._until)
        # Late retries and checks take minutes, after which a topic that no client reads sleeps.
        await self._until("every partition stays awake", lambda: self._keep_awake(admin))
        await self._until("the replicas are the same", self._replicas_differ)
        await self._until("nothing is left of what is not wanted", self._has_leftovers)
        await self._until("brokers vouch for all replicas", self._are_alone)
        await self._check_topics(admin)
        ends = await self._read_everything()
        self._check_records(ends)
        await self._check_tables()
        self._check_last()
        if UNCLEAN in self._world.plan.topics_besides:
            await self._until("the present history was read", self._has_old_view)
        for group in (BY_HAND, AUTOMATIC)[: self._world.plan.members]:
            await self._until(f"{group} has read everything", partial(self._group_is_done, group, ends))
        await self._check_commits()
        if self._world.plan.dozes:
            await self._until("every topic's replicas may doze", lambda: self._let_doze(admin))
        await admin.stop()
        await self._afterwards()
        self._world.is_over = True

    async def _afterwards(self) -> None:
        """What holds when the work of all clients is over."""
        if self._world.plan.dozes and self._world.plan.comes_to_rest:
            self._world.end_clients()
            await self._until("all replicas doze", self._are_awake)
            await self._rest()
        for part in self._world.parts:
            await part.afterwards()

    async def _forget_and_renew(self) -> None:
        """What is forgotten after a while can be used again, and so can the name of a topic that was deleted."""
        if self._world.plan.forgets_producers_s:
            await ExpiriesFinish(self._world, "last-expiries").run()
        if self._world.plan.renews:
            await self._until("a topic created again is read", Renewer(self._world, "last-renewer").finish)
            await self._until("readers that stay have found the last life", self._is_not_found)

    async def _admin(self) -> AsyncAdmin:
        while True:
            admin = AsyncAdmin()
            if await self._client.tried("start", admin.start(), LAST_API_S):
                return admin
            await asyncio.sleep(POLL_S)

    async def _until(self, what: str, holds: object) -> None:
        assert callable(holds)
        while True:
            missing = await holds()
            if not missing:
                return
            self._world.waits_for = f"{what}: {missing}"
            await asyncio.sleep(POLL_S)

    async def _sleepers_have_ended(self) -> str:
        return self._world.observer.process_of_sleeper()

    async def _read_a_sleeper(self) -> None:
        """A fresh consumer reads a partition that sleeps from its start to its end; it wakes for that."""
        world = self._world
        for _ in range(SLEEPER_LOOKS):
            sleeper = world.observer.sleeper()
            if sleeper is not None:
                break
            await asyncio.sleep(POLL_S)
        else:
            return  # the administrator lets no partition sleep, or what sleeps was never used
        at, end = sleeper
        consumer = AsyncConsumer(auto_offset_reset="earliest")
        await self._client.call("start", consumer.start(), LAST_API_S)
        consumer.assign([at])
        position = 0
        while position < end:  # the last records may be markers, or aborted
            world.waits_for = f"the reader of {at}, which sleeps, stands at {position}, below {end}"
            await self._client.call("getmany", consumer.getmany(timeout_ms=500), 1.5)
            position = await self._client.call("position", consumer.position(at), LAST_API_S)
        await self._client.call("stop", consumer.stop(), 35.0)

    async def _let_sleep(self, admin: AsyncAdmin) -> str:
        """Have no topic keep the room that others need. Return what is left to do."""
        for topic in {at.topic: None for at in self._world.open_partitions()}:
            change = admin.alter_topic_config(topic, {SLEEP_KEY: self._world.plan.config[SLEEP_KEY]}, timeout_s=API_S)
            if not await self._client.tried("configure", change, API_S):
                return f"{topic} may never sleep"
        return ""

    async def _lift_limit(self) -> None:
        """Restart the controller with a configuration without a limit: what follows keeps everything awake."""
        cluster = self._world.cluster
        cluster.config[AWAKE_KEY] = "-1"
        process = cluster.actors["controller"].process
        if process is not None:
            process.kill("restarted without a limit of awake replicas")
        await self._until("the limit is lifted", self._is_limited)

    async def _is_limited(self) -> str:
        brokers = [actor.server for actor in self._world.cluster.named("broker-") if actor.serves]
        limits = {broker.image.config.get(AWAKE_KEY) for broker in brokers}
        return "" if limits == {"-1"} else f"brokers know the limits {limits}"

    async def _keep_awake(self, admin: AsyncAdmin) -> str:
        """Have no partition of a user sleep any more: their replicas' logs are compared. Return what slept."""
        found = ""
        names = await self._client.call("list topics", admin.list_topics(timeout_s=API_S), API_S)
        for topic in [name for name in names if name not in self._books.doomed]:
            never = {"replica.sleep.after.ms": "-1"}
            await self._client.call("configure", admin.alter_topic_config(topic, never, timeout_s=API_S), API_S)
            if await self._client.call("wake", admin.wake_partitions(topic, timeout_s=API_S), API_S):
                found = f"{topic} slept"
        return found

    async def _has_old_view(self) -> str:
        at = TopicPartition(UNCLEAN, 0)
        view = self._world.view.get(at, {})
        missed = [offset for offset, value in self._read[at].items() if view.get(offset) != value]
        return f"{len(missed)} records of {at} from {missed[0]} on" if missed else ""

    async def _replicas_differ(self) -> str:
        return self._world.observer.final_difference()

    async def _has_leftovers(self) -> str:
        return leftover(self._world)

    async def _are_alone(self) -> str:
        return self._world.observer.presence.alone()

    async def _let_doze(self, admin: AsyncAdmin) -> str:
        """Have all replicas doze that are at rest. Return what is not configured for it yet."""
        for topic in self._world.steady_topics:
            soon = {"replica.doze.after.ms": "300"}
            work = admin.alter_topic_config(topic, soon, timeout_s=API_S)
            if not await self._client.tried("configure", work, API_S):
                return topic
        return ""

    async def _rest(self) -> None:
        """Without traffic dozes last, once groups have lost their members and broken connections were found."""
        dozing, ended, count = self._world.observer.dozing, 0, len(self._world.nemesis.replicas())
        for _ in range(REST_LOOKS):
            before = dozing.ended
            await asyncio.sleep(REST_S)
            ended = dozing.ended - before
            if ended <= count:
                return
        raise Violation("W23", f"{ended} dozes of {count} replicas ended within {REST_S:.0f} s without traffic")

    async def _are_awake(self) -> str:
        return self._world.observer.dozing.awake()

    async def _is_changed(self) -> str:
        return "" if self._world.is_unchanged else "topics come and go"

    async def _nothing_waits(self) -> str:
        late = [what for _, what in self._books.waiting.values() if what.startswith("producer-")]
        return late[0] if late else ""

    async def _is_whole(self, admin: AsyncAdmin) -> str:
        """Return the difference from a healthy cluster, once everything runs."""
        try:
            moving = await self._client.call("list moves", admin.list_partition_reassignments(timeout_s=API_S), API_S)
            names = await self._client.call("list topics", admin.list_topics(internal=True, timeout_s=API_S), API_S)
            topics = await self._client.call("describe", admin.describe_topics(names, timeout_s=API_S), API_S)
        except RaylogError as error:
            return repr(error)
        if moving:
            return f"moves go on: {next(iter(moving.values()))}"
        for topic in topics.values():
            for partition in topic.partitions:
                is_preferred = partition.leader == partition.replicas[0]
                if not is_preferred or sorted(partition.isr) != sorted(partition.replicas):
                    state = f"leader {partition.leader}, ISR {partition.isr} of {partition.replicas}"
                    return f"{topic.name}-{partition.partition} has {state}"
        return ""

    async def _write_everywhere(self, name: str) -> None:
        """Every partition takes a write within a producer's delivery timeout; within two where few may be awake.

        A partition waits then until those that wake before it have not been used for a while, round by round.
        """
        last = ProducingClient(self._world, name, acks="all", idempotent=True)
        limit_s = 2 * DELIVERY_S if AWAKE_KEY in self._world.plan.config else DELIVERY_S
        async with AsyncProducer(delivery_timeout_ms=int(limit_s * 1000)) as producer:
            for at in self._world.open_partitions():
                await last.write(producer, at)

    async def _stop_a_broker(self, admin: AsyncAdmin) -> None:
        """Every partition takes a write without a broker that was stopped; all is whole after its return."""
        world, broker = self._world, 1 + int(self._world.scheduler.between(0, self._world.plan.brokers))
        if not world.observer.may_stop(broker):
            return  # a topic was created while brokers were missing, and has too few replicas

        async def refusal() -> str:
            try:
                await self._client.call("stop broker", admin.stop_broker(broker, timeout_s=API_S), API_S)
            except RaylogError as error:
                return repr(error)
            return ""

        await self._until(f"broker {broker} was stopped", refusal)
        await world.cluster.stop_broker(broker)
        await self._write_everywhere("last-producer-without")
        world.cluster.start_broker(broker)
        await self._client.resume(admin, broker)
        await self._until("every partition is whole again", lambda: self._is_whole(admin))

    async def _write_without_waiting(self) -> None:
        """Records with acks=1 and acks=0 are stored where no leader changes."""
        world, sent = self._world, self._books.sent
        self._epochs = {at: world.observer.leader_epoch(at) for at in world.open_partitions()}
        for acks in (1, 0):
            last = ProducingClient(world, f"last-acks-{acks}", acks=acks, idempotent=False)
            async with AsyncProducer(acks=acks, enable_idempotence=False, linger_ms=0) as producer:
                for at in world.open_partitions():
                    await last.write(producer, at)
        await asyncio.sleep(POLL_S)  # records without an answer are on their way
        self._last = [value for value, record in sent.items() if record.producer.startswith("last-acks-")]

    def _check_last(self) -> None:
        for value in self._last:
            at = self._books.sent[value].at
            if self._epochs[at] == self._world.observer.leader_epoch(at) and value not in self._read[at].values():
                raise Violation("W15", f"{value[:40]!r} was sent to {at} without a fault, and is not stored")

    async def _check_topics(self, admin: AsyncAdmin) -> None:
        """The metadata match the acknowledged requests."""
        books = self._books
        names = await self._client.call("list topics", admin.list_topics(timeout_s=API_S), API_S)
        for topic in books.deleted:
            if topic in names:
                raise Violation("W11", f"{topic} was deleted, and is there")
        found = await self._client.call("describe", admin.describe_topics(names, timeout_s=API_S), API_S)
        for topic in self._world.steady_topics:
            if len(found[topic].partitions) < books.partitions[topic]:
                raise Violation("W11", f"{topic} was given {books.partitions[topic]} partitions, and has fewer")
            books.partitions[topic] = len(found[topic].partitions)
        for at, replicas in books.assignments.items():
            there = tuple(found[at[0]].partitions[at[1]].replicas)
            if there != replicas:
                raise Violation("W12", f"{at} was to have the replicas {replicas}, and has {there}")

    async def _read_everything(self) -> dict[At, tuple[int, int]]:
        """Read every partition from its start to its end with a fresh consumer; return start and end."""
        world, books = self._world, self._books
        consumer = AsyncConsumer(auto_offset_reset="earliest")
        await self._client.call("start", consumer.start(), LAST_API_S)
        partitions = world.open_partitions()
        consumer.assign(partitions)
        starts = await self._client.call("beginning offsets", consumer.beginning_offsets(partitions), LAST_API_S)
        ends = await self._client.call("end offsets", consumer.end_offsets(partitions), LAST_API_S)
        last: dict[At, int] = {}
        read: dict[At, dict[int, bytes]] = defaultdict(dict)

        def missing() -> list[TopicPartition]:
            return [
                partition
                for partition in partitions
                if starts[partition] < ends[partition] and last.get(partition, -1) < ends[partition] - 1
            ]

        while left := missing():
            world.waits_for = f"the last reader stands at {last.get(left[0])} of {left[0]}, below {ends[left[0]]}"
            found = await self._client.call("getmany", consumer.getmany(timeout_ms=500), 1.5)
            for at, records in found.items():
                for record in records:
                    books.seen("the last reader", at, record.offset, record.value)
                    books.step("the last reader", at, last.get(at), record.offset)
                    last[at] = record.offset
                    read[at][record.offset] = record.value
        await self._client.call("stop", consumer.stop(), 35.0)
        for at in partitions:
            if set(read[at]) != set(range(starts[at], ends[at])) and starts[at] < ends[at]:
                raise Violation("W5", f"{at} goes from {starts[at]} to {ends[at]}, and not all of it was read")
        self._read = read
        return {at: (starts[at], ends[at]) for at in partitions}

    async def _is_not_found(self) -> str:
        return self._world.renewed.missed()

    async def _delayed_are_missing(self) -> str:
        missing = self._world.delays.missing()
        return f"{len(missing)} have not, such as {missing[0]!r}" if missing else ""

    async def _halves_are_held(self, admin: AsyncAdmin) -> str:
        try:
            held = await self._client.call("list half messages", admin.list_half_messages(timeout_s=API_S), API_S + 5.0)
        except RetriableError as error:
            return f"the list has no answer: {error!r}"
        return f"{len(held)} are not, such as {held[0]}" if held else ""

    async def _payments_are_missing(self) -> str:
        missing = self._world.bank.missing()
        return f"{len(missing)} have not, such as {missing[0]!r}" if missing else ""

    async def _jobs_are_unfinished(self) -> str:
        wrong = self._world.jobs.unfinished()
        return f"{wrong}; {queues_of(self._world)}" if wrong else ""

    async def _letters_are_missing(self) -> str:
        missing = self._world.letters.missing()
        return f"{len(missing)} are not, such as {missing[0]!r}" if missing else ""

    async def _letters_are_left(self, admin: AsyncAdmin) -> str:
        left = self._world.letters.not_sent_on()
        if not left:
            return ""
        try:
            state = await send_the_rest_on(admin)
        except RaylogError as error:
            state = repr(error)
        return f"{len(left)} are not, such as {left[0]!r}; {state}"

    async def _has_dirty_tables(self) -> str:
        return dirty_table(self._world.observer, self._world.tables)

    async def _check_tables(self) -> None:
        """A read of each compacted partition gives the last value of each key; what readers missed was replaced."""
        world, books = self._world, self._world.table_books
        reader = TableReader(world, "the last table reader")
        for at in world.tables:
            world.waits_for = f"the last reader is at the end of {at}"
            consumer = AsyncConsumer(auto_offset_reset="earliest")
            await self._client.call("start", consumer.start(), LAST_API_S)
            read = await reader.read_through(consumer, at, "last")
            await self._client.call("stop", consumer.stop(), 35.0)
            books.check_table(at, read)
        books.check_passed()

    def _check_records(self, ends: dict[At, tuple[int, int]]) -> None:
        """No acknowledged record is lost, none is stored twice, each producer's records are in order."""
        books = self._books
        for at, low in books.low_watermarks.items():
            if at in ends and ends[at][0] < low:
                raise Violation("W13", f"records of {at} below {low} were deleted, and it begins at {ends[at][0]}")
        where: dict[bytes, int] = {}
        for at, records in self._read.items():
            if ends[at][0] > books.deleted_below.get(at, 0):
                raise Violation("W13", f"{at} begins at {ends[at][0]}; nothing that high was deleted")
            orders: dict[str, int] = {}
            for offset in sorted(records):
                value = records[offset]
                sent = books.sent[value]
                if sent.idempotent and at.topic != UNCLEAN:
                    if value in where:
                        raise Violation("W14", f"{value[:40]!r} is stored twice: {where[value]} and {offset} of {at}")
                    if sent.order < orders.get(sent.producer, 0):
                        raise Violation("W14", f"{value[:40]!r} at {offset} of {at} is behind one that was sent later")
                    orders[sent.producer] = sent.order
                where.setdefault(value, offset)
        for value, sent in books.sent.items():
            if sent.offset is None or sent.acks != "all" or sent.at not in ends or sent.at.topic == UNCLEAN:
                continue
            start, _ = ends[sent.at]
            if sent.offset >= start and self._read[sent.at].get(sent.offset) != value:
                raise Violation("W15", f"{value[:40]!r} was acknowledged at {sent.offset} of {sent.at} and is lost")

    async def _group_is_done(self, group: str, ends: dict[At, tuple[int, int]]) -> str:
        """Return the records that no member of the group has received."""
        for at, (start, end) in ends.items():
            if at[0] in self._world.steady_topics:
                # Members skip records that a leader has begun to delete, even if its successor has them again.
                first = max(start, self._books.deleted_below.get(at, 0))
                missing = set(range(first, end)) - self._books.delivered[(group, at)]
                if missing:
                    return f"{len(missing)} records of {at}, the first at {min(missing)}, of {start} to {end}"
        return ""

    async def _check_commits(self) -> None:
        """No acknowledged commit is lost or moved back."""
        consumer = AsyncConsumer(group_id=BY_HAND, enable_auto_commit=False)
        await self._client.call("start", consumer.start(), LAST_API_S)
        before = dict(self._books.commits)
        for (_, at), offset in before.items():
            found = await self._client.call("committed", consumer.committed(at), LAST_API_S)
            self._books.fetched(BY_HAND, at, offset, found)
        await self._client.call("stop", consumer.stop(), 35.0)
