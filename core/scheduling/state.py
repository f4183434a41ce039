"""What a scheduler knows: the state of one partition of ``__scheduled``, as a checkpoint keeps it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from raylog.core.invariants import require
from raylog.core.scheduling.commands import Commands
from raylog.core.scheduling.halves import Halves
from raylog.core.scheduling.keys import offset_of
from raylog.core.scheduling.lanes import Lane
from raylog.core.scheduling.naming.names import Names
from raylog.core.scheduling.pending import Pending
from raylog.core.scheduling.rows import Checkpoint, LaneId, Row
from raylog.core.scheduling.runs import ReadBlock, Run, RunFacts
from raylog.core.scheduling.space.mover import Mover
from raylog.core.scheduling.space.stretches import Space

NO_PRODUCER: Final = -1
EPOCHS: Final = 1 << 15
"""Epochs that a producer id has for a target; then the lane goes on with the next id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """Sizes and times of the scheduler."""

    round_keys: int = 4_096
    """Most records that one round takes."""
    batch_keys: int = 2_048
    batch_bytes: int = 512 * 1024
    """Most records, and bytes of them, in one batch; one record may be larger."""
    seal_keys: int = 100_000
    """A run is written for so many keys."""
    seal_margin_ms: int = 5_000
    """What is due sooner is not sealed: it leaves soon."""
    checkpoint_bytes: int = 16 * 1024 * 1024
    """A checkpoint follows so many bytes of log, which bounds what a new leader reads."""
    checkpoint_rows: int = 20_000
    note_within_ms: int = 1_000
    """A delivered batch is noted so soon, also where no round follows."""
    stretch_bytes: int = 8 * 1024 * 1024
    """The log is counted, and given back, in parts of about so many bytes."""
    space_min_bytes: int = 64 * 1024 * 1024
    """Nothing is moved in a shorter log."""
    look_ms: int = 1_000
    """How often it is looked whether the log is too long."""
    area_records: int = 50_000
    """Records that one area of the log has that are needed, at most, or else it is one part: they are in memory."""
    move_records: int = 256
    """Most records that one row moves."""
    move_pause_ms: int = 20
    """Pause behind each row that moves records, and each run that is looked through for them."""


