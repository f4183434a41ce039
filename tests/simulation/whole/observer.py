"""Claims about the state of the servers that no client can see, checked while a world runs.

What a client has read, or knows to be stored, has to be on every replica that may lead: checked at once, and not only
when a replica that lacks it leads. Reads the shipped machines and logs; changes nothing. Called by `world.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from raylog.actors.naming import INTERNAL_PREFIX, replica_name
from raylog.base.invariants import InvariantBroken
from raylog.core.metadata.image import MetadataImage
from raylog.core.partition import PartitionState
from raylog.storage.batch.header import iter_headers
from tests.compacted import difference, rows_of
from tests.simulation.whole.books import At
from tests.simulation.whole.dozing.claims import DozeClaims
from tests.simulation.whole.groups_end import watch_groups
from tests.simulation.whole.loop.processes import SimProcess
from tests.simulation.whole.plan import LOOSE, LOOSE_FLUSH_MS, TOPICS
from tests.simulation.whole.presence import Presence
from tests.simulation.whole.promises import Promises
from tests.simulation.whole.room import RoomClaims
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.cluster import Actor
    from tests.simulation.whole.world import World

MIN_INSYNC: Final = 2
"""The default of topics with three replicas."""
SYNC_SLACK_S: Final = 3.0
"""Longest time from when a sync is due until its end."""
Replica = tuple["Actor", Any]
"""A replica's actor, and the runner of its present life."""


