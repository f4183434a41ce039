"""Bugs in the sleep of partitions: when they fall asleep, what is answered meanwhile, and how they wake."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from msgspec import structs

from raylog.actors.broker.sleepers import Sleepers
from raylog.actors.broker.supervisor import ReplicaSupervisor
from raylog.base.ids import LATEST, BrokerId, Offset
from raylog.core.controller import leadership, liveness, registrations, wake_queue
from raylog.core.controller.decision import ControllerDecision
from raylog.core.controller.liveness import Liveness
from raylog.core.controller.rest import StopRest
from raylog.core.controller.sleep import Sleeping
from raylog.core.controller.wake_queue import WakeQueue
from raylog.core.metadata import image
from raylog.core.metadata.records import PartitionChanged
from raylog.core.metadata.touched import Touched
from raylog.core.partition import PartitionState, SleepPoint
from raylog.core.replication.events import ProposeSleep
from raylog.core.replication.idleness import Idleness
from raylog.core.replication.leader import Leader
from raylog.core.sleeping.events import AnswerFetch, FetchReceived, ListOffsetsReceived, WriteReceived
from raylog.core.sleeping.machine import SleepersMachine
from tests.simulation.whole.plan import SLEEPERS
from tests.simulation.whole.planted.bugs import Bug


def _none(_: object) -> Callable[..., None]:
    return lambda *_, **__: None


def _moves_asleep(original: Callable[..., None]) -> Callable[..., None]:
    """A reassignment of a sleeping partition does not wake it."""

    def add(self: WakeQueue, state: PartitionState) -> None:
        if not state.is_moving:
            original(self, state)

    return add


def _never_hurries(original: Callable[..., int]) -> Callable[..., int]:
    """A leader takes a stop of the cluster for a request to make room."""

    def hurried_ms(self: Idleness, sleep_after_ms: int) -> int:
        return original(self, sleep_after_ms) if sleep_after_ms >= 0 else -1

    return hurried_ms


def _never_over(_: object) -> Callable[..., bool]:
    """A controller waits for good for a stop that does not come."""
    return lambda self, now_ms: False


def _may_all_sleep(_: object) -> Callable[..., int]:
    """A controller wakes what moves or has too much, and not what never sleeps."""
    return lambda topic, cluster: 0


def _none_starts(_: object) -> Callable[..., Counter[BrokerId]]:
    """What waits is woken at once, however many replicas start already."""
    return lambda self: Counter()


def _always_room(_: object) -> Callable[..., float]:
    """What waits is woken at once, whatever room there is."""
    return lambda broker, image: 1.0


def _never_closed(_: object) -> property:
    """A leader takes appends while its proposal to sleep is under way."""
    return property(lambda self: False)


def _too_early(original: Callable[..., None]) -> Callable[..., None]:
    """A leader proposes sleep as soon as it has appended, whatever its followers and its disk have."""

    def sleep_if_unused(self: Leader, cause: str, now_ms: int, out: Any) -> None:
        settings, may_sleep = self.settings, Leader._may_sleep
        self.settings = replace(settings, sleep_after_ms=min(settings.sleep_after_ms, 0))
        Leader._may_sleep = lambda self, now_ms: self.isr.pending is None  # type: ignore[method-assign]
        try:
            original(self, cause, now_ms, out)
        finally:
            self.settings, Leader._may_sleep = settings, may_sleep  # type: ignore[method-assign]

    return sleep_if_unused


def _registers_anyway(original: Callable[..., Any]) -> Callable[..., Any]:
    """A replica registers although its partition sleeps."""

    def known(*of: Any) -> Any:
        state, place = original(*of)
        return replace(state, asleep=None), place

    return known


def _in_the_same_epoch(original: Callable[..., Any]) -> Callable[..., Any]:
    """A partition keeps its leader when it wakes: its replica leads again in the same leader epoch."""

    def woken(state: PartitionState) -> PartitionState:
        awake: PartitionState = original(state)
        return replace(awake, leader=state.leader)

    return woken


def _sleeps_in_the_same_epoch(original: Callable[..., Any]) -> Callable[..., Any]:
    """The leadership of a sleeping partition moves to another broker without a new epoch."""

    def settled(state: PartitionState, standing: Any) -> PartitionState:
        after: PartitionState = original(state, standing)
        return after if after is state else replace(after, leader_epoch=state.leader_epoch)

    return settled


def _stays_parked(original: Callable[..., None]) -> Callable[..., None]:
    """A broker forgets the fetches at the end of a partition that wakes."""

    def look_again(self: SleepersMachine, partitions: Any, now_ms: int, out: Any) -> None:
        held = {part: dict(waiting) for part, waiting in self._waiting.items()}
        original(self, partitions, now_ms, out)
        for part in partitions:
            fetches = [event.request for event in held.get(part, {}).values() if isinstance(event, FetchReceived)]
            out.now[:] = [effect for effect in out.now if getattr(effect, "request", None) not in fetches]

    return look_again


def _empty_below_the_end(original: Callable[..., None]) -> Callable[..., None]:
    """A broker answers a fetch below a sleeping partition's end as if there were no record."""

    def answer(self: SleepersMachine, event: Any, state: Any, log: SleepPoint, now_ms: int, out: Any) -> None:
        if isinstance(event, FetchReceived) and log.log_start_offset <= event.fetch_offset < log.end_offset:
            empty = AnswerFetch(
                request=event.request, high_watermark=log.end_offset, log_start_offset=log.log_start_offset
            )
            out.now.append(empty)
            return
        original(self, event, state, log, now_ms, out)

    return answer


