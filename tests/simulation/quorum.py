"""A world of metadata voters and controllers, with lost, repeated and late messages, crashes and lost directories.

Controllers take snapshots; what one says is modelled by the batches that it stands for. One run is one seed. The checks
are I5 (an epoch has one controller) and I10 (what is committed never changes, committed logs are prefixes of one
another, and snapshots have nothing else). ``planted`` swaps a part for one that is wrong on purpose.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from raylog.core.quorum import Found, LogHistory, Proposer, ProposerSettings, Span, VoterMachine, put_together
from raylog.core.quorum import events as ev
from tests.simulation.quorum_planted import CarelessVoter, CountingProposer, EagerProposer, LongestElection, Planted

Members = tuple[tuple[int, str], ...]
Batch = tuple[Span, str, Members | None]
"""One batch: its span, what it says, and whose answers count from then on, if it says that."""
Snapshot = tuple[int, int, tuple[Batch, ...]]
"""Its end, the epoch of its last record, and what it stands for."""


class Broken(AssertionError):
    """A check failed."""


@dataclass
class Disk:
    """What a voter has on disk; ``batches`` beyond ``synced`` may be lost in a crash, and so may ``unsaved``."""

    identity: str
    batches: list[Batch] = field(default_factory=list)
    synced: int = 0
    promised: int = 0
    candidate: str = ""
    admitted: bool = False
    start: int = 0
    snapshot: Snapshot | None = None
    unsaved: Snapshot | None = None
    """A snapshot that was not brought to disk (a planted bug)."""

    def log(self) -> LogHistory:
        """What the log alone says."""
        history = LogHistory(end=self.start, start=self.start)
        history.append([span for span, _, _ in self.batches])
        return history

    def found(self) -> Found:
        snapshot = self.unsaved or self.snapshot
        return put_together(self.log(), None if snapshot is None else snapshot[:2])

    def content(self) -> tuple[Batch, ...]:
        """All batches, those in the snapshot in front."""
        snapshot = self.unsaved or self.snapshot
        before = () if snapshot is None else snapshot[2]
        return (*before, *self.batches)


class World:
    """Voters, controllers and the network between them."""

    def __init__(self, seed: int, voters: int = 3, planted: Planted | None = None) -> None:
        self.random = random.Random(seed)
        self.planted = planted or Planted()
        self.now_ms = 0
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        self.count = 0
        self.numbers = tuple(range(1, voters + 1))
        self.loss = self.random.choice([0.0, 0.05, 0.2])
        self.copies = self.random.choice([0.0, 0.1, 0.3])
        self.late = self.random.choice([0.0, 0.02, 0.1])
        self.fragile = self.random.choice([0.0, 0.0, 0.5])
        """Share of elections and commits that the controller does not survive for long."""
        self.chunk = self.random.choice([1, 2, 8])
        self.short = self.random.choice([0, 0, 2, 5, 15])
        """After how many batches a controller takes a snapshot; 0 = never."""
        self.torn = self.random.choice([0.0, 0.0, 0.3])
        """Share of steps with a snapshot after which the voter's process dies at once."""
        self.torn_at: tuple[type, ...] = (ev.SaveSnapshot, ev.RestartLog)
        self.snapshots = 0
        self.restarts = 0
        self.disks = {number: Disk(f"{number}.1") for number in self.numbers}
        self.voters: dict[int, SimVoter | None] = {number: SimVoter(self, number) for number in self.numbers}
        self.controllers: list[SimController] = []
        self.committed: list[Batch] = []
        self.winners: dict[int, str] = {}
        self.losses = 0
        self.wins = 0
        self.quiet = False
        """Controllers decide nothing by themselves any more."""
        self.cut: set[int] = set()
        """Voters that no request reaches."""
        self.decided = 0

    def after(self, delay_ms: int, work: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.queue, (self.now_ms + delay_ms, self.count, work))

    def send(self, deliver: Callable[[], None]) -> None:
        """Carry a message: it may be lost, repeated, or very late."""
        if self.random.random() < self.loss:
            return
        for _ in range(2 if self.random.random() < self.copies else 1):
            delay_ms = self.random.randint(1, 20)
            if self.random.random() < self.late:
                delay_ms += self.random.randint(100, 3_000)
            self.after(delay_ms, deliver)

    def run(self, duration_ms: int) -> None:
        end = self.now_ms + duration_ms
        while self.queue and self.queue[0][0] <= end:
            self.now_ms, _, work = heapq.heappop(self.queue)
            work()
        self.now_ms = end

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Run until the condition holds, for at most 20 virtual seconds."""
        end = self.now_ms + 20_000
        while not condition():
            assert self.now_ms < end, "the story went another way"
            self.run(1)

    # ------------------------------------------------------------ checks

    def won(self, epoch: int, controller: SimController) -> None:
        """I5."""
        if self.winners.setdefault(epoch, controller.name) != controller.name:
            raise Broken(f"epoch {epoch} has two controllers: {self.winners[epoch]} and {controller.name}")
        self.wins += 1

    def is_committed(self, batches: list[Batch]) -> None:
        """I10."""
        for mine, known in zip(batches, self.committed, strict=False):
            if mine != known:
                raise Broken(f"committed {known}, and then {mine} in its place")
        if len(batches) > len(self.committed):
            self.committed = list(batches)
            self.decided = len(batches)

    def is_snapshot(self, content: tuple[Batch, ...]) -> None:
        """I10: a voter lets go of what a snapshot stands for, so nothing in it may ever change."""
        if list(content) != self.committed[: len(content)]:
            raise Broken(f"a snapshot ends with {content[-1]}, which is not committed")

    # ------------------------------------------------------------ faults

    def crash_voter(self, number: int, down_ms: int) -> None:
        voter, disk = self.voters[number], self.disks[number]
        if voter is None:
            return
        voter.alive = False
        self.voters[number] = None
        disk.unsaved = None
        kept = self.random.randint(disk.synced, len(disk.batches))
        del disk.batches[kept:]
        disk.synced = len(disk.batches)
        if self.planted.promise_forgotten:
            disk.promised, disk.candidate = max((span.epoch for span, _, _ in disk.batches), default=0), ""
        self.after(down_ms, lambda: self.start_voter(number))

    def start_voter(self, number: int) -> None:
        if self.voters[number] is None:
            if self.disks[number].found().lost and not self.planted.open_without_epoch:
                self.losses += 1
                self.disks[number] = Disk(f"{number}.{self.losses + 1}")
            self.voters[number] = SimVoter(self, number)

    def lose_directory(self, number: int) -> bool:
        """Lose a voter's directory, if all voters count at the moment: one loss at a time is what is promised."""
        entered = dict(next((members for _, _, members in reversed(self.committed) if members), ()))
        if any(not disk.admitted or entered.get(one) != disk.identity for one, disk in self.disks.items()):
            return False
        self.crash_voter(number, self.random.randint(10, 500))
        self.losses += 1
        self.disks[number] = Disk(f"{number}.{self.losses + 1}", admitted=self.planted.lost_voter_counts)
        if self.planted.lost_voter_counts:
            self.disks[number].identity = entered[number]
        return True

    def start_controller(self) -> SimController:
        controller = SimController(self, f"c{len(self.controllers) + 1}")
        self.controllers.append(controller)
        return controller


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
            admitted=disk.admitted,
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
            disk.promised, disk.candidate, disk.admitted = effect.epoch, effect.candidate, effect.admitted

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
        if self.disk.unsaved is not None:
            self.disk.snapshot, self.disk.unsaved = self.disk.unsaved, None
        for effect in effects:
            answer(effect, self)