class SchedulerState:
    """The state, and nothing that changes it."""

    def __init__(self, read: ReadBlock, settings: SchedulerSettings) -> None:
        """``read`` returns a part of a run in the log."""
        self.settings = settings
        self.pending = Pending(read)
        self.names = Names(self.pending, read)
        self.lanes: dict[LaneId, Lane] = {}
        self.halves = Halves()
        self.space = Space(settings.stretch_bytes)
        self.mover = Mover(self.pending, self.space, read, self.needed, settings.move_records)
        self.producer_ids: list[int] = []
        """Those under which this partition delivers: a lane in epoch ``e`` has the one at ``e // EPOCHS``."""
        self.read_end = 0
        """Offset behind what was read of the log."""
        self.alone: set[int] = set()
        """Records whose batch was refused in an earlier release: each is sent in a batch of its own."""
        self.undeliverable: set[int] = set()
        """Records that their target refused for good, and those in ``unresolved``."""
        self.unresolved: set[int] = set()
        """Records of half messages that had no decision after the last check."""
        self.unreadable_count = 0
        """Records of the log that cannot be opened, as far as this leadership has read it."""
        self.delivered_count = self.cancelled_count = 0
        """Since this leadership began."""
        self.moved: dict[int, None] = {}
        """Keys that moved records got, the newest last, for requests that come after they were delivered."""
        self._checkpoint_number = 0
        self._bytes_since = self._rows_since = 0
        self._checkpoint_bytes = 0
        """Bytes of the pieces of the newest checkpoint: its log needs them; 0 = it has one row."""
        self._is_loaded = False
        self._appending: Row | None = None
        self._resolving: tuple[int, ...] = ()
        self._taken: set[int] = set()
        """Keys that were taken out of their order, and are in no row of the log yet."""
        self._sized: dict[int, LaneId] = {}
        """Of those that are being resolved, the ones that wait for a target already: only their sizes are requested."""
        self._sizes: dict[int, int] = {}
        """How large the records of the round are whose row is on its way."""
        self._limits: dict[LaneId, int] = {}
        """What their targets take in one batch."""
        self._takes_producer = False
        self._spare_producer = NO_PRODUCER
        """One that was taken, and is in no row yet."""
        self._commands = Commands()
        self._note_at_ms: int | None = None
        self._resolve_again_ms = 0
        self._space_at_ms = 0
        """When the next step towards free space may be taken."""
        self._frees_space = False
        """Whether a checkpoint is due, so that space can be given back."""
        self._looks_for_space = False
        """Whether records left since it was looked whether the log is too long."""

    @property
    def is_busy(self) -> bool:
        """Whether records wait or are on their way: their partition must not fall asleep, nothing would wake it."""
        if not self._is_loaded or self.pending.count > 0 or self._taken or self.halves.held:
            return True
        return any(not lane.is_done for lane in self.lanes.values())

    def writer(self, epoch: int) -> tuple[int, int]:
        """Return the producer id and epoch under which a target gets the batches of a lane's epoch."""
        return self.producer_ids[epoch // EPOCHS], epoch % EPOCHS

    def waits(self, key: int) -> bool:
        """Whether a record is neither cancelled nor on its way to its target."""
        if key in self._taken or any(key in lane.waiting for lane in self.lanes.values()):
            return True
        return self.pending.holds(key)

    # ------------------------------------------------------------ what is needed

    def needed(self) -> Iterator[int]:
        """Return the records that are needed and in no run."""
        yield from (offset_of(key) for key in self.pending.fresh)
        yield from self.halves.offsets
        yield from (offset_of(key) for key in self._taken)
        for lane in self.lanes.values():
            yield from (offset_of(key) for batch in lane.batches for key in batch.keys)
            yield from (offset_of(key) for key in lane.waiting)

    def lowest_offset(self, otherwise: int) -> int:
        """Return the lowest offset of the log that is needed; ``otherwise`` where nothing is."""
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
        """Return the offset up to which the log is to be treated; None = it is not too long."""
        space = self.space
        if space.size < self.settings.space_min_bytes:
            return None
        return space.area(self._runs_bytes + self._checkpoint_bytes, self.settings.area_records)

    def _is_worth_a_checkpoint(self) -> bool:
        """Return whether more can be given back than a checkpoint takes, which has to come first."""
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

        ``directory`` returns the beginning of the run at an offset, with all of its directory, by the run's facts.
        """
        require(not self._is_loaded, "a checkpoint is where a replay begins")
        self._checkpoint_number, self.read_end = row.number, row.covers
        self.producer_ids = [] if row.producer_id == NO_PRODUCER else [row.producer_id, *row.more_producers]
        runs = (Run.read(at, directory(at, facts), facts) for at, facts in row.runs)
        self.pending.restore(runs, row.frontier, row.fresh, row.cut, row.count)
        self.names.restore(row.named, row.replaced)
        self.lanes = {state.lane: Lane.restored(state) for state in row.lanes}
        self.alone, self.undeliverable = set(row.alone), set(row.undeliverable)
        self.unresolved = set(row.unresolved)
        self.halves.restore(row.halves)
        self.space.restore(row.space)
        self.space.freed(min(row.covers, self.lowest_offset(row.covers)))

    def checkpoint(self) -> Checkpoint:
        """Return the state as a row."""
        pending = self.pending
        named, replaced = self.names.state()
        return Checkpoint(
            number=self._checkpoint_number + 1,
            covers=self.read_end,
            producer_id=self.producer_ids[0] if self.producer_ids else NO_PRODUCER,
            more_producers=tuple(self.producer_ids[1:]),
            runs=tuple((run.offset, run.facts) for run in pending.runs.values()),
            frontier=pending.frontier,
            fresh=tuple(sorted(pending.fresh)),
            cut=tuple(sorted(pending.cut)),
            count=pending.count,
            lanes=tuple(lane.state() for lane in self.lanes.values()),
            alone=tuple(sorted(self.alone)),
            undeliverable=tuple(sorted(self.undeliverable)),
            halves=self.halves.state(),
            unresolved=tuple(sorted(self.unresolved)),
            named=named,
            replaced=replaced,
            space=self.space.state(),
        )
