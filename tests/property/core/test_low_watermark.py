"""Laws of deleting records: for all reports of followers, an answer is true and the log start never falls."""

from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.base.ids import BrokerId, Offset
from raylog.core.outbox import Outbox
from raylog.core.replication.events import (
    AdvanceLogStart,
    AnswerDeleteRecords,
    Effect,
    LogStartAdvanced,
    RefuseRequest,
)
from tests.unit.core.replication.context import SECOND, THIRD, Context, partition_state, some

RECORDS = 20
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("delete"), st.integers(-1, RECORDS), st.just(False)),
        st.tuples(st.just("follow"), st.sampled_from([SECOND, THIRD]), st.booleans()),
        st.tuples(st.just("retain"), st.integers(0, RECORDS), st.just(False)),
        st.tuples(st.just("wait"), st.integers(1, 600), st.just(False)),
    ),
    max_size=30,
)


class Partition:
    """A leader of twenty committed records, the log starts of its followers, and the requests that wait."""

    def __init__(self) -> None:
        self.context = Context()
        self.context.notified(partition_state())
        self.context.produced(RECORDS)
        self.followers = {SECOND: 0, THIRD: 0}
        self.waiting: dict[int, int] = {}
        self.lowest = 0
        for broker in self.followers:
            self.follow(broker, fully=False)

    def see(self, out: Outbox[Effect]) -> None:
        """Check the effects of a step, and carry them out as the shell does."""
        start = self.context.machine.log_start_offset
        assert start >= self.lowest, "the log start never falls"
        self.lowest = start
        for answer in some(AnswerDeleteRecords, out.now):
            before = self.waiting.pop(answer.request)
            assert before <= answer.low_watermark <= min(start, *self.followers.values())
        for refusal in some(RefuseRequest, out.now):
            del self.waiting[refusal.request]
        for effect in some(AdvanceLogStart, out.now):
            self.retain(effect.to)

    def retain(self, to: int) -> None:
        self.see(self.context.notice(LogStartAdvanced, log_start_offset=Offset(to)))

    def follow(self, broker: BrokerId, *, fully: bool) -> None:
        """A follower fetches, with or without the leader's log start taken over."""
        if fully:
            self.followers[broker] = self.context.machine.log_start_offset
        start = Offset(self.followers[broker])
        self.see(self.context.fetched_by(broker, RECORDS, wait_ms=0, log_start_offset=start))

    def delete(self, before: int) -> None:
        """A client sends DeleteRecords."""
        self.waiting[self.context.last_request + 1] = RECORDS if before == -1 else before
        self.see(self.context.deletion_requested(before))


@given(steps=STEPS)
@settings(max_examples=100, deadline=None)
def test_an_answer_is_true_of_every_replica_and_comes_once(steps: list[tuple[str, int, bool]]) -> None:
    partition = Partition()
    for kind, number, fully in steps:
        match kind:
            case "delete":
                partition.delete(number)
            case "follow":
                partition.follow(BrokerId(number), fully=fully)
            case "retain":
                partition.retain(number)
            case _:
                partition.see(partition.context.ticked(number))
    for broker in partition.followers:
        partition.follow(broker, fully=True)
    assert not partition.waiting, "when all have followed, no request waits any more"
