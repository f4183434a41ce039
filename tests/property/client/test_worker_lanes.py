"""Lanes and ledger of a worker pool: order for each key, a worker for each lane, commits only behind finished work."""

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raylog.base.ids import TopicPartition
from raylog.client.types import Record
from raylog.client.workers.lanes import HandlerLane, Lanes, Order
from raylog.client.workers.ledger import Chunk, Ledger

KEYS = st.one_of(
    st.none(),
    st.integers(0, 5),
    st.sampled_from([b"a", "a", ("t", 0), float("nan")]),
    st.lists(st.integers(), max_size=1),
)
GAP = st.integers(1, 3)


class Pool(RuleBasedStateMachine):
    """A pool without threads: the rules are the steps of its threads, in any order."""

    order = Order.KEY

    def __init__(self) -> None:
        super().__init__()
        self.lanes = Lanes(1, self.order)
        self.ledger = Ledger()
        self.ready: deque[HandlerLane] = deque()
        self.working: list[tuple[HandlerLane, Chunk]] = []
        self.unfinished: dict[TopicPartition, list[int]] = {}
        """The dumb twin: every offset that is handed out and not finished."""
        self.after: dict[TopicPartition, int] = {}
        self.handled: dict[tuple[TopicPartition, str], list[int]] = {}
        self.dropped: list[Chunk] = []

    @rule(partition=st.integers(0, 1), rows=st.lists(st.tuples(KEYS, GAP), min_size=1, max_size=12), behind=GAP)
    def poll(self, partition: int, rows: list[tuple[object, int]], behind: int) -> None:
        where = TopicPartition("t", partition)
        offset, records = self.after.get(where, 0), []
        for key, gap in rows:
            records.append(Record("t", partition, offset, 0, key, b"", ()))
            offset += gap
        self.after[where] = offset + behind
        self.unfinished.setdefault(where, []).extend(record.offset for record in records)
        chunks, ready = self.lanes.place(where, records)
        assert sorted(record.offset for chunk in chunks for record in chunk.records) == [r.offset for r in records]
        self.ledger.add(where, chunks, self.after[where])
        self.ready.extend(ready)

    @precondition(lambda self: self.ready)
    @rule()
    def take(self) -> None:
        lane = self.ready.popleft()
        assert all(other is not lane for other, _ in self.working), "two workers have a lane"
        chunk = lane.chunks[0]
        chunk.is_active = True
        self.working.append((lane, chunk))

    @precondition(lambda self: self.working)
    @rule(choice=st.integers(0, 100), count=st.integers(1, 3))
    def handle(self, choice: int, count: int) -> None:
        _, chunk = self.working[choice % len(self.working)]
        for record in chunk.records[chunk.done : chunk.done + count]:
            if chunk.is_dropped:
                return
            group = repr(record.key) if self.order is Order.KEY else "" if self.order is Order.PARTITION else None
            if group is not None and (self.order is Order.PARTITION or record.key is not None):
                seen = self.handled.setdefault((chunk.partition, group), [])
                assert not seen or seen[-1] < record.offset, f"{record.offset} of {group} came behind {seen[-1]}"
                seen.append(record.offset)
            chunk.done += 1
            if chunk not in self.dropped:
                self.unfinished[chunk.partition].remove(record.offset)

    @precondition(lambda self: any(chunk.is_finished or chunk.is_dropped for _, chunk in self.working))
    @rule()
    def end_chunk(self) -> None:
        lane, chunk = next(entry for entry in self.working if entry[1].is_finished or entry[1].is_dropped)
        self.working.remove((lane, chunk))
        chunk.is_active = False
        self.ledger.chunk_ended(chunk)
        if self.lanes.chunk_ended(lane):
            self.ready.append(lane)

    @rule(partition=st.integers(0, 1))
    def revoke(self, partition: int) -> None:
        where = TopicPartition("t", partition)
        for chunk in self.ledger.chunks([where]):
            chunk.is_dropped = True
            self.dropped.append(chunk)
        self.ledger.forget([where])
        self.unfinished.pop(where, None)
        assert self.ledger.finished_to(where) is None

    @invariant()
    def commits_are_behind_finished_work(self) -> None:
        for where, offsets in self.unfinished.items():
            expected = min(offsets, default=self.after[where])
            found = self.ledger.finished_to(where)
            assert found is not None
            assert found <= expected
            if not any(chunk.is_finished for _, chunk in self.working):  # else it is known when their workers go on
                assert found == expected

    def teardown(self) -> None:
        """Whatever happened before: workers that go on finish everything."""
        while self.ready or self.working:
            while self.ready:
                self.take()
            while any(not chunk.is_finished and not chunk.is_dropped for _, chunk in self.working):
                for choice in range(len(self.working)):
                    self.handle(choice, 3)
            self.end_chunk()
            self.commits_are_behind_finished_work()
        assert not any(self.unfinished.values())
        assert not self.lanes._lane_of, "a key has a lane for no record"


class ByPartition(Pool):
    """The same with an order for each partition."""

    order = Order.PARTITION


class WithoutOrder(Pool):
    """The same without order."""

    order = Order.NONE


for machine in (Pool, ByPartition, WithoutOrder):
    machine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestByKey = Pool.TestCase
TestByPartition = ByPartition.TestCase
TestWithoutOrder = WithoutOrder.TestCase