class Observer:
    """Looks into the servers of one world."""

    def __init__(self, world: World) -> None:
        """Watch all metadata images from now on."""
        self._world = world
        self._committed: dict[At, int] = {}
        """Clients know that everything below this offset is committed."""
        self._leaders: dict[tuple[str, int, int], tuple[int, int]] = {}
        """Broker and incarnation of the leader of a leader epoch, by topic id, partition and epoch."""
        self._epochs: dict[tuple[str, int], dict[int, int]] = {}
        """The leader epoch of committed records, by their offset: the last ones below the known ends."""
        self._unsynced: dict[str, tuple[int, float, SimProcess]] = {}
        """Durable end, time since when it has not moved, and process, of replicas with records to sync, by actor."""
        self._metadata: dict[tuple[str, int, int], tuple[object, ...]] = {}
        """The state of a partition as brokers have it, by topic id, partition and partition epoch."""
        self.transitions = 0
        """How often a partition has fallen asleep or begun to wake."""
        world.books.on_committed, world.books.on_written = self.committed, self.written
        self._watch_images()
        self._promises = Promises(world.fail)
        self.presence = Presence(world)
        self.dozing = DozeClaims(world)
        self.room = RoomClaims(world)
        watch_groups(world.books)

    # ------------------------------------------------------------ what clients know

    def committed(self, at: At, end: int, what: str, acks_all: bool) -> None:
        """A client knows that the record before `end` is committed."""
        known = end <= self._committed.get(at, 0)
        if not known:
            self._committed[at] = end
        if known and not acks_all:
            return
        state = self._state(at)
        if state is None or state.unclean_leader_epoch:
            return
        if not known:
            self._check_members(state, end, what)
        if acks_all or self._is_of_present_epoch(state, end):
            self._check_copies(state, end, what)

    def written(self, at: At, end: int, what: str, sent_s: float) -> None:
        """A client knows that the record before `end` was stored by a leader (acks=1)."""
        state = self._state(at)
        if state is None or self._world.elected_s.get(str(at), 0.0) >= sent_s:
            return  # a replica took another role meanwhile, and may have cut the record off
        logs = self._last_logs(state)
        if None in logs:
            return
        # A leader that a reassignment has removed acknowledges until it learns of that: the record is on its disk, and
        # acks=1 promises no other copy.
        ends = [durable_end(runner) for runner in [*logs, *self._removed_logs(state)]]
        if max(ends) < end:
            raise Violation("W17", f"{what}, and no replica of {at} has it on its disk: {ends}")

    def _is_of_present_epoch(self, state: PartitionState, end: int) -> bool:
        """Whether the present leader wrote a record: no record of its epoch is read below min.insync.replicas."""
        actor = self._actor(state, state.leader)
        runner = None if actor is None or actor.server is None else actor.server._runner
        machine = None if runner is None else runner.machine
        return machine is not None and epoch_at(machine.epochs, end - 1) == state.leader_epoch

    def _last_logs(self, state: PartitionState) -> list[Any]:
        """Return the runner of each replica's last life; None = not known."""
        actors = [self._actor(state, broker) for broker in state.replicas]
        return [None if actor is None or actor.server is None else actor.server._runner for actor in actors]

    def _removed_logs(self, state: PartitionState) -> list[Any]:
        """Return the runner of the last life of each replica that a partition has had on brokers that have none now."""
        others = [broker for broker in range(1, self._world.cluster.brokers + 1) if broker not in state.replicas]
        servers = [self._last_server(state, broker) for broker in others]
        return [server._runner for server in servers if server is not None and server._runner is not None]

    def _check_members(self, state: PartitionState, end: int, what: str) -> None:
        """Every running member of the ISR and every eligible replica has the committed records on its disk."""
        for broker, runner in self._able_to_lead(state):
            if (has := durable_end(runner)) < end:
                raise Violation(
                    "W17",
                    f"{what}, so {state.partition} is committed up to {end}; the replica on broker {broker} may lead "
                    f"(ISR {state.isr}, eligible {state.elr}) and has {has}",
                )

    def _check_copies(self, state: PartitionState, end: int, what: str) -> None:
        """At least min.insync.replicas replicas have what acks=all has acknowledged, dead ones counted."""
        wanted = int(TOPICS.get(state.partition.topic, (3, {}))[1].get("min.insync.replicas", MIN_INSYNC))
        wanted = min(wanted, TOPICS.get(state.partition.topic, (3, {}))[0])
        logs = zip(state.replicas, self._last_logs(state), strict=True)
        lacking = [broker for broker, runner in logs if runner is not None and durable_end(runner) < end]
        if len(state.replicas) - len(lacking) < wanted:
            raise Violation("W17", f"{what}; only brokers other than {lacking} of {state.replicas} have it")

    # ------------------------------------------------------------ at any time

    def look(self) -> None:
        """Check every machine by its own rules, and the replicas against each other."""
        try:
            self._validate()
        except InvariantBroken as broken:
            raise Violation("W10", f"a machine's books do not agree: {broken.claim}") from broken
        for actor, runner in self._replicas():
            self._check_leader(actor, runner)
            self._check_flush(actor, runner)
        self._check_stopped()
        self._check_asleep()
        self.presence.look()
        self.dozing.look()
        for at, end in self._committed.items():
            state = self._state(at)
            if state is not None and not state.unclean_leader_epoch:
                self._check_members(state, end, "clients know it")
                self._check_history(state, end)
        for actor in self._world.cluster.named("broker-"):
            if actor.process is not None and actor.server is not None:
                self._check_image(actor)

    def _validate(self) -> None:
        for _, runner in self._replicas():
            runner.machine.validate()
        controller = self._world.cluster.controller()
        if controller is not None and controller._runner is not None:
            controller._runner.machine.validate()
        for actor in self._world.cluster.named("coordinator-"):
            if actor.process is not None and actor.serves and actor.server._runner is not None:
                actor.server._runner._machine.validate()

    def _check_leader(self, actor: Actor, runner: Any) -> None:
        """A leader epoch has one leader."""
        machine, spec = runner.machine, actor.server.spec
        if machine.role == "leader":
            me = (spec.broker, machine.incarnation)
            first = self._leaders.setdefault((spec.topic_id, spec.partition, machine.leader_epoch), me)
            if first != me:
                raise Violation(
                    "W18", f"leader epoch {machine.leader_epoch} of {machine.partition} has two leaders: {first}, {me}"
                )

    def _check_flush(self, actor: Actor, runner: Any) -> None:
        """Under a relaxed flush policy too, a record is on the disk of a running replica soon after flush.ms."""
        log, now_s = runner.log, self._world.now_s
        is_late = actor.server.spec.topic == LOOSE and log.synced_end_offset < log.log_end_offset
        disks, process = self._world.disks, actor.process
        is_late &= disks is None or process is None or not disks.is_unwell(process.host)
        if not is_late or actor.process is None or actor.process.hangs:
            self._unsynced.pop(actor.name, None)
            return
        synced, since_s, life = self._unsynced.setdefault(actor.name, (log.synced_end_offset, now_s, actor.process))
        if synced != log.synced_end_offset or life is not actor.process:
            del self._unsynced[actor.name]
        elif now_s - since_s > LOOSE_FLUSH_MS / 1000 + SYNC_SLACK_S:
            raise Violation(
                "W20", f"{actor.name} has had {log.log_end_offset - synced} records to sync since {since_s}"
            )

    def _check_stopped(self) -> None:
        """A broker that an operator has stopped leads nothing, and is in no ISR that has a leader."""
        image = self._image()
        stopped = [] if image is None else [broker for broker in image.brokers if image.is_stopped(broker)]
        for state in image.partitions() if image is not None and stopped else ():
            for broker in stopped if state.asleep is None else ():
                if state.leader != -1 and broker in state.isr:
                    raise Violation("W18", f"broker {broker} was stopped, and {summary(state)} of {state.partition}")

    def _check_asleep(self) -> None:
        """A partition that sleeps ends where each of its ISR's logs ends, and has all that clients know."""
        image = self._image()
        for state in () if image is None else image.partitions():
            if state.asleep is None:
                continue
            end = state.asleep.end_offset
            if end < self._committed.get(state.partition, 0) and not state.unclean_leader_epoch:
                raise Violation(
                    "W21",
                    f"{state.partition} sleeps at {end}, and clients know that it is committed up to "
                    f"{self._committed[state.partition]}",
                )
            for broker in state.isr:
                server = self._last_server(state, broker)
                runner = None if server is None else server._runner
                if runner is not None and (has := runner.log.log_end_offset) != end:
                    raise Violation("W21", f"{state.partition} sleeps at {end}, and ends at {has} on broker {broker}")

    def sleeper(self) -> tuple[At, int] | None:
        """Return a user's partition that sleeps with records, and its end; None = there is none now."""
        image = self._image()
        for state in () if image is None else image.partitions():
            log, at = state.asleep, At(*state.partition)
            is_a_user_s = not at.topic.startswith(INTERNAL_PREFIX) and at.topic not in self._world.books.doomed
            if log is not None and is_a_user_s and log.log_start_offset < log.end_offset:
                return at, log.end_offset
        return None

    def sleepers(self) -> list[PartitionState]:
        """Return the partitions that sleep now."""
        image = self._image()
        return [] if image is None else [state for state in image.partitions() if state.asleep is not None]

    def process_of_sleeper(self) -> str:
        """Return the name of a process of a partition that sleeps; "" = there is none."""
        image = self._image()
        for state in () if image is None else image.partitions():
            for broker in state.replicas if state.asleep is not None else ():
                actor = self._actor(state, broker)
                if actor is not None and actor.process is not None:
                    return actor.name
        return ""

    def _last_server(self, state: PartitionState, broker: int) -> Any:
        """Return the server of a replica's last life, ended or not; None = it has had none."""
        at, cluster = state.partition, self._world.cluster
        name = replica_name(at.topic, at.partition, broker, state.topic_id)
        actor = cluster.actors.get(name)
        return cluster.ended.get(name) if actor is None or actor.server is None else actor.server

    def _check_history(self, state: PartitionState, end: int) -> None:
        """The last committed record has one leader epoch, on all replicas that may lead and at all times."""
        known = self._epochs.setdefault((state.topic_id, state.partition.partition), {})
        for broker, runner in self._able_to_lead(state):
            for offset in [*list(known)[-4:], end - 1]:
                if runner.machine.log_start_offset <= offset < runner.machine.log_end_offset:
                    epoch = epoch_at(runner.machine.epochs, offset)
                    if known.setdefault(offset, epoch) != epoch:
                        raise Violation(
                            "W17",
                            f"{state.partition} has a committed record of leader epoch {known[offset]} at {offset}, "
                            f"and one of epoch {epoch} on broker {broker}, which may lead",
                        )

    def _check_image(self, actor: Actor) -> None:
        """All brokers have the same state of a partition at the same partition epoch."""
        for state in actor.server.image.partitions():
            key = (state.topic_id, state.partition.partition, state.partition_epoch)
            found = (state.leader, state.leader_epoch, state.isr, state.elr, state.replicas, state.asleep)
            if (first := self._metadata.setdefault(key, found)) != found:
                raise Violation(
                    "W18", f"{actor.name} has {found} of {state.partition} at partition epoch {key[2]}, not {first}"
                )

    # ------------------------------------------------------------ metadata

    def _watch_images(self) -> None:
        """Check each change of a partition's state where it is applied, at the controller and at brokers."""
        apply, world = MetadataImage.apply, self._world

        def checked(image: MetadataImage, record: Any) -> None:
            at = At(record.topic, record.partition) if hasattr(record, "partition_epoch") else None
            before = None if at is None else image.partition(at)
            apply(image, record)
            after = None if at is None else image.partition(at)
            if world.plan.sleeps and turned(before, after) and image is self._image():
                self.transitions += 1
                world.nemesis.schemes.transition(At(record.topic, record.partition))
            if before is None or after is None or after.partition_epoch != before.partition_epoch + 1:
                return  # no change of a partition, or one of several at once: a snapshot
            if after.asleep is not None and before.asleep is None and before.leader == -1:
                return  # a snapshot, too: nothing falls asleep without a leader
            if wrong := forbidden(before, after):
                world.fail(Violation("W18", f"{at} {wrong}: {summary(before)}, then {summary(after)}"))

        MetadataImage.apply = checked  # type: ignore[assignment, method-assign]

    # ------------------------------------------------------------ at the end

    def final_difference(self) -> str:
        """Return a difference between the controller's metadata and a broker's, or between two replicas' logs."""
        image = self._image()
        if image is None:
            return "no controller"
        for actor in self._world.cluster.named("broker-"):
            if not actor.serves or actor.server.image.version != image.version:
                return f"{actor.name} is not at the metadata's version {image.version}"
            if actor.server.image != image:
                raise Violation(
                    "W19", f"{actor.name} has other metadata of version {image.version} than the controller"
                )
        for state in image.partitions():
            if missing := self._replicas_differ(state):
                return missing
        return ""

    def _replicas_differ(self, state: PartitionState) -> str:
        if state.asleep is not None:
            is_used = At(*state.partition) in self._world.open_partitions()
            return f"{state.partition} sleeps" if is_used else ""
        leader: Any = None
        for broker in (state.leader, *state.isr):
            actor = self._actor(state, broker)
            runner = actor.server._runner if actor is not None and actor.serves else None
            if runner is None or runner.machine is None:
                return f"the replica of {state.partition} on broker {broker} does not run"
            if leader is None:
                leader = runner
            logs = leader.machine, runner.machine
            starts, marks = [log.log_start_offset for log in logs], [log.high_watermark for log in logs]
            is_written_to = state.partition.topic.startswith(INTERNAL_PREFIX)
            if not is_written_to and {*marks} != {logs[0].log_end_offset}:
                return f"{state.partition} goes from {starts} to {marks} on brokers {state.leader} and {broker}"
            # A replica may have begun a deletion that was never acknowledged, and lack what the leader has.
            is_compacted = leader.log.config.compaction is not None
            # Each may have cleaned up to its watermark, which moves on in coordinators' topics; the other has that.
            end = min(log.log_end_offset for log in logs) if is_compacted else min(marks)
            found = [content(log, max(starts), end) for log in (leader, runner)]
            if any(state.partition.topic in part.may_differ for part in self._world.parts):
                continue
            if is_compacted:
                removals = self._world.table_books.removals(At(*state.partition))
                if wrong := difference(rows_of(found[0]), rows_of(found[1]), removals):
                    raise Violation("W19", f"{state.partition} on brokers {state.leader} and {broker}: {wrong}")
            elif found[0] != found[1]:
                raise Violation(
                    "W19", f"the replicas of {state.partition} on brokers {state.leader} and {broker} are not the same"
                )
        return ""

    def runners(self, at: At) -> dict[int, Any]:
        """Return the runner of each replica of a partition, its leader first, by broker; None = it does not run."""
        state, found = self._state(at), dict[int, Any]()
        for broker in () if state is None else (state.leader, *state.replicas):
            actor = self._actor(state, broker) if state is not None else None
            runner = actor.server._runner if actor is not None and actor.serves else None
            found[broker] = None if runner is None or runner.machine is None else runner
        return found

    def partitions_of(self, topic: str) -> list[At]:
        """Return the partitions of a topic that are awake."""
        image = self._image()
        states = () if image is None or topic not in image.topics else image.topics[topic].partitions
        return [At(topic, number) for number, state in enumerate(states) if state.asleep is None]

    def has_topic(self, topic: str) -> bool:
        """Return whether there is a topic, awake or not."""
        image = self._image()
        return image is not None and topic in image.topics

    def leader_log(self, at: At) -> Any:
        """Return the runner of a partition's leader."""
        state = self._state(at)
        actor = None if state is None else self._actor(state, state.leader)
        assert actor is not None, f"{at} has no leader at the end"
        return actor.server._runner

    def leader_epoch(self, at: At) -> int:
        """Return the leader epoch of a partition; -1 = not known now."""
        state = self._state(at)
        return -1 if state is None else state.leader_epoch

    def may_stop(self, broker: int) -> bool:
        """Return whether every partition has replicas enough to do without a broker."""
        image = self._image()
        return image is not None and all(
            len(state.replicas) > MIN_INSYNC or broker not in state.replicas for state in image.partitions()
        )

    # ------------------------------------------------------------ servers

    def _image(self) -> MetadataImage | None:
        controller = self._world.cluster.controller()
        if controller is None or controller._runner is None:
            return None
        image: MetadataImage = controller._runner.machine.image
        return image

    def _state(self, at: At) -> PartitionState | None:
        image = self._image()
        return None if image is None else image.partition(at)

    def _actor(self, state: PartitionState, broker: int) -> Actor | None:
        at = state.partition
        return self._world.cluster.actors.get(replica_name(at.topic, at.partition, broker, state.topic_id))

    def _replicas(self) -> Iterator[Replica]:
        """Yield the replicas that are registered and alive."""
        for actor in self._world.nemesis.replicas():
            if actor.process is not None and actor.server is not None:
                runner = actor.server._runner
                if runner is not None and runner.machine is not None and actor.server._opened is not None:
                    yield actor, runner

    def _able_to_lead(self, state: PartitionState) -> Iterator[tuple[int, Any]]:
        """Yield broker and runner of the running replicas that may be elected, in their registered incarnation."""
        image = self._image()
        for broker in (*state.isr, *state.elr):
            actor, place = self._actor(state, broker), state.place(broker)
            if actor is None or actor.process is None or actor.server is None or place is None or image is None:
                continue
            runner = actor.server._runner
            if runner is None or runner.machine is None or (state.partition, broker) in image.lost_logs:
                continue
            if runner.machine.incarnation == place.incarnation:
                yield broker, runner


