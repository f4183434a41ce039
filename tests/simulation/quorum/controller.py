"""One life of a simulated controller: the shipped quorum runner on a virtual network, and a stream of decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from raylog.actors.metadata.quorum_runner import Answered, QuorumRunner
from raylog.actors.metadata.snapshot import MetadataSnapshot
from raylog.actors.metadata.voter_runner import Answer
from raylog.base.errors import DataDirectoryError, NotController
from raylog.base.ids import ControllerEpoch
from raylog.base.invariants import InvariantBroken
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import ClusterAltered, ControllerStarted, MetadataRecord, VotersEntered
from raylog.core.quorum import Proposer, ProposerSettings
from raylog.protocol.message import Message
from raylog.protocol.voter import VoterPromiseReply, VoterPromiseRequest
from tests.simulation.quorum.voter import Call

if TYPE_CHECKING:
    from tests.simulation.quorum.simulation import World

_CALL_MS = 150
_BATCH_BYTES = 130
"""Approximate duration of a decision."""


class SimController:
    """One life of a controller: ports and listener of its runner."""

    DECIDES = True
    """Whether it decides something now and then, and has the voters configured by the world."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, self.alive = world, name, True
        self.proposer = Proposer(
            world.founders,
            candidate=name,
            settings=ProposerSettings(retry_ms=50, heartbeat_ms=200, hopeless_ms=1_500),
            jitter_ms=world.random.randint(0, 200),
        )
        self.runner = QuorumRunner(
            self.proposer,
            self,
            self,
            snapshot_bytes=world.short * _BATCH_BYTES if world.short else 1 << 40,
            send_bytes=world.chunk * _BATCH_BYTES,
        )
        self.image = MetadataImage()
        self.wanted: frozenset[int] = frozenset()
        self.began_ms = world.now_ms
        self.looks: int | None = world.random.choice([0, 50, 500])
        """When it learns which brokers run."""
        self.paused_until_ms = 0
        self.known_end = 0
        """End of its log known to be committed."""
        self.questions: list[tuple[int, int]] = []
        """Its open questions of leadership, each with the end of what any controller had committed by then."""
        self.leads = False
        self.end_reason = ""
        self.beside_data: set[int] = set()
        """The epochs in which a broker with partitions of topics has answered."""
        self.tick()

    def tick(self) -> None:
        if not self.alive:
            return
        world, runner = self.world, self.runner
        if world.now_ms >= self.paused_until_ms:
            self._turn()
        else:
            self.when_awake(self._turn)
        if self.DECIDES and self.leads and not world.quiet and world.random.random() < 0.3:
            self.decide(f"{self.name} at {world.now_ms}")
        if self.leads:
            runner.offer(self.image)
        world.after(20, self.tick)

    def _turn(self) -> None:
        world, runner = self.world, self.runner
        if self.looks is not None and world.now_ms >= self.began_ms + self.looks:
            self.looks = None
            runner.brokers_found(frozenset(world.numbers))
        runner.tick()
        if self.leads and self.proposer.phase == "leading" and world.random.random() < 0.1:
            self.questions.append((runner.question(), world.image.version))
            self.on_confirmed()
        if self.DECIDES and self.leads and self.wanted != world.wanted:
            self.wanted = world.wanted
            runner.want_voters(sorted(self.wanted))

    def when_awake(self, work: Callable[[], None]) -> None:
        """Do it now, or after the pause."""
        if not self.alive:
            return
        if self.world.now_ms < self.paused_until_ms:
            self.world.after(self.paused_until_ms - self.world.now_ms, lambda: self.when_awake(work))
        else:
            work()

    def decide(self, text: str, *more: MetadataRecord) -> None:
        """Append a batch: a unique configuration, and ``more``."""
        records = [*more, ClusterAltered(config={"decision": text}, given={}, altered={})]
        records += records[-1:] * self.world.random.randint(0, 2)
        self._append(records)

    def _append(self, records: Sequence[MetadataRecord]) -> None:
        if self.proposer.phase == "leading":
            for record in records:
                self.image.apply(record)
            self.runner.append(records, self.proposer.epoch)

    def members(self) -> dict[int, str]:
        return {int(number): identity for number, identity in self.image.voters.items()}

    def die(self) -> None:
        self.alive = False
        self.runner.end()

    def _maybe_die(self) -> None:
        """Die soon, in worlds with such faults; sent messages are in flight, unsent ones are lost."""
        if self.world.random.random() < self.world.fragile:
            self.world.after(self.world.random.randint(0, 60), self.die)

    # ------------------------------------------------------------ listener

    def on_won(self, image: MetadataImage, epoch: int, founding: Mapping[str, str]) -> None:
        self.image = image
        self.world.won(epoch, self, {int(number): identity for number, identity in founding.items()})
        self.leads = True
        started = ControllerStarted(controller_epoch=ControllerEpoch(epoch))
        entered = [VotersEntered(voters=founding)] if founding else []
        self.decide(f"{self.name} began epoch {epoch}", started, *entered)
        self._maybe_die()

    def on_voters(self, voters: Mapping[str, str]) -> None:
        self.world.enters(self, {int(number): identity for number, identity in voters.items()})
        self.decide("voters", VotersEntered(voters=voters))
        self.world.changes += 1
        self._maybe_die()

    def on_committed(self, end: int) -> None:
        self.world.is_on_a_majority(self, end)
        self.world.is_committed([batch for batch in self.runner.batches if self.known_end < batch[0].end <= end])
        self.known_end = end
        self._maybe_die()

    def on_confirmed(self) -> None:
        """R9: what had been committed when the question came is in its log."""
        while self.questions and self.questions[0][0] <= self.runner.confirmed_question:
            _, end = self.questions.pop(0)
            self.world.is_confirmed(self, end)
        self._maybe_die()

    def on_failed(self, error: Exception) -> None:
        if not isinstance(error, NotController | DataDirectoryError | InvariantBroken):
            raise error  # the runner itself raises a broken invariant
        if isinstance(error, NotController):
            self.world.is_fenced_by_a_voter(self, str(error))
        self.alive, self.end_reason = False, str(error)

    # ------------------------------------------------------------ ports

    def now_ms(self) -> int:
        return self.world.now_ms

    def wall_ms(self) -> int:
        return self.world.now_ms

    def encode_snapshot(
        self, records: Sequence[MetadataRecord], end: int, epoch: int, taken: Callable[[MetadataSnapshot], None]
    ) -> None:
        snapshot = MetadataSnapshot.of(records, end, epoch, self.wall_ms())
        self.world.snapshots += 1
        self.world.after(self.world.random.randint(0, 30), lambda: self.when_awake(lambda: taken(snapshot)))

    def send_snapshot(self, voter: int, args: Message, snapshot: MetadataSnapshot, answered: Answered) -> None:
        self.call(voter, "voter_snapshot", args, snapshot.to_bytes(), answered)

    def call(self, voter: int, method: str, args: Message, payload: bytes, answered: Answered) -> None:
        """Send a datagram; as on a connection, one answer at most is accepted, and none after the deadline."""
        world, open_calls = self.world, [True]
        world.sends(self, args)
        call = Call(method, args, memoryview(payload))

        def finish(answer: Answer | None = None) -> None:
            if open_calls:
                open_calls.clear()
                found = None if answer is None else answer.args
                if isinstance(args, VoterPromiseRequest) and isinstance(found, VoterPromiseReply) and found.holds_data:
                    self.beside_data.add(args.epoch)
                self.when_awake(lambda: answered(answer))

        def deliver() -> None:
            target = world.voters[voter]
            if target is not None and voter not in world.cut:
                target.receive(call, lambda answer: world.send(lambda: finish(answer)))

        world.send(deliver)
        world.after(_CALL_MS, finish)
