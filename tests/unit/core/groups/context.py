"""A bare coordinator with a log, a clock and the tests' vocabulary; it checks the whole machine after every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from raylog.base.errors import MemberIdRequired, RaylogError
from raylog.core.coordinators.share import EVERY_KEY
from raylog.core.decision import Refuse, Reply
from raylog.core.groups.coordinator import GroupCoordinatorMachine, GroupSettings
from raylog.core.groups.events import (
    AppendRecords,
    Effect,
    Event,
    LookUpTopics,
    ProposeSleep,
    RequestDropped,
    StoreProof,
    Tick,
)
from raylog.core.outbox import Outbox
from raylog.core.received import UNKNOWN, Received, Sender
from raylog.protocol.groups import (
    DeleteGroupRequest,
    DescribeGroupRequest,
    EndTxnOffsetsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetResetRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)
from raylog.protocol.message import Message

WALL_START_MS = 1_700_000_000_000
GROUP = "board"
SESSION_MS = 10_000
REBALANCE_MS = 20_000
RANGE: Sequence[tuple[str, bytes]] = (("range", b"topics"),)

Row = tuple[list[object], list[object] | None]
MessageT = TypeVar("MessageT", bound=Message)

USUAL: Final = {"group_id": GROUP, "group_instance_id": None, "protocol_type": "consumer"}
"""Fields that most requests of a test share."""


def message_of(kind: type[MessageT], **fields: object) -> MessageT:
    """Return a message with these fields, whose rows may be tuples; the others are the usual ones, or the defaults."""
    given = [(field, {**USUAL, **fields}.get(field.name, field.default)) for field in msgspec.structs.fields(kind)]
    assert fields.keys() <= {field.name for field, _ in given}, f"{kind.__name__} has no such field"
    return msgspec.convert([value for _, value in given], kind, builtin_types=(bytes, bytearray, memoryview))


class Groups:
    """The machine under test; requests are numbered from 1, and outcomes are kept by number."""

    def __init__(self, settings: GroupSettings | None = None, log: Sequence[Row] = (), now_ms: int = 0) -> None:
        self.settings = settings or GroupSettings()
        self.now_ms = now_ms
        self.request = 0
        self.ids = 0
        self.log: list[Row] = list(log)
        self.looked_up: list[tuple[str, ...]] = []
        self.proposals = 0
        """How often the machine has proposed to end."""
        self.proofs = 0
        self.replies: dict[int, list[object] | dict[str, object]] = {}
        self.refusals: dict[int, RaylogError] = {}
        self.last: Outbox[Effect] = Outbox()
        self.machine = GroupCoordinatorMachine(settings=self.settings, share=EVERY_KEY, new_member_id=self._new_id)
        for key, value in self.log:
            self.machine.replay(key, value)
        self.machine.loaded(now_ms, wall_ms=WALL_START_MS + now_ms)
        self.machine.validate()

    def _new_id(self, client_id: str) -> str:
        self.ids += 1
        return f"{client_id}-{self.ids}"

    # ------------------------------------------------------------ steps

    def step(self, event: Event) -> Outbox[Effect]:
        """Feed one event, carry the effects out, check the machine."""
        self.last = self.machine.step(event)
        for place, effect in enumerate(self.last.now):
            assert not isinstance(effect, Reply), "replies wait for the log"
            if isinstance(effect, AppendRecords):
                assert place == 0, "records come first"
                self.log.extend(effect.records)
            elif isinstance(effect, LookUpTopics):
                self.looked_up.append(effect.topics)
            elif isinstance(effect, StoreProof):
                self.proofs += 1
            else:
                assert isinstance(effect, Refuse)
                self._finish(effect.request)
                self.refusals[effect.request] = effect.error
        for effect in self.last.after_sync:
            if isinstance(effect, ProposeSleep):
                self.proposals += 1
                continue
            assert isinstance(effect, (Reply, Refuse))
            self._finish(effect.request)
            if isinstance(effect, Refuse):
                assert any(isinstance(each, StoreProof) for each in self.last.now), "it states what is stored"
                self.refusals[effect.request] = effect.error
                continue
            self.replies[effect.request] = effect.result
        self.machine.validate()
        return self.last

    def _finish(self, request: int) -> None:
        assert request not in self.replies, f"request {request} is answered once"
        assert request not in self.refusals, f"request {request} is answered once"

    def tick(self, after_ms: int = 0) -> None:
        """Let time pass, then tick."""
        self.now_ms += after_ms
        self.notice(Tick, wall_ms=WALL_START_MS + self.now_ms)

    def notice(self, kind: Callable[..., Event], **fields: Any) -> None:
        """Feed an event that is no request."""
        self.step(kind(cause="test", now_ms=self.now_ms, **fields))

    def drop(self, request: int) -> None:
        """The connection of that request is closed."""
        self.notice(RequestDropped, request=request)

    # ------------------------------------------------------------ requests, each of which returns its number

    def send(self, kind: type[Message], *, sender: Sender = UNKNOWN, **fields: Any) -> int:
        """Send any request; return its number."""
        self.request += 1
        self.notice(Received, request=self.request, message=message_of(kind, **fields), sender=sender)
        return self.request

    def join(
        self,
        member_id: str = "",
        *,
        client_id: str = "c",
        protocols: Sequence[tuple[str, bytes]] = RANGE,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        **other: Any,
    ) -> int:
        """Send JoinGroup."""
        return self.send(
            JoinGroupRequest,
            member_id=member_id,
            client_id=client_id,
            protocols=protocols,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            **other,
        )

    def sync(self, member: str, generation: int, plan: Mapping[str, bytes] | None = None, **other: Any) -> int:
        """Send SyncGroup."""
        return self.send(
            SyncGroupRequest,
            member_id=member,
            generation_id=generation,
            assignments=tuple((plan or {}).items()),
            **other,
        )

    def heartbeat(self, member: str, generation: int, **other: Any) -> int:
        """Send Heartbeat."""
        return self.send(HeartbeatRequest, member_id=member, generation_id=generation, **other)

    def leave(self, *members: tuple[str, str | None]) -> int:
        """Send LeaveGroup."""
        return self.send(LeaveGroupRequest, members=members)

    def commit(
        self,
        offset: int,
        *,
        topic_id: str = "id1",
        topic: str = "flights",
        partition: int = 0,
        metadata: str = "",
        member_id: str = "",
        generation: int = -1,
        **other: Any,
    ) -> int:
        """Send OffsetCommit for one partition."""
        offsets = [(topic_id, topic, partition, offset, 3, metadata)]
        return self.send(OffsetCommitRequest, offsets=offsets, member_id=member_id, generation_id=generation, **other)

    def txn_commit(
        self,
        offset: int,
        *,
        partition: int = 0,
        metadata: str = "",
        producer: int = 7,
        epoch: int = 0,
        member_id: str = "",
        generation: int = -1,
        **other: Any,
    ) -> int:
        """Send TxnOffsetCommit for one partition."""
        return self.send(
            TxnOffsetCommitRequest,
            offsets=[("id1", "flights", partition, offset, 3, metadata)],
            transactional_id="tx",
            producer_id=producer,
            producer_epoch=epoch,
            member_id=member_id,
            generation_id=generation,
            **other,
        )

    def end_txn(self, *, committed: bool, producer: int = 7, epoch: int = 1, coordinator_epoch: int = 4) -> int:
        """Send EndTxnOffsets."""
        return self.send(
            EndTxnOffsetsRequest,
            producer_id=producer,
            producer_epoch=epoch,
            coordinator_epoch=coordinator_epoch,
            committed=committed,
        )

    def fetch(self, *partitions: tuple[str, str, int], stable: bool = False, **other: Any) -> int:
        """Send OffsetFetch, of all offsets when no partition is given."""
        return self.send(OffsetFetchRequest, partitions=partitions or None, require_stable=stable, **other)

    def reset(self, *rows: tuple[int, int, int], generation: int = -1) -> int:
        """Send OffsetReset of (partition, offset, planned from) each."""
        offsets = [("id1", "flights", *row) for row in rows]
        return self.send(OffsetResetRequest, generation_id=generation, offsets=offsets)

    def delete_offsets(self, *partitions: tuple[str, str, int]) -> int:
        """Send OffsetDelete."""
        return self.send(OffsetDeleteRequest, partitions=partitions)

    def list_groups(self, **other: Any) -> int:
        """Send ListGroups."""
        return self.send(ListGroupsRequest, **other)

    def describe(self, group_id: str = GROUP, **other: Any) -> int:
        """Send DescribeGroup."""
        return self.send(DescribeGroupRequest, group_id=group_id, **other)

    def delete(self, group_id: str = GROUP) -> int:
        """Send DeleteGroup."""
        return self.send(DeleteGroupRequest, group_id=group_id)

    # ------------------------------------------------------------ outcomes

    def code(self, request: int) -> int | None:
        """Return the error number, 0 for a reply, None while the request is parked."""
        if request in self.refusals:
            return self.refusals[request].code
        return 0 if request in self.replies else None

    def reply(self, request: int) -> list[object]:
        """Return the reply of a request that succeeded."""
        assert self.code(request) == 0, self.refusals.get(request, "parked")
        found = self.replies[request]
        assert isinstance(found, list)
        return found

    def described(self, **other: Any) -> dict[str, Any]:
        """Return the reply to a DescribeGroup that succeeds."""
        found = self.replies[self.describe(**other)]
        assert isinstance(found, dict)
        return found

    @property
    def state(self) -> str:
        """Return the group's state as DescribeGroup reports it; Dead when there is no such group."""
        request = self.describe()
        found = self.replies.get(request)
        return str(found["state"]) if isinstance(found, dict) else "Dead"

    # ------------------------------------------------------------ ways into a state

    def end_first_round(self) -> None:
        """Let the time pass for which a first round waits for newcomers; the second tick begins the generation."""
        for _ in range(2):
            self.tick(self.settings.initial_rebalance_delay_ms)

    def new_id(self, **options: Any) -> str:
        """Join for the first time, with options of :meth:`join`, and return the assigned member id."""
        request = self.join(**options)
        assert self.code(request) == MemberIdRequired.code
        return str(self.refusals[request].details["member_id"])

    def preparing(self, count: int = 2) -> list[str]:
        """Bring ``count`` members into the first round of the group, parked; return their ids."""
        members = [self.new_id() for _ in range(count)]
        for member in members:
            assert self.code(self.join(member)) is None
        return members

    def completing(self, count: int = 2) -> list[str]:
        """Bring the group to generation 1, without assignments; the first member leads."""
        members = self.preparing(count)
        self.end_first_round()
        assert self.state == "CompletingRebalance"
        return members

    def stable(self, count: int = 2) -> list[str]:
        """Bring the group to generation 1, with assignments: the n-th member has b"n"."""
        members = self.completing(count)
        parked = [self.sync(member, 1) for member in members[1:]]
        plan = {member: str(place).encode() for place, member in enumerate(members)}
        parked.append(self.sync(members[0], 1, plan))
        assert [self.code(request) for request in parked] == [0] * count
        assert self.state == "Stable"
        return members

    def emptied(self) -> str:
        """Bring the group to Empty through a generation with one member; return that member's id."""
        (member,) = self.stable(1)
        self.leave((member, None))
        assert self.state == "Empty"
        return member

    def restarted(self, now_ms: int | None = None) -> Groups:
        """Return a coordinator that replayed this one's log."""
        after = Groups(self.settings, self.log, self.now_ms if now_ms is None else now_ms)
        after.ids = self.ids + 1000
        return after
