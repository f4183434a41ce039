"""No clean election chooses a replica that lacks a committed record: a small model around the real rules.

Three replicas with logs of plain tuples. Leaders act on the last state received, which may be old; their
``min.insync.replicas`` is any number at any time, because configuration may arrive late. Elections, the ISR, the
eligible replicas and the commit rule are the real functions.
"""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from raylog.base.ids import NO_LEADER, BrokerId, Offset, TopicPartition
from raylog.core.controller.leadership import Standing, led_by_preferred, settle, with_isr, without_eligible
from raylog.core.partition import PartitionState
from raylog.core.replication.watermark import committed_end

BROKERS = tuple(BrokerId(number) for number in (1, 2, 3))
brokers = st.sampled_from(BROKERS)

Log = list[tuple[int, int]]


class Partition(RuleBasedStateMachine):
    """One partition, its controller, and its three replicas."""

    def __init__(self) -> None:
        super().__init__()
        self.state = PartitionState(
            topic_id="t" * 32, partition=TopicPartition("t", 0), replicas=BROKERS, isr=BROKERS, places=()
        )
        self.min_isr = 2
        self.standing = dict.fromkeys(BROKERS, Standing.ONLINE)
        self.lost: set[BrokerId] = set()
        self.logs: dict[BrokerId, Log] = {broker: [] for broker in BROKERS}
        self.known = dict.fromkeys(BROKERS, self.state)
        self.fetched: dict[BrokerId, dict[BrokerId, int]] = {broker: {} for broker in BROKERS}
        self.proposed: dict[BrokerId, set[BrokerId]] = {broker: set() for broker in BROKERS}
        self.watermarks: dict[BrokerId, int] = dict.fromkeys(BROKERS, 0)
        self.committed: Log = []
        self.last = 0
        self.controller_settles()

    # ------------------------------------------------------------ the controller

    def change(self, after: PartitionState) -> None:
        before, self.state = self.state, after
        self.lost &= set(after.isr)
        if after.leader_epoch != before.leader_epoch:
            log = self.logs[after.leader]
            assert log[: len(self.committed)] == self.committed, f"{after.leader} leads without {self.committed}"

    def controller_settles(self) -> None:
        self.change(settle(self.state, self.standing, lost=self.lost, min_isr=self.min_isr))

    @rule(broker=brokers)
    def a_replica_goes(self, broker: BrokerId) -> None:
        self.standing[broker] = Standing.OFFLINE
        self.controller_settles()

    @rule(broker=brokers)
    def a_replica_comes(self, broker: BrokerId) -> None:
        self.standing[broker] = Standing.ONLINE
        self.known[broker] = self.state
        self.controller_settles()

    @rule(broker=brokers)
    def a_replica_comes_without_its_log(self, broker: BrokerId) -> None:
        self.standing[broker] = Standing.OFFLINE
        self.controller_settles()
        self.logs[broker] = []
        for progress in self.fetched.values():
            progress.pop(broker, None)
        self.fetched[broker], self.watermarks[broker] = {}, 0
        self.known[broker] = replace(self.state, leader=NO_LEADER)
        if broker in self.state.isr:
            self.lost.add(broker)
        else:
            self.change(without_eligible(self.state, broker))
        self.standing[broker] = Standing.ONLINE
        self.controller_settles()

    @rule(number=st.integers(1, 3))
    def the_minimum_is_changed(self, number: int) -> None:
        self.min_isr = number
        self.controller_settles()

    @rule()
    def the_preferred_replica_is_elected(self) -> None:
        self.change(led_by_preferred(self.state, self.standing, self.lost))

    # ------------------------------------------------------------ the replicas

    @rule(broker=brokers)
    def a_replica_receives_the_state(self, broker: BrokerId) -> None:
        if self.standing[broker] is Standing.ONLINE and self.known[broker] != self.state:
            if self.known[broker].leader_epoch != self.state.leader_epoch:
                self.fetched[broker], self.watermarks[broker] = {}, 0
            self.known[broker], self.proposed[broker] = self.state, set()

    def leading(self, broker: BrokerId) -> bool:
        return self.known[broker].leader == broker

    @rule(broker=brokers)
    def a_leader_appends(self, broker: BrokerId) -> None:
        if self.leading(broker):
            self.last += 1
            self.logs[broker].append((self.known[broker].leader_epoch, self.last))

    @rule(broker=brokers, leader=brokers, count=st.integers(0, 3))
    def a_replica_fetches(self, broker: BrokerId, leader: BrokerId, count: int) -> None:
        mine, theirs = self.known[broker], self.known[leader]
        if broker == leader or not self.leading(leader) or mine.leader_epoch != theirs.leader_epoch:
            return
        own, source = self.logs[broker], self.logs[leader]
        shared = 0
        while shared < min(len(own), len(source)) and own[shared] == source[shared]:
            shared += 1
        self.logs[broker] = source[: shared + count]
        self.fetched[leader][broker] = len(self.logs[broker])

    @rule(leader=brokers, minimum=st.integers(1, 3))
    def a_leader_commits(self, leader: BrokerId, minimum: int) -> None:
        if not self.leading(leader):
            return
        state = self.known[leader]
        counted = {*state.isr, *self.proposed[leader]} - {leader}
        ends = [self.fetched[leader].get(broker) for broker in sorted(counted)]
        end = committed_end(
            current=Offset(self.watermarks[leader]),
            own_durable_end=Offset(len(self.logs[leader])),
            member_ends=[None if end is None else Offset(end) for end in ends],
            isr_size=len(state.isr),
            min_insync_replicas=minimum,
            eligible=bool(state.elr),
            epoch_start=Offset(self.epoch_start(leader)),
        )
        self.watermarks[leader] = end
        if end > len(self.committed):
            assert self.logs[leader][: len(self.committed)] == self.committed
            self.committed = self.logs[leader][:end]

    @rule(fetching=st.sets(brokers), minimum=st.integers(1, 3))
    def the_leader_of_the_day_works(self, fetching: set[BrokerId], minimum: int) -> None:
        leader = self.state.leader
        if leader == NO_LEADER:
            return
        for broker in sorted({leader, *fetching}):
            self.a_replica_receives_the_state(broker)
        self.a_leader_appends(leader)
        for broker in sorted(fetching):
            self.a_replica_fetches(broker, leader, 3)
        self.a_leader_commits(leader, minimum)

    @rule(leader=brokers, members=st.sets(brokers))
    def a_leader_proposes(self, leader: BrokerId, members: set[BrokerId]) -> None:
        state = self.known[leader]
        if not self.leading(leader) or state.partition_epoch != self.state.partition_epoch:
            return
        ready = {broker for broker, end in self.fetched[leader].items() if end >= self.epoch_start(leader)}
        joining = {broker for broker in members & ready if self.fetched[leader][broker] >= self.watermarks[leader]}
        isr = tuple(
            broker
            for broker in BROKERS
            if broker == leader or broker in joining or (broker in members and broker in state.isr)
        )
        if any(self.standing[broker] is not Standing.ONLINE for broker in isr if broker not in state.isr):
            return
        self.proposed[leader] |= set(isr)
        self.change(with_isr(self.state, isr, min_isr=self.min_isr, lost=self.lost))

    @rule(leader=brokers)
    def a_leader_wants_to_be_the_only_one(self, leader: BrokerId) -> None:
        state = self.known[leader]
        there = all(self.standing[broker] is Standing.ONLINE for broker in state.isr)
        if there and self.leading(leader) and state.partition_epoch == self.state.partition_epoch:
            self.change(with_isr(self.state, state.isr, min_isr=self.min_isr, lost=self.lost, drops_eligible=True))

    def epoch_start(self, leader: BrokerId) -> int:
        epoch = self.known[leader].leader_epoch
        return sum(1 for written, _ in self.logs[leader] if written < epoch)

    @invariant()
    def isr_and_eligible_replicas_have_everything_committed(self) -> None:
        for broker in {*self.state.isr, *self.state.elr} - self.lost:
            assert self.logs[broker][: len(self.committed)] == self.committed, f"{broker} lacks something"


TestPartition = Partition.TestCase
TestPartition.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