def _one_too_many(original: Callable[..., None]) -> Callable[..., None]:
    """A broker takes the record behind a sleeping partition's end for committed."""

    def answer(self: SleepersMachine, event: Any, state: Any, log: SleepPoint, now_ms: int, out: Any) -> None:
        if isinstance(event, ListOffsetsReceived) and event.timestamp == LATEST:
            log = replace(log, end_offset=Offset(log.end_offset + 1))
        original(self, event, state, log, now_ms, out)

    return answer


def _wakes_for_reads_only(original: Callable[..., None]) -> Callable[..., None]:
    """A produce request waits at the broker, and nothing has the partition woken."""

    def wake(self: SleepersMachine, partition: Any, event: Any, now_ms: int, out: Any) -> None:
        if isinstance(event, WriteReceived):
            self._wait(partition, event, event.deadline_ms)
        else:
            original(self, partition, event, now_ms, out)

    return wake


def _forgets_the_point(original: Callable[..., Any]) -> Callable[..., Any]:
    """A snapshot has a sleeping partition as if nothing had ever been written to it."""

    def changed(state: PartitionState) -> Any:
        record = original(state)
        is_asleep = state.asleep is not None and state.asleep.end_offset > 0
        return structs.replace(record, asleep=(0, 0, -1, -1, 0)) if is_asleep else record

    return changed


def _ends_nothing(original: Callable[..., Any]) -> Callable[..., Any]:
    """A broker never ends the processes of partitions that fall asleep, and starts none when they wake."""

    def compare(self: ReplicaSupervisor, found: Any) -> None:
        self._due -= {name for name in self._due if name in self._started}
        original(self, found)

    return compare


def _starts_at_its_end(original: Callable[..., None]) -> Callable[..., None]:
    """A leader proposes sleep with the end of its log as the start."""

    def sleep_if_unused(self: Leader, cause: str, now_ms: int, out: Any) -> None:
        original(self, cause, now_ms, out)
        out.now[:] = [
            replace(effect, log_start_offset=effect.end_offset) if isinstance(effect, ProposeSleep) else effect
            for effect in out.now
        ]

    return sleep_if_unused


def _keeps_sessions(original: Callable[..., None]) -> Callable[..., None]:
    """A replica that has not ended when its partition wakes keeps its session, and never registers again."""

    def expect_woken(self: Liveness, partition: Any, leader: Any, decision: Any) -> None:
        close, ControllerDecision.close = ControllerDecision.close, lambda *_: None  # type: ignore[method-assign]
        try:
            original(self, partition, leader, decision)
        finally:
            ControllerDecision.close = close  # type: ignore[method-assign]

    return expect_woken


def _overlooks_changes(original: Callable[..., None]) -> Callable[..., None]:
    """A broker looks at no partition that a record has changed, so that it starts nothing at a wake."""

    def note(self: Touched, records: Any) -> None:
        original(self, [record for record in records if not isinstance(record, PartitionChanged)])

    return note


def _false(_: object) -> Callable[..., bool]:
    return lambda *_: False


