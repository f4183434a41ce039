"""One life of a simulated controller: a proposer, the log it adopted, and a stream of decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raylog.actors.voter_runner import Answer
from raylog.core.quorum import LogHistory, ProposerSettings, Span
from raylog.core.quorum import events as ev
from tests.simulation.quorum_disk import Batch, Members, last_members
from tests.simulation.quorum_planted import election_of, proposer_of

if TYPE_CHECKING:
    from tests.simulation.quorum import World


class SimController:
    """One life of a controller: a proposer, the log it adopted, and a stream of decisions."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, self.alive = world, name, True
        kind = proposer_of(world.planted)
        self.proposer = kind(
            world.founders,
            candidate=name,
            settings=ProposerSettings(retry_ms=50, heartbeat_ms=200, hopeless_ms=1_500),
            jitter_ms=world.random.randint(0, 200),
        )
        self.proposer._election = election_of(world.planted, world.founders)
        self.wanted: frozenset[int] = frozenset()
        self.began_ms = world.now_ms
        self.looks: int | None = world.random.choice([0, 50, 500])
        """When it finds out which brokers run."""
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
            if self.looks is not None and self.world.now_ms >= self.began_ms + self.looks:
                self.looks = None
                self.feed(ev.BrokersFound(now_ms=self.world.now_ms, brokers=frozenset(self.world.numbers)))
            self.feed(ev.Tick(now_ms=self.world.now_ms))
            if self.leads and self.wanted != self.world.wanted:
                self.wanted = self.world.wanted
                self.feed(ev.VotersWanted(now_ms=self.world.now_ms, voters=self.wanted))
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
        entered = None if members is None else dict(members)
        if members is not None:
            self.world.enters(self, dict(members))
        self.batches.append((span, text, members))
        self.feed_now(ev.Appended(now_ms=self.world.now_ms, span=span, members=entered))

    def feed_now(self, event: ev.ProposerEvent) -> None:
        for effect in self.proposer.step(event).now:
            self.carry_out(effect)

    def start(self) -> int:
        return self.prefix[-1][0].end if self.prefix else 0

    def members(self) -> dict[int, str]:
        return last_members((*self.prefix, *self.batches))

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
                )
                self.ask(effect.voter, effect.request, append, sent)
            case ev.SendSnapshot():
                offer = ev.SnapshotOffered(
                    request=effect.request,
                    epoch=effect.epoch,
                    candidate=effect.candidate,
                    end=effect.end,
                    end_epoch=effect.end_epoch,
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
                world.won(effect.epoch, self, dict(effect.members))
                self.leads = True
                founding = tuple(sorted(effect.members.items())) or None
                self.decide(f"{self.name} began epoch {effect.epoch}", founding)
                self.maybe_die()
            case ev.EnterVoters():
                self.decide("voters", tuple(sorted(effect.members.items())))
                self.world.changes += 1
                self.maybe_die()
            case ev.Committed():
                world.is_on_a_majority(self, effect.end)
                world.is_committed([*self.prefix, *(batch for batch in self.batches if batch[0].end <= effect.end)])
                self.maybe_die()
            case ev.Fenced() | ev.Hopeless():
                if isinstance(effect, ev.Fenced):
                    world.is_fenced_by_a_voter(self, effect.by)
                self.alive, self.end_reason = False, type(effect).__name__

    def maybe_die(self) -> None:
        """Die soon, where the world is so; what was sent is on its way, what was not is gone."""
        if self.world.random.random() < self.world.fragile:
            self.world.after(self.world.random.randint(0, 60), self.die)

    def die(self) -> None:
        self.alive = False

    def ask(self, number: int, request: int, event: ev.VoterEvent, batches: list[Batch]) -> None:
        world = self.world

        def answer(answer: Answer) -> None:
            world.send(lambda: self.answered(number, request, answer.args))

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

        def answer(answer: Answer) -> None:
            allowed, promised, _, first = answer.args
            assert isinstance(promised, int)
            voter = world.voters[source]
            assert voter is not None
            held = [batch for batch in voter.disk.content() if batch[0].end <= end]
            same = allowed and first == start
            world.send(lambda: finish(held if same else None, promised))

        def finish(held: list[Batch] | None, promised: int) -> None:
            if number != self.reads or not self.alive or self.leads:
                return
            self.reads += 1
            if held is None:
                self.feed(ev.HistoryUnreadable(now_ms=world.now_ms, source=source, promised=promised))
            else:
                self.prefix = tuple(batch for batch in held if batch[0].end <= start)
                self.batches = held[len(self.prefix) :]
                known = last_members(self.batches if world.planted.snapshot_without_members else held)
                self.feed(ev.HistoryRead(now_ms=world.now_ms, source=source, members=known))

        def deliver() -> None:
            voter = world.voters[source]
            if voter is not None:
                voter.receive(event, [], answer)

        world.send(deliver)
        world.after(200, lambda: finish(None, 0))

    def answered(self, number: int, request: int, args: list[Any]) -> None:
        now_ms = self.world.now_ms
        if isinstance(args[0], bool):
            granted, promised, identity, epochs, start, end, _, founder = args
            self.feed(
                ev.PromiseAnswered(
                    now_ms=now_ms,
                    voter=number,
                    request=request,
                    granted=granted,
                    promised=promised,
                    identity=identity,
                    history=LogHistory(epochs, end, start),
                    founder=founder,
                )
            )
        else:
            promised, identity, matched, epochs, end, start = args
            self.feed(
                ev.AppendAnswered(
                    now_ms=now_ms,
                    voter=number,
                    request=request,
                    promised=promised,
                    identity=identity,
                    matched=matched,
                    history=LogHistory(epochs, end, start),
                )
            )