class SimController:
    """One life of a controller: a proposer, the log it adopted, and a stream of decisions."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, self.alive = world, name, True
        kind = CountingProposer if world.planted.old_entries_by_count else Proposer
        kind = EagerProposer if world.planted.snapshot_of_uncommitted else kind
        self.proposer = kind(
            world.numbers,
            candidate=name,
            settings=ProposerSettings(retry_ms=50, heartbeat_ms=200),
            jitter_ms=world.random.randint(0, 200),
        )
        if world.planted.longest_log:
            self.proposer._election = LongestElection(world.numbers, None)
        self.prefix: tuple[Batch, ...] = ()
        """What the snapshot stands for that this controller holds."""
        self.batches: list[Batch] = []
        self.captured = 0
        self.paused_until_ms = 0
        self.reads = 0
        self.leads = False
        self.end_reason = ""
        self.tick()

    def tick(self) -> None:
        if self.alive:
            self.feed(ev.Tick(now_ms=self.world.now_ms))
            if self.leads and not self.world.quiet and self.world.random.random() < 0.3:
                self.decide(f"{self.name} at {self.world.now_ms}")
            if self.leads and 0 < self.world.short <= len(self.batches) and not self.captured:
                self.captured = self.proposer.history.end
            self.snapshot()
            self.world.after(20, self.tick)

    def snapshot(self) -> None:
        """Let a snapshot stand for what was captured, once that is committed."""
        end = self.captured
        if not end or not (self.proposer.committed >= end or self.world.planted.snapshot_of_uncommitted):
            return
        self.captured = 0
        self.prefix += tuple(batch for batch in self.batches if batch[0].end <= end)
        self.batches = [batch for batch in self.batches if batch[0].start >= end]
        self.world.snapshots += 1
        self.feed_now(ev.SnapshotTaken(now_ms=self.world.now_ms, end=end))

    def feed(self, event: ev.ProposerEvent) -> None:
        if not self.alive:
            return
        if self.world.now_ms < self.paused_until_ms:
            self.world.after(self.paused_until_ms - self.world.now_ms, lambda: self.feed(event))
            return
        for effect in self.proposer.step(event).now:
            self.carry_out(effect)

    def decide(self, text: str, members: Members | None = None) -> None:
        start = self.proposer.history.end
        span = Span(start, start + self.world.random.randint(1, 3), self.proposer.epoch)
        self.batches.append((span, text, members))
        entered = None if members is None else dict(members)
        self.feed_now(ev.Appended(now_ms=self.world.now_ms, span=span, members=entered))

    def feed_now(self, event: ev.ProposerEvent) -> None:
        for effect in self.proposer.step(event).now:
            self.carry_out(effect)

    def members(self) -> dict[int, str]:
        return dict(next((members for _, _, members in reversed((*self.prefix, *self.batches)) if members), ()))

    def carry_out(self, effect: ev.ProposerEffect) -> None:
        world = self.world
        match effect:
            case ev.AskPromise():
                promise = ev.PromiseRequested(request=effect.request, epoch=effect.epoch, candidate=effect.candidate)
                self.ask(effect.voter, effect.request, promise, [])
            case ev.SendAppend():
                first = next((i for i, batch in enumerate(self.batches) if batch[0].start >= effect.start), None)
                sent = [] if first is None else self.batches[first : first + world.random.randint(1, world.chunk)]
                append = ev.AppendRequested(
                    request=effect.request,
                    epoch=effect.epoch,
                    candidate=effect.candidate,
                    start=effect.start,
                    previous_epoch=effect.previous_epoch,
                    spans=tuple(batch[0] for batch in sent),
                    committed=effect.committed,
                    admit=effect.admit,
                )
                self.ask(effect.voter, effect.request, append, sent)
            case ev.SendSnapshot():
                offer = ev.SnapshotOffered(
                    request=effect.request,
                    epoch=effect.epoch,
                    candidate=effect.candidate,
                    end=effect.end,
                    end_epoch=effect.end_epoch,
                    admit=effect.admit,
                )
                self.ask(effect.voter, effect.request, offer, list(self.prefix))
            case ev.ReadHistory():
                self.reads += 1
                if effect.source is None:
                    self.prefix, self.batches = (), []
                    self.feed_now(ev.HistoryRead(now_ms=world.now_ms, source=None, members={}))
                    return
                read = ev.ReadRequested(request=0, epoch=effect.epoch, candidate=effect.candidate, offset=0)
                self.read(effect.source, effect.start, effect.end, read)
            case ev.Won():
                world.won(effect.epoch, self)
                self.leads = True
                self.decide(f"{self.name} began epoch {effect.epoch}")
                self.maybe_die()
            case ev.EnterVoters():
                self.decide("voters", tuple(sorted(effect.members.items())))
            case ev.Committed():
                world.is_committed([*self.prefix, *(batch for batch in self.batches if batch[0].end <= effect.end)])
                self.maybe_die()
            case ev.Fenced() | ev.Hopeless():
                self.alive, self.end_reason = False, type(effect).__name__

    def maybe_die(self) -> None:
        """Die soon, where the world is so; what was sent is on its way, what was not is gone."""
        if self.world.random.random() < self.world.fragile:
            self.world.after(self.world.random.randint(0, 60), self.die)

    def die(self) -> None:
        self.alive = False

    def ask(self, number: int, request: int, event: ev.VoterEvent, batches: list[Batch]) -> None:
        world = self.world

        def answer(effect: ev.VoterEffect, voter: SimVoter) -> None:
            identity = voter.disk.identity
            world.send(lambda: self.answered(number, identity, effect))

        def deliver() -> None:
            voter = world.voters[number]
            if voter is not None and number not in world.cut:
                voter.receive(event, batches, answer)

        world.send(deliver)
        world.after(150, lambda: self.feed(ev.VoterSilent(now_ms=world.now_ms, voter=number, request=request)))

    def read(self, source: int, start: int, end: int, event: ev.ReadRequested) -> None:
        world = self.world
        self.reads += 1
        number = self.reads

        def answer(effect: ev.VoterEffect, voter: SimVoter) -> None:
            assert isinstance(effect, ev.ReadReply)
            held = [batch for batch in voter.disk.content() if batch[0].end <= end]
            same = effect.allowed and effect.start == start
            world.send(lambda: finish(held if same else None, effect.promised))

        def finish(held: list[Batch] | None, promised: int) -> None:
            if number != self.reads or not self.alive or self.leads:
                return
            self.reads += 1
            if held is None:
                self.feed(ev.HistoryUnreadable(now_ms=world.now_ms, source=source, promised=promised))
            else:
                self.prefix = tuple(batch for batch in held if batch[0].end <= start)
                self.batches = held[len(self.prefix) :]
                self.feed(ev.HistoryRead(now_ms=world.now_ms, source=source, members=self.members()))

        def deliver() -> None:
            voter = world.voters[source]
            if voter is not None:
                voter.receive(event, [], answer)

        world.send(deliver)
        world.after(200, lambda: finish(None, 0))

    def answered(self, number: int, identity: str, effect: ev.VoterEffect) -> None:
        now_ms = self.world.now_ms
        if isinstance(effect, ev.PromiseReply):
            self.feed(
                ev.PromiseAnswered(
                    now_ms=now_ms,
                    voter=number,
                    request=effect.request,
                    granted=effect.granted,
                    promised=effect.promised,
                    admitted=effect.admitted,
                    identity=identity,
                    history=LogHistory(effect.epochs, effect.end, effect.start),
                )
            )
        elif isinstance(effect, ev.AppendReply):
            self.feed(
                ev.AppendAnswered(
                    now_ms=now_ms,
                    voter=number,
                    request=effect.request,
                    promised=effect.promised,
                    admitted=effect.admitted,
                    identity=identity,
                    matched=effect.matched,
                    history=LogHistory(effect.epochs, effect.end, effect.start),
                )
            )
