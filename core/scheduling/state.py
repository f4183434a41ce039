"""What the scheduler knows about one partition of ``__scheduled``, and how checkpoints keep it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from raylog.base.invariants import require
from raylog.core.scheduling.commands import Commands
from raylog.core.scheduling.halves import Halves
from raylog.core.scheduling.keys import offset_of
from raylog.core.scheduling.lanes import TargetLane
from raylog.core.scheduling.mover import Mover
from raylog.core.scheduling.names import Names
from raylog.core.scheduling.pending import Pending
from raylog.core.scheduling.rows import Checkpoint, Frontier, Keys, LaneId, NameColumn, NamedKeys, Row, RunState
from raylog.core.scheduling.runs import ReadBlock, Run, RunFacts
from raylog.core.scheduling.space import Space

NO_PRODUCER: Final = -1
EPOCHS: Final = 1 << 15
"""Epochs of one producer id. A lane that used all of them goes on with the next id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """Sizes and times of the scheduler."""

    round_keys: int = 4_096
    """Most records that one round resolves."""
    batch_keys: int = 2_048
    batch_bytes: int = 512 * 1024
    """Most records, and most bytes of records, in one batch. A single record may be larger."""
    seal_keys: int = 100_000
    """A run is written when so many keys are fresh; it has at most so many."""
    seal_margin_ms: int = 5_000
    """Keys that are due within this time are not sealed: they leave soon."""
    checkpoint_bytes: int = 16 * 1024 * 1024
    """A checkpoint is written after so many bytes of log: this bounds what a new leader reads."""
    checkpoint_rows: int = 20_000
    """A checkpoint is written after so many rows, too."""
    ack_within_ms: int = 1_000
    """A delivered batch is acknowledged in the log within this time, even if no round follows."""
    stretch_bytes: int = 8 * 1024 * 1024
    """Space in the log is counted and freed in stretches of about so many bytes."""
    space_min_bytes: int = 64 * 1024 * 1024
    """In a shorter log no record is moved."""
    look_ms: int = 1_000
    """Pause between two checks whether the log is too long."""
    area_records: int = 50_000
    """Most needed records in an area that is cleared at once, or one stretch has more: their offsets are in memory."""
    move_records: int = 256
    """Most records that one row moves."""
    move_pause_ms: int = 20
    """Pause after each row that moves records, and after each run that is searched for them."""


