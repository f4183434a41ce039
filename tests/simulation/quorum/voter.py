"""One life of a simulated voter: the shipped runner on a virtual disk, where any write may be the last one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from raylog.actors.metadata.voter import order_of
from raylog.actors.metadata.voter_runner import Answer, VoterRunner
from raylog.core.quorum import LogHistory, VoterMachine
from raylog.core.quorum import events as ev
from raylog.protocol.broker import BROKER
from raylog.protocol.message import Message
from raylog.protocol.voter import VoterAppendReply
from tests.simulation.quorum.disk import Broken, batches_of, snapshot_of

if TYPE_CHECKING:
    from tests.simulation.quorum.simulation import World


class Call(NamedTuple):
    """A request in flight to a voter."""

    method: str
    args: Message
    payload: memoryview


class SimVoter:
    """One life of a voter."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.disk = disk = world.disks[number]
        self.machine = VoterMachine(
            self._opened(),
            identity=disk.identity,
            promised=disk.promised,
            candidate=disk.candidate,
            trusted=disk.trusted,
        )
        self._open: dict[int, tuple[ev.VoterEvent, Callable[[Answer], None]]] = {}
        self._last = 0
        self._files = VirtualFiles(self)
        self._runner = VoterRunner(self.machine, self._files, answer=self._answer, on_defect=lambda _: None)

    def _opened(self) -> LogHistory:
        """Finish work that a crash interrupted."""
        disk = self.disk
        found = disk.found()
        if found.restart_at is not None:
            disk.batches, disk.start, disk.synced = [], found.restart_at, 0
        elif found.drop_before is not None:
            disk.drop(found.drop_before)
        return found.history

    def receive(self, call: Call, answer: Callable[[Answer], None]) -> None:
        """Handle a request that arrived."""
        self._last += 1
        order = order_of(BROKER.read_request(call.method, call.args), call.payload, self._last)
        self._open[self._last] = (order.event, answer)
        self._runner.take(order)
        if self._runner.is_over:
            return
        disk, known = self.disk, self.machine.history
        epoch = disk.batches[-1][0].epoch if disk.batches else known.epoch_before(disk.start)
        if (disk.start, disk.end(), epoch) != (known.start, known.end, known.epoch_before(known.end)):
            raise Broken(f"voter {self.number} has {disk.found()} on disk and takes it for {known}")
        if not known.start <= self.machine.committed <= known.end:
            raise Broken(f"voter {self.number} has {known} and takes {self.machine.committed} for committed")

    def crash(self) -> None:
        """End this life."""
        self._runner.end()

    def synced(self) -> None:
        """The disk has completed all writes so far."""
        if not self._runner.is_over:
            self._files.sync()
            self._runner.release()

    def _answer(self, answer: Answer) -> None:
        event, send = self._open.pop(answer.request)
        if isinstance(event, (ev.AppendRequested, ev.SnapshotOffered)):
            reply = answer.args
            assert isinstance(reply, VoterAppendReply)
            if reply.matched is not None:
                self.world.confirms(self, event, reply.matched)
                self.world.holds(reply.identity, reply.promised, reply.matched)
        send(answer)


class VirtualFiles:
    """The voter's disk: appended batches may be lost until they are synced, and the process may die at each step."""

    def __init__(self, voter: SimVoter) -> None:
        self._voter = voter
        self._world = voter.world
        self._disk = voter.disk

    @property
    def is_founder(self) -> bool:
        return self._disk.founder

    @property
    def holds_data(self) -> bool:
        return self._disk.holds_data

    def end(self) -> int:
        return self._disk.end()

    def durable_end(self) -> int:
        return self._disk.durable_end()

    def kick(self) -> None:
        world = self._world
        world.after(world.random.randint(0, 300 if world.random.random() < world.slow else 15), self._voter.synced)

    def save_promise(self, promise: ev.SavePromise) -> None:
        disk = self._disk
        disk.promised, disk.candidate, disk.trusted = promise.epoch, promise.candidate, promise.trusted
        self._world.promises(disk.identity, promise)
        self._is_torn(ev.SavePromise)

    def truncate_to(self, to: int) -> None:
        self._disk.truncate(to)
        self._is_torn(ev.TruncateLog)

    def append(self, payload: memoryview, first: int) -> None:
        self._disk.batches.extend(batches_of(bytes(payload))[first:])
        self._is_torn(ev.AppendSpans)

    def save_snapshot(self, payload: memoryview, effect: ev.SaveSnapshot) -> None:
        snapshot = snapshot_of(bytes(payload))
        self._world.is_snapshot(snapshot)
        self._disk.snapshot = snapshot
        self._is_torn(ev.SaveSnapshot)

    def drop_prefix(self, to: int) -> None:
        self._world.are_committed([batch for batch in self._disk.batches if batch[0].end <= to])
        self._disk.drop(to)
        self._is_torn(ev.DropPrefix)

    def restart_at(self, at: int) -> None:
        self._world.restarts += 1
        disk = self._disk
        for step, offset in ((disk.truncate, 0), (disk.start_at, at)):
            step(offset)
            if self._is_torn(ev.RestartLog):
                return
        self._end_founding()

    def sync(self) -> None:
        self._disk.synced = len(self._disk.batches)
        self._end_founding()

    def read(self, offset: int, end: int) -> bytes:
        if offset < self._disk.start:
            snapshot = self._disk.snapshot
            return b"" if snapshot is None else snapshot.to_bytes()
        held = [payload for span, payload in self._disk.batches if offset <= span.start and span.end <= end]
        return b"".join(held[: self._world.chunk])

    def _end_founding(self) -> None:
        if self._disk.has_log():
            self._disk.founder = False

    def _is_torn(self, kind: type) -> bool:
        """Return whether the process dies right after this step."""
        world = self._world
        if kind in world.torn_at and world.random.random() < world.torn:
            world.crash_voter(self._voter.number, world.random.choice([10, 200]))
            return True
        return False