def turned(before: PartitionState | None, after: PartitionState | None) -> bool:
    """Return whether a partition has fallen asleep or begun to wake."""
    return before is not None and after is not None and (before.asleep is None) != (after.asleep is None)


def durable_end(runner: Any) -> int:
    """Return the end of what a replica has on its disk, or what counts as that by its flush policy."""
    strict = runner._flush.before_acknowledging
    end: int = runner.log.synced_end_offset if strict else runner.log.log_end_offset
    return end


def epoch_at(epochs: tuple[tuple[int, int], ...], offset: int) -> int:
    """Return the leader epoch that an epoch history gives to an offset; -1 = none."""
    place = bisect_right([start for _, start in epochs], offset)
    return epochs[place - 1][0] if place else -1


def content(runner: Any, offset: int, end: int) -> bytes:
    """Return the bytes of the batches from one offset up to another."""
    found = b""
    while offset < end:
        data = runner.log.read(offset, 1 << 20, end)
        offset = max(header.next_offset for _, header in iter_headers(memoryview(data)))
        found += data
    return found


def forbidden(before: PartitionState, after: PartitionState) -> str:
    """Return the rule that a change of a partition's state breaks; empty = none."""
    elected = after.leader != -1 and after.leader_epoch != before.leader_epoch
    unclean = after.unclean_leader_epoch != before.unclean_leader_epoch
    joined = set(after.isr) - set(before.isr)
    rules: list[tuple[bool, str]] = [
        (after.leader != before.leader and after.leader != -1 and not elected, "has two leaders in one leader epoch"),
        (after.leader_epoch < before.leader_epoch, "goes back to an earlier leader epoch"),
        (after.leader != -1 and after.leader not in after.isr, "has a leader that is not in sync"),
        (not set(after.isr) <= set(after.replicas), "has a member of the ISR that is no replica"),
        (
            elected and not unclean and after.leader not in (*before.isr, *before.elr),
            "elects a replica that was neither in sync nor eligible",
        ),
        (
            bool(joined) and not unclean and (elected or after.leader == -1) and not joined <= set(before.elr),
            "takes a replica into the ISR in an election",
        ),
        (
            unclean and (after.isr != (after.leader,) or bool(after.elr)),
            "takes more than the leader of an unclean election for in sync",
        ),
        (
            bool(set(after.elr) - set(before.isr) - set(before.elr)),
            "makes a replica eligible that was not in sync",
        ),
    ]
    return next((text for broken, text in rules if broken), "")


def summary(state: PartitionState) -> str:
    """Return leader, epochs, ISR and eligible replicas of a state."""
    return (
        f"leader {state.leader} in epoch {state.leader_epoch}, ISR {state.isr}, eligible {state.elr} of "
        f"{state.replicas} at {state.partition_epoch}"
    )