class SchedulerState:
    """The state, questions about it, and its checkpoints. The subclasses change it."""

    def __init__(self, read: ReadBlock, settings: SchedulerSettings) -> None:
        """Begin with an empty log; ``read`` returns a part of a run."""
        self.settings = settings
        self.pending = Pending(read)
        self.names = Names(self.pending, read)
        self.lanes: dict[LaneId, TargetLane] = {}
        self.halves = Halves()
        self.space = Space(settings.stretch_bytes)
        self.mover = Mover(self.pending, self.space, read, self.needed, settings.move_records)
        self.producer_ids: list[int] = []
        """The ids under which this partition delivers: a lane in epoch ``e`` uses the one at ``e // EPOCHS``."""
        self.read_end = 0
        """Next offset of the log to read."""
        self.undeliverable: set[int] = set()
        """Keys whose targets refused them for good, and those in ``unresolved``: they become dead letters."""
        self.unresolved: set[int] = set()
        """Keys of half messages that had no decision after the last check."""
        self.unreadable_count = 0
        """How many records of the log could not be opened, of those that this leadership has read."""
        self.delivered_count = self.cancelled_count = 0
        """Since this leadership began."""
        self.moved: dict[int, None] = {}
        """Keys that records got by changes of their due time, newest last: known even after their delivery."""
        self._checkpoint_number = 0
        self._bytes_since = self._rows_since = 0
        self._checkpoint_bytes = 0
        """Bytes of the newest checkpoint's pieces, which the log has to keep; 0 = it is one row."""
        self._is_loaded = False
        self._appending: Row | None = None
        self._resolving: tuple[int, ...] = ()
        self._taken: set[int] = set()
        """Keys that were taken from the pending ones, and are in no round of the log yet."""
        self._sized: dict[int, LaneId] = {}
        """Keys being resolved that wait in a lane already: only their sizes are needed."""
        self._sizes: dict[int, int] = {}
        """Bytes of each record in the round that is being appended."""
        self._limits: dict[LaneId, int] = {}
        """The most bytes that each target of that round takes in one batch."""
        self._takes_producer = False
        self._spare_producer = NO_PRODUCER
        """A new producer id that is in no row yet."""
        self._commands = Commands()
        self._ack_at_ms: int | None = None
        self._resolve_again_ms = 0
        self._space_at_ms = 0
        """When the next step towards freeing space may be taken."""
        self._frees_space = False
        """Whether a checkpoint is due so that the beginning of the log can be deleted."""
        self._looks_for_space = False
        """Whether records have left since the length of the log was last checked."""

    @property
    def is_busy(self) -> bool:
        """Whether records wait or are on their way: the partition must not fall asleep, since nothing would wake it."""
        if not self._is_loaded or self.pending.count > 0 or self._taken or self.halves.held:
            return True
        return any(not lane.is_done for lane in self.lanes.values())

    def writer(self, epoch: int) -> tuple[int, int]:
        """Return the producer id and producer epoch for the batches of a lane's epoch."""
        return self.producer_ids[epoch // EPOCHS], epoch % EPOCHS

    def waits(self, key: int) -> bool:
        """Whether a record is neither cancelled nor on its way to its target."""
        if key in self._taken or any(key in lane.waiting for lane in self.lanes.values()):
            return True
        return self.pending.holds(key)

    # ------------------------------------------------------------ what is needed

    def needed(self) -> Iterator[int]:
        """Return the first offsets of the needed records whose keys are in no run."""
        yield from (offset_of(key) for key in self.pending.fresh)
        yield from self.halves.offsets
        yield from (offset_of(key) for key in self._taken)
        for lane in self.lanes.values():
            yield from (offset_of(key) for batch in lane.batches for key in batch.keys)
            yield from (offset_of(key) for key in lane.waiting)

    def lowest_offset(self, otherwise: int) -> int:
        """Return the lowest offset of the log that is needed; ``otherwise`` if nothing is."""
        space = self.space
        places = [space.place_of(offset) for offset in self.needed()]
        for run in self.pending.runs.values():
            places.append(run.offset)
            if run.facts.highest_offset >= space.native_from:
                places.append(max(run.facts.lowest_offset, space.native_from))
        if space.places.lowest is not None:
            places.append(space.places.lowest)
        return min(places, default=otherwise)

    def _area(self) -> int | None:
        """Return the offset up to which the log is to be cleared; None = it is not too long."""
        space = self.space
        if space.size < self.settings.space_min_bytes:
            return None
        return space.area(self._runs_bytes + self._checkpoint_bytes, self.settings.area_records)

    def _is_worth_a_checkpoint(self) -> bool:
        """Return whether enough can be freed: twice the bytes of the checkpoint that has to precede it."""
        least = 2 * self._checkpoint_bytes
        return least == 0 or self.space.bytes_before(self.lowest_offset(self.read_end)) >= least

    @property
    def _runs_bytes(self) -> int:
        return sum(run.size for run in self.pending.runs.values())

    @property
    def dead_bytes(self) -> int:
        """About how many bytes of the log are not needed."""
        return max(0, self.space.size - self.space.live_bytes - self._runs_bytes - self._checkpoint_bytes)

    # ------------------------------------------------------------ checkpoints

    def restore(self, row: Checkpoint, directory: Callable[[int, RunFacts], bytes]) -> None:
        """Begin with a checkpoint; the log is to be read from its ``covers`` on.

        ``directory`` returns the first bytes of the run at an offset, at least up to the end of its directory.
        """
        require(not self._is_loaded, "a checkpoint is where a replay begins")
        self._checkpoint_number, self.read_end = row.number, row.covers
        self.producer_ids = [] if row.producer_id == NO_PRODUCER else [row.producer_id, *row.more_producers]
        known = ((run.offset, run.facts(check)) for run, check in zip(row.runs, row.checks, strict=True))
        runs = (Run.read(at, directory(at, facts), facts) for at, facts in known)
        self.pending.restore(runs, row.frontier[0] if row.frontier else -1, row.fresh, row.cut, row.count)
        self.names.restore(zip(row.named.names, row.named.keys, strict=True), row.replaced)
        lanes = zip(row.lanes, row.parts, strict=True)
        self.lanes = {state.lane: TargetLane.restored(state, parts) for state, parts in lanes}
        self.undeliverable, self.unresolved = set(row.undeliverable), set(row.unresolved)
        self.halves.restore(row.halves)
        self.space.restore(row.space)
        self.space.freed(min(row.covers, self.lowest_offset(row.covers)))

    def checkpoint(self) -> Checkpoint:
        """Return the state as a row."""
        pending = self.pending
        runs = [(run.offset, run.facts) for run in pending.runs.values()]
        named, replaced = self.names.state()
        return Checkpoint(
            number=self._checkpoint_number + 1,
            covers=self.read_end,
            producer_id=self.producer_ids[0] if self.producer_ids else NO_PRODUCER,
            runs=tuple(
                RunState(offset, facts.lowest_offset, facts.highest_offset, facts.has_tombstones, facts.names)
                for offset, facts in runs
            ),
            frontier=Frontier([pending.frontier] if pending.frontier >= 0 else ()),
            fresh=Keys(sorted(pending.fresh)),
            cut=Keys(sorted(pending.cut)),
            count=pending.count,
            lanes=tuple(lane.state() for lane in self.lanes.values()),
            undeliverable=Keys(sorted(self.undeliverable)),
            halves=self.halves.state(),
            unresolved=Keys(sorted(self.unresolved)),
            named=NamedKeys(NameColumn(name for name, _ in named), Keys(key for _, key in named)),
            replaced=replaced,
            space=self.space.state(),
            checks=tuple(facts.check for _, facts in runs),
            more_producers=tuple(self.producer_ids[1:]),
            parts=tuple(tuple(lane.parts) for lane in self.lanes.values()),
        )
