"""A world of metadata voters and controllers, with lost, repeated and late messages, crashes and lost directories.

Controllers take snapshots; the model of a snapshot's contents is the batches it replaces. They change the set of voters
meanwhile. One run is one seed. Checked are I5 (an epoch has one controller) and I10 (committed records never change,
committed logs are prefixes of one another, and snapshots contain only committed records). Committed records are on
disk at a majority of the configuration in force. Configurations change by the rules: one at a time, after a record of
the own epoch, between configurations whose majorities meet, to voters that are up to date.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from heapq import heappop, heappush

from raylog.actors.metadata.codec import Batch
from raylog.actors.metadata.snapshot import MetadataSnapshot
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import ControllerStarted, MetadataRecord
from raylog.core.quorum import events as ev
from raylog.core.quorum import majority
from raylog.protocol.message import Message
from raylog.protocol.voter import VoterAppendRequest
from tests.simulation.quorum.controller import SimController
from tests.simulation.quorum.disk import Broken, Disk, last_members, members_in, records_of
from tests.simulation.quorum.voter import SimVoter


def _start_of(batch: Batch) -> int:
    return batch[0].start


def _end_of(batch: Batch) -> int:
    return batch[0].end


class World:
    """Voters, controllers and the network between them."""

    def __init__(self, seed: int, voters: int = 3, spares: int = 0) -> None:
        """``voters`` brokers found the cluster; ``spares`` more may vote later."""
        self.random = random.Random(seed)
        self.now_ms = 0
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        self.count = 0
        self.founders = tuple(range(1, voters + 1))
        self.numbers = tuple(range(1, voters + spares + 1))
        self.wanted = frozenset(self.founders)
        """The brokers that should vote, as controllers learn at their next tick."""
        self.loss = self.random.choice([0.0, 0.05, 0.2])
        self.copies = self.random.choice([0.0, 0.1, 0.3])
        self.late = self.random.choice([0.0, 0.02, 0.1])
        self.fragile = self.random.choice([0.0, 0.0, 0.5])
        """Share of elections and commits after which the controller soon dies."""
        self.chunk = self.random.choice([1, 2, 8])
        self.short = self.random.choice([0, 0, 2, 5, 15])
        """Number of batches after which a controller takes a snapshot; 0 = never."""
        self.torn = self.random.choice([0.0, 0.0, 0.3])
        """Share of steps with a snapshot after which the voter's process dies at once."""
        self.torn_at: tuple[type, ...] = (ev.SaveSnapshot, ev.RestartLog)
        self.slow = self.random.choice([0.0, 0.0, 0.1])
        """Share of syncs that take long."""
        self.snapshots = 0
        self.restarts = 0
        self.confirmations = 0
        """How often a controller was confirmed to lead."""
        self.changes = 0
        """Number of configurations written."""
        self.held: dict[tuple[str, int], int] = {}
        """End of the log of an epoch that each copy has confirmed to be on disk."""
        self.promised: dict[tuple[str, int], str] = {}
        """The first candidate to which each copy has promised an epoch."""
        self.highest: dict[str, int] = {}
        """The highest epoch that each copy has promised."""
        self.disks = {number: Disk(f"{number}.1", founder=number in self.founders) for number in self.numbers}
        self.voters: dict[int, SimVoter | None] = {number: SimVoter(self, number) for number in self.numbers}
        self.controllers: list[SimController] = []
        self.committed: dict[int, Batch] = {}
        """Every record ever committed, by its first offset."""
        self.image = MetadataImage()
        """The state that all committed records add up to."""
        self._verified: set[tuple[int, bytes]] = set()
        """Snapshots that equal the committed state."""
        self._replayed = MetadataImage()
        """The committed state at the end of the last one that was compared."""
        self.winners: dict[int, SimController] = {}
        self.losses = 0
        self.wins = 0
        self.quiet = False
        """Controllers stop deciding by themselves."""
        self.cut: set[int] = set()
        """Voters cut off from requests."""
        self.excused = False
        """More copies were lost than any majority can compensate."""

    def after(self, delay_ms: int, work: Callable[[], None]) -> None:
        self.count += 1
        heappush(self.queue, (self.now_ms + delay_ms, self.count, work))

    def send(self, deliver: Callable[[], None]) -> None:
        """Carry a message: it may be lost, repeated, or very late."""
        if self.random.random() < self.loss:
            return
        for _ in range(2 if self.random.random() < self.copies else 1):
            delay_ms = 1 + int(self.random.random() * 20)
            if self.late and self.random.random() < self.late:
                delay_ms += self.random.randint(100, 3_000)
            self.after(delay_ms, deliver)

    def calm(self) -> None:
        """Lose, repeat and delay no messages, and end nothing by itself."""
        self.loss = self.late = self.copies = self.fragile = self.torn = 0.0

    def run(self, duration_ms: int) -> None:
        end = self.now_ms + duration_ms
        queue = self.queue
        while queue and queue[0][0] <= end:
            self.now_ms, _, work = heappop(queue)
            work()
        self.now_ms = end

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Run until the condition holds, for at most 20 virtual seconds."""
        end = self.now_ms + 20_000
        while not condition():
            if self.now_ms >= end:
                raise Broken("a story went another way")
            self.run(1)

    # ------------------------------------------------------------ checks

    def won(self, epoch: int, controller: SimController, founding: dict[int, str]) -> None:
        """I5: a majority has promised this epoch to this controller."""
        if self.winners.setdefault(epoch, controller) is not controller:
            raise Broken(f"epoch {epoch} has two controllers: {self.winners[epoch].name} and {controller.name}")
        members = controller.members() or founding
        promised = [member for member in members.values() if self.promised.get((member, epoch)) == controller.name]
        if len(promised) < majority(len(members)):
            raise Broken(f"{controller.name} leads epoch {epoch}, promised by {promised} of {members} alone")
        if founding and epoch in controller.beside_data:
            raise Broken(f"{controller.name} makes a new cluster beside a broker that holds data of one")
        self.wins += 1

    def sends(self, controller: SimController, request: Message) -> None:
        """What a proposer calls committed is committed."""
        if isinstance(request, VoterAppendRequest) and request.committed > self.image.version:
            raise Broken(f"{controller.name} calls {request.committed} committed, and {self.image.version} is")

    def promises(self, identity: str, promise: ev.SavePromise) -> None:
        """A copy never returns to a lower epoch. A batch from an epoch's winner counts as a promise of that epoch."""
        if promise.epoch < self.highest.get(identity, 0):
            raise Broken(f"{identity} makes {promise} after one for epoch {self.highest[identity]}")
        self.highest[identity] = promise.epoch
        self.promised.setdefault((identity, promise.epoch), promise.candidate)

    def confirms(self, voter: SimVoter, request: ev.AppendRequested | ev.SnapshotOffered, matched: int) -> None:
        """A voter confirms only the sender's log, and has promised the sender's epoch before."""
        disk, sender = voter.disk, self.winners[request.epoch]
        if disk.promised < request.epoch:
            raise Broken(f"{disk.identity} takes batches of epoch {request.epoch} and has promised {disk.promised}")
        log = sender.runner
        start = 0 if log.snapshot is None else log.snapshot.end
        start = max(start, disk.start)
        if matched <= start:
            return
        mine, theirs = (
            batches[bisect_left(batches, start, key=_start_of) : bisect_right(batches, matched, key=_end_of)]
            for batches in (disk.batches, log.batches)
        )
        if mine != theirs or mine[-1][0].end != matched:
            raise Broken(f"{disk.identity} confirms {matched} to {sender.name}, and has {mine} for {theirs}")

    @property
    def decided(self) -> int:
        """Number of committed batches."""
        return len(self.committed)

    def is_committed(self, batches: list[Batch]) -> None:
        """I10."""
        for batch in batches:
            known = self.committed.setdefault(batch[0].start, batch)
            if known != batch:
                raise Broken(f"committed {known}, and then {batch} in its place")
            if known is batch and batch[0].end > self.image.version:
                if batch[0].start != self.image.version:
                    raise Broken(f"{batch[0]} is committed behind {self.image.version}")
                for record in records_of(batch[1]):
                    if isinstance(record, ControllerStarted) and record.controller_epoch != batch[0].epoch:
                        raise Broken(f"{batch[0]} begins another epoch: {record}")
                    self.apply(record)

    def is_confirmed(self, controller: SimController, end: int) -> None:
        """R9: a controller that a majority has confirmed knew everything that was committed when it was questioned."""
        self.confirmations += 1
        if controller.runner.log_end_offset < end or any(
            self.committed.get(span.start) not in (None, (span, payload))
            for span, payload in controller.runner.batches
            if span.start < end
        ):
            raise Broken(f"{controller.name} was confirmed without what was committed up to {end}")

    def are_committed(self, batches: list[Batch]) -> None:
        """I10: a voter drops only what is committed."""
        for batch in batches:
            if self.committed.get(batch[0].start) != batch:
                raise Broken(f"{batch[0]} is dropped behind a snapshot, which has {self.committed.get(batch[0].start)}")

    def apply(self, record: MetadataRecord) -> None:
        """A record is committed."""
        self.image.apply(record)

    def is_snapshot(self, snapshot: MetadataSnapshot) -> None:
        """I10: a voter drops what a snapshot replaces, so a snapshot must equal the committed state."""
        if (snapshot.end, snapshot.batches) in self._verified:
            return
        if snapshot.end < self._replayed.version:
            self._replayed = MetadataImage()
        image = self._replayed
        while image.version < snapshot.end and image.version in self.committed:
            for record in records_of(self.committed[image.version][1]):
                image.apply(record)
        found = snapshot.image()
        # With controllers the images themselves: the records of both lack what every snapshot leaves out.
        is_same = image == found if image.cluster_id else image.to_records() == found.to_records()
        if image.version != snapshot.end or not is_same:
            raise Broken(f"a snapshot ends at {snapshot.end}, and is not what is committed there")
        self._verified.add((snapshot.end, snapshot.batches))

    def holds(self, identity: str, epoch: int, end: int) -> None:
        """Note the part of the log that a copy confirms to the proposer of an epoch."""
        self.held[identity, epoch] = max(end, self.held.get((identity, epoch), 0))

    def is_on_a_majority(self, controller: SimController, end: int) -> None:
        """I4 of the metadata: committed records are on disk at a majority of the configuration in force."""
        members = controller.members()
        have = [member for member in members.values() if self.held.get((member, controller.proposer.epoch), 0) >= end]
        if len(have) < majority(len(members)):
            raise Broken(f"{controller.name} takes {end} for committed, which only {have} of {members} have")

    def enters(self, controller: SimController, members: dict[int, str]) -> None:
        """A configuration follows a committed one, shares a voter with it in all majorities, and can commit."""
        before, proposer = controller.members(), controller.proposer
        if not before:
            return
        if len(set(before.items()) ^ set(members.items())) != 1:
            raise Broken(f"{before} is followed by {members}: some majorities have no voter in common")
        if self.image.controller_epoch < proposer.epoch:
            raise Broken(f"{controller.name} changes the voters before anything of its epoch is committed")
        pending = (batch for batch in controller.runner.batches if batch[0].end > proposer.committed)
        if any(members_in(batch) for batch in pending):
            raise Broken(f"{controller.name} enters {members} while another change is pending")
        ready = [
            member for member in members.values() if self.held.get((member, proposer.epoch), 0) >= proposer.committed
        ]
        if len(ready) < majority(len(members)):
            raise Broken(f"{controller.name} enters {members}, of which only {ready} have what is committed")
        self._is_wise(controller, before, members)

    def _is_wise(self, controller: SimController, before: dict[int, str], members: dict[int, str]) -> None:
        """No voter goes without need, and the number of voters is even for one change only."""
        proposer = controller.proposer
        wanted = frozenset(before) if proposer._wanted is None else proposer._wanted
        absent = wanted - set(before)

        def is_ready(number: int) -> bool:
            identity = proposer._voters[number].identity
            return self.held.get((identity, proposer.epoch), -1) >= proposer.committed

        if len(members) > len(before):
            if len(before) % 2 and len(wanted) - len(before) >= 2 and sum(map(is_ready, absent)) < 2:
                raise Broken(f"{controller.name} enters {members} behind {before}, with no other voter ready")
            return
        for number in set(before) - set(members):
            is_lost = proposer._voters[number].identity not in ("", before[number])
            if is_lost and number in wanted and not is_ready(number):
                raise Broken(f"{controller.name} removes voter {number}, whose next copy has no log yet")
            if not is_lost and (absent or number in wanted):
                raise Broken(f"{controller.name} removes voter {number} before {sorted(absent)} vote")

    def is_fenced_by_a_voter(self, controller: SimController, reason: str) -> None:
        """A broker that does not vote cannot unseat a controller, unless it is to vote and refuses for long."""
        by = int(reason.split()[1])
        voter, wanted = controller.proposer._voters[by], controller.proposer._wanted or frozenset()
        since_ms = voter.refuses_since_ms
        is_long = since_ms is not None and self.now_ms - since_ms >= controller.proposer._settings.hopeless_ms
        if controller.members().get(by) != voter.identity and not (by in wanted and is_long):
            raise Broken(f"{controller.name} ends because of broker {by}, which does not vote")

    # ------------------------------------------------------------ faults

    def crash_voter(self, number: int, down_ms: int) -> None:
        voter, disk = self.voters[number], self.disks[number]
        if voter is None:
            return
        voter.crash()
        self.voters[number] = None
        kept = self.random.randint(disk.synced, len(disk.batches))
        del disk.batches[kept:]
        disk.synced = len(disk.batches)
        self.after(down_ms, lambda: self.start_voter(number))

    def start_voter(self, number: int) -> None:
        if self.voters[number] is None:
            disk = self.disks[number]
            if disk.is_lost() != disk.was_damaged:
                raise Broken(f"{disk.identity}, was damaged: {disk.was_damaged}, counts as lost: {disk.is_lost()}")
            if disk.was_damaged:
                self.replace_folder(number)
            self.voters[number] = SimVoter(self, number)

    def lose_directory(self, number: int) -> bool:
        """Lose a broker's directory, if a majority of every configuration that may be in force stays intact."""
        written = [batch for disk in self.disks.values() for batch in disk.batches]
        written += [batch for controller in self.controllers if controller.alive for batch in controller.runner.batches]
        end = self.image.version
        configurations = [members_in(batch) for batch in written if batch[0].end > end and members_in(batch)]
        current = last_members(self.committed.values())
        if not current:
            return False
        for members in (current, *configurations):
            intact = [
                item
                for item, identity in members.items()
                if item != number and self.disks[item].identity == identity and not self.disks[item].was_damaged
            ]
            if len(intact) < majority(len(members)):
                return False
        self.crash_voter(number, self.random.randint(10, 500))
        disk, kind = self.disks[number], self.random.random()
        if kind < 0.15 and disk.has_log():
            disk.batches, disk.start, disk.synced, disk.snapshot, disk.was_damaged = [], 0, 0, None, True
        elif kind < 0.3 and disk.start:
            disk.snapshot, disk.was_damaged = None, True
        else:
            self.replace_folder(number)
        return True

    def replace_folder(self, number: int) -> None:
        """Put an empty copy in the place of a lost one."""
        self.losses += 1
        self.disks[number] = Disk(f"{number}.{self.losses + 1}")

    def start_controller(self) -> SimController:
        controller = SimController(self, f"c{len(self.controllers) + 1}")
        self.controllers.append(controller)
        return controller