SLEEPER_BUGS: Final = (
    Bug(
        "a broker never learns that it is connected",
        Sleepers,
        "link_changed",
        _none,
        ("W9", "W16", "W8", "W1"),
        profile=SLEEPERS,
    ),
    Bug(
        "a broker overlooks that a partition wakes",
        Touched,
        "note",
        _overlooks_changes,
        ("W9", "W16", "W8", "W1"),
        profile=SLEEPERS,
    ),
    Bug(
        "a sleeper's folder is removed",
        ReplicaSupervisor,
        "_holds",
        _false,
        ("W21", "W15", "W17", "W10", "W5", "W9"),
        profile=SLEEPERS,
    ),
    Bug(
        "a sleep point forgets the log start",
        Leader,
        "_sleep_if_unused",
        _starts_at_its_end,
        ("W9", "W5", "W13"),
        16,
        profile=SLEEPERS,
    ),
    Bug(
        "a wake leaves old sessions open",
        Liveness,
        "expect_woken",
        _keeps_sessions,
        ("W9", "W10"),
        40,
        profile=SLEEPERS,
    ),
    Bug(
        "a replica registers in its sleep",
        registrations,
        "known_replica",
        _registers_anyway,
        ("W10", "W18", "W21"),
        16,
        profile=SLEEPERS,
    ),
    Bug(
        "a leader appends while it falls asleep",
        Idleness,
        "is_closed",
        _never_closed,
        ("W21", "W17", "W10"),
        40,
        profile=SLEEPERS,
    ),
    Bug(
        "a leader proposes sleep too early",
        Leader,
        "_sleep_if_unused",
        _too_early,
        ("W21", "W17", "W10", "W1", "W16"),
        40,
        profile=SLEEPERS,
    ),
    Bug("a wake keeps the leader epoch", liveness, "woken", _in_the_same_epoch, ("W18", "W10"), 8, profile=SLEEPERS),
    Bug(
        "a sleeper fails over in one epoch",
        leadership,
        "_settled_asleep",
        _sleeps_in_the_same_epoch,
        ("W18", "W10"),
        8,
        profile=SLEEPERS,
    ),
    Bug(
        "a parked fetch is forgotten at the wake",
        SleepersMachine,
        "_look_again",
        _stays_parked,
        ("W9", "W8"),
        16,
        profile=SLEEPERS,
    ),
    Bug(
        "a sleeper answers as if it were empty",
        SleepersMachine,
        "_answer",
        _empty_below_the_end,
        ("W9", "W5"),
        16,
        profile=SLEEPERS,
    ),
    Bug(
        "a sleeper shows a record too many",
        SleepersMachine,
        "_answer",
        _one_too_many,
        ("W17", "W21", "W9"),
        16,
        profile=SLEEPERS,
    ),
    Bug(
        "a write wakes nothing",
        SleepersMachine,
        "_wake",
        _wakes_for_reads_only,
        ("W9", "W16", "W8"),
        8,
        profile=SLEEPERS,
    ),
    Bug(
        "a snapshot forgets where a sleeper ends",
        image,
        "partition_changed",
        _forgets_the_point,
        ("W18", "W19", "W21", "W5"),
        40,
        profile=SLEEPERS,
    ),
    Bug("a full broker wakes more", wake_queue, "full_broker", _none, ("W29",), 8, profile=SLEEPERS),
    Bug("what waits to wake waits for no room", wake_queue, "room_on", _always_room, ("W29",), 56, SLEEPERS, first=50),
    Bug("what waits to wake waits for no start", Liveness, "starting", _none_starts, ("W29",), 16, SLEEPERS),
    Bug("a reassignment leaves its partition asleep", WakeQueue, "add", _moves_asleep, ("W12", "W9"), 16, SLEEPERS),
    Bug("a full broker makes no room", Sleeping, "make_room", _none, ("W9", "W16", "W8", "W1"), 8, profile=SLEEPERS),
    Bug("a stop leaves awake what never sleeps", Idleness, "_enough_ms", _never_hurries, ("W9",), 4, SLEEPERS),
    Bug("a stop that is called off leaves all asleep", StopRest, "ends", _never_over, ("W9",), 4, SLEEPERS),
    Bug(
        "what slept for a stop stays asleep after it",
        wake_queue,
        "sleep_after_ms",
        _may_all_sleep,
        ("W9",),
        4,
        SLEEPERS,
    ),
    Bug(
        "a sleeper's processes are not ended",
        ReplicaSupervisor,
        "_compare",
        _ends_nothing,
        ("W9",),
        8,
        profile=SLEEPERS,
    ),
)
