"""One life of a simulated voter: the machine, and what its effects do to the disk, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from raylog.core.quorum import LogHistory, VoterMachine, put_together
from raylog.core.quorum import events as ev
from tests.simulation.quorum_disk import Batch, Broken
from tests.simulation.quorum_planted import CarelessVoter

if TYPE_CHECKING:
    from tests.simulation.quorum import World


class SimVoter:
    """One life of a voter."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number, self.alive = world, number, True
        self.disk = disk = world.disks[number]
        kind = CarelessVoter if world.planted.any_tail_kept else VoterMachine
        self.machine = kind(
            self._opened(),
            identity=disk.identity,
            promised=disk.promised,
            candidate=disk.candidate,
            trusted=disk.trusted,
        )

    def _opened(self) -> LogHistory:
        """Finish what a crash interrupted."""
        disk = self.disk
        found, snapshot = disk.found(), disk.snapshot
        if self.world.planted.open_without_epoch and snapshot is not None and disk.log().end >= snapshot[0]:
            disk.batches = [batch for batch in disk.batches if batch[0].start >= snapshot[0]]
            disk.start, disk.synced = snapshot[0], len(disk.batches)
            return put_together(disk.log(), snapshot[:2]).history
        if found.restart_at is not None:
            disk.batches, disk.start, disk.synced = [], found.restart_at, 0
        elif found.drop_before is not None:
            self._drop(found.drop_before)
        return found.history

    def _drop(self, to: int) -> None:
        disk = self.disk
        kept = [batch for batch in disk.batches if batch[0].start >= to]
        disk.synced = max(0, disk.synced - (len(disk.batches) - len(kept)))
        disk.batches, disk.start = kept, to

    def receive(
        self, event: ev.VoterEvent, batches: list[Batch], answer: Callable[[ev.VoterEffect, SimVoter], None]
    ) -> None:
        if not self.alive:
            return
        outbox = self.machine.step(event)
        for effect in outbox.now:
            for step in self._steps(effect, batches):
                step()
                torn = isinstance(effect, self.world.torn_at)
                if torn and self.world.random.random() < self.world.torn:
                    self.world.crash_voter(self.number, self.world.random.choice([10, 200]))
                    return
        held, known = self.disk.found().history, self.machine.history
        if (held.epochs, self.disk.start) != (known.epochs, known.start):
            raise Broken(f"voter {self.number} has {held} on disk and takes it for {known}")
        early = self.world.planted.answer_before_sync
        self.world.after(
            0 if early else self.world.random.randint(0, 15), lambda: self.synced(outbox.after_sync, answer)
        )

    def _steps(self, effect: ev.VoterEffect, batches: list[Batch]) -> list[Callable[[], None]]:
        """What an effect does to the disk, in steps; a crash may come between any two."""
        disk = self.disk

        def promise() -> None:
            assert isinstance(effect, ev.SavePromise)
            disk.promised, disk.candidate, disk.trusted = effect.epoch, effect.candidate, effect.trusted

        def cut(to: int) -> None:
            disk.batches = [batch for batch in disk.batches if batch[0].end <= to]
            disk.synced = len(disk.batches)

        def save() -> None:
            assert isinstance(effect, ev.SaveSnapshot)
            snapshot = (effect.end, effect.epoch, tuple(batches))
            self.world.is_snapshot(snapshot[2])
            if self.world.planted.dropped_before_durable:
                disk.unsaved = snapshot
            else:
                disk.snapshot = snapshot

        def start_at(at: int) -> None:
            disk.batches = [batch for batch in disk.batches if batch[0].start >= at]
            disk.start, disk.synced = at, len(disk.batches)

        match effect:
            case ev.SavePromise():
                return [promise]
            case ev.TruncateLog():
                return [lambda: cut(effect.to)]
            case ev.AppendSpans():
                return [lambda: disk.batches.extend(batches[effect.first :])]
            case ev.SaveSnapshot():
                return [save]
            case ev.DropPrefix():
                return [lambda: self._drop(effect.to)]
            case ev.RestartLog():
                self.world.restarts += 1
                steps: list[Callable[[], None]] = [lambda: cut(0), lambda: start_at(effect.at)]
                return steps[::-1] + steps[:1] if self.world.planted.start_moved_first else steps
            case _:
                return []

    def synced(self, effects: list[ev.VoterEffect], answer: Callable[[ev.VoterEffect, SimVoter], None]) -> None:
        if not self.alive:
            return
        if not self.world.planted.answer_before_sync or self.world.random.random() < 0.3:
            self.disk.synced = len(self.disk.batches)
        if self.disk.content():
            self.disk.founder = self.world.planted.founder_for_ever and self.disk.founder
        if self.disk.unsaved is not None:
            self.disk.snapshot, self.disk.unsaved = self.disk.unsaved, None
        for effect in effects:
            if isinstance(effect, ev.AppendReply) and effect.matched is not None:
                self.world.holds(self.disk.identity, effect.promised, effect.matched)
            answer(effect, self)
