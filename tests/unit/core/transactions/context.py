"""A transaction coordinator's machine with a log in memory, and short ways to send it requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raylog.base.errors import RaylogError
from raylog.core.coordinators.events import (
    AppendRecords,
    ProposeSleep,
    RequestDropped,
    SleepRefused,
    SleepRequested,
    Tick,
)
from raylog.core.coordinators.share import EVERY_KEY
from raylog.core.decision import Refuse, Reply, Result
from raylog.core.outbox import Outbox
from raylog.core.received import Received, Sender
from raylog.core.transactions import events as ev
from raylog.core.transactions.coordinator import TransactionMachine
from raylog.core.transactions.records import NO_IDENTITY, ROWS, ProducerIdentity, TxnChanged
from raylog.core.transactions.settings import TxnSettings
from raylog.core.transactions.states import TxnState
from raylog.core.transactions.waiting import Participant
from raylog.protocol.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionRequest,
    EndTxnRequest,
    InitTransactionsRequest,
    ListTransactionsRequest,
    TxnPartition,
)

Row = tuple[list[object], list[object] | None]

NAME = "etl-1"
TIMEOUT_MS = 60_000
WALL_AHEAD_MS = 1_700_000_000_000
FIRST_ID = 1_000
ORDERS = TxnPartition("o" * 32, "orders", 0)
BILLS = TxnPartition("b" * 32, "bills", 3)
GROUP = "workers"


class Transactions:
    """One coordinator. Rows are stored at once; markers are kept until the test has them written."""

    def __init__(
        self,
        settings: TxnSettings | None = None,
        *,
        log: list[Row] | None = None,
        now_ms: int = 0,
        next_id: int = FIRST_ID,
    ) -> None:
        """Load a log, which stays the caller's."""
        self.settings = settings or TxnSettings()
        self.log: list[Row] = list(log or [])
        self.now_ms = now_ms
        self.next_id = next_id
        self.grants_ids = True
        self.holds_grants = False
        """Whether requested producer ids do not come."""
        self.request = 0
        self.replies: dict[int, Result] = {}
        self.refusals: dict[int, RaylogError] = {}
        self.markers: list[ev.EndTxn] = []
        self.proposals = 0
        self.machine = TransactionMachine(settings=self.settings, share=EVERY_KEY)
        for key, value in self.log:
            self.machine.replay(key, value)
        self._carry_out(self.machine.loaded(now_ms, wall_ms=self.wall_ms))

    @property
    def wall_ms(self) -> int:
        """The time of day."""
        return WALL_AHEAD_MS + self.now_ms

    def restarted(self, later_ms: int = 0, log: list[Row] | None = None) -> Transactions:
        """Return the next incarnation, which has read the log."""
        rows = self.log if log is None else log
        return Transactions(self.settings, log=rows, now_ms=self.now_ms + later_ms, next_id=self.next_id)

    # ------------------------------------------------------------ requests

    def init(
        self,
        held: ProducerIdentity | None = None,
        *,
        name: str = NAME,
        timeout_ms: int = TIMEOUT_MS,
        two_phase: bool = False,
        keep: bool = False,
        prefix: str = "",
    ) -> int:
        """Initialise a producer; returns the request's number."""
        held = held or NO_IDENTITY
        return self.send(InitTransactionsRequest(name, timeout_ms, *held, two_phase, keep), prefix)

    def add(self, producer: ProducerIdentity, *partitions: TxnPartition, name: str = NAME, prefix: str = "") -> int:
        """Add partitions to the transaction."""
        return self.send(AddPartitionsToTxnRequest(name, *producer, partitions), prefix)

    def add_group(self, producer: ProducerIdentity, group: str = GROUP, name: str = NAME) -> int:
        """Add a group to the transaction."""
        return self.send(AddOffsetsToTxnRequest(name, *producer, group))

    def end(self, producer: ProducerIdentity, *, committed: bool = True, name: str = NAME) -> int:
        """End the transaction."""
        return self.send(EndTxnRequest(name, *producer, committed))

    def list(self, *states: str, longer_than_ms: int = -1) -> Result:
        """Return the list of transactional ids, or fail."""
        return self.reply(self.send(ListTransactionsRequest(states, longer_than_ms)))

    def describe(self, name: str = NAME) -> int:
        """Describe a transactional id."""
        return self.send(DescribeTransactionRequest(name))

    def send(self, message: ev.TxnRequest, prefix: str = "") -> int:
        """Send a request, by a token's holder if there is a prefix; returns its number."""
        self.request += 1
        sender = Sender(transactional_id_prefix=prefix)
        self.notice(Received, message=message, request=self.request, sender=sender)
        return self.request

    def notice(self, kind: Callable[..., ev.Event], **fields: Any) -> None:
        """Feed an event that is no request."""
        self.step(kind(cause="test", now_ms=self.now_ms, **fields))

    def drop(self, request: int) -> None:
        """Close the connection of a request."""
        self.notice(RequestDropped, request=request)

    # ------------------------------------------------------------ shorter still

    def producer(self, name: str = NAME, **settings: int | bool) -> ProducerIdentity:
        """Return a fresh producer of a transactional id."""
        return self.identity(self.init(name=name, **settings))  # type: ignore[arg-type]

    def begun(self, *partitions: TxnPartition, name: str = NAME) -> ProducerIdentity:
        """Return a producer with an open transaction."""
        producer = self.producer(name)
        self.reply(self.add(producer, *(partitions or (ORDERS,)), name=name))
        return producer

    def write_markers(self) -> None:
        """Have every participant of every decided transaction end it."""
        markers, self.markers = self.markers, []
        for effect in markers:
            participants: list[Participant] = [*effect.partitions, *effect.groups]
            for participant in participants:
                self.written(effect, participant)

    def written(self, effect: ev.EndTxn, participant: Participant) -> None:
        """Report that a participant has its marker."""
        self.notice(
            ev.MarkerWritten,
            transactional_id=effect.transactional_id,
            writer=effect.writer,
            participant=participant,
        )

    # ------------------------------------------------------------ time

    def tick(self, later_ms: int = 0) -> None:
        """Let time pass."""
        self.now_ms += later_ms
        self.notice(Tick, wall_ms=self.wall_ms)

    def request_sleep(self) -> None:
        """Have the cluster stop."""
        self.notice(SleepRequested)
        self.tick()

    def refuse_sleep(self) -> None:
        """Refuse the proposal to end."""
        self.notice(SleepRefused)

    # ------------------------------------------------------------ what came of it

    def reply(self, request: int) -> Result:
        """Return the answer to a request; fails where it was refused, or waits."""
        assert request not in self.refusals, self.refusals[request]
        return self.replies[request]

    def identity(self, request: int) -> ProducerIdentity:
        """Return the producer's identity in an answer."""
        answer = self.reply(request)
        assert isinstance(answer, list)
        producer_id, epoch = answer[:2]
        assert isinstance(producer_id, int)
        assert isinstance(epoch, int)
        return ProducerIdentity(producer_id, epoch)

    def error(self, request: int) -> type[RaylogError] | None:
        """Return the kind of error that refused a request; None = it was answered, or waits."""
        return type(self.refusals[request]) if request in self.refusals else None

    def waits(self, request: int) -> bool:
        """Return whether a request has no answer yet."""
        return request not in self.replies and request not in self.refusals

    def row(self, name: str = NAME) -> TxnChanged:
        """Return the last record of a transactional id."""
        found = [ROWS.read(key, value) for key, value in self.log if key[1] == name]
        assert isinstance(found[-1], TxnChanged)
        return found[-1]

    def state(self, name: str = NAME) -> TxnState:
        """Return the state of a transactional id by the log."""
        return self.row(name).state

    def edit(self, **changes: object) -> Transactions:
        """Return the next incarnation, after the last record of the id was changed."""
        row = self.row().changed(self.row().changed_ms, **changes)  # type: ignore[arg-type]
        return self.restarted(log=[*self.log, row.to_wire()])

    def step(self, event: ev.Event) -> None:
        """Feed an event; its rows are stored at once."""
        self._carry_out(self.machine.step(event))
        self.machine.validate()

    def _carry_out(self, outbox: Outbox[ev.Effect]) -> None:
        granted: list[ev.ProducerIdsGranted] = []
        for effect in (*outbox.now, *outbox.after_sync):
            match effect:
                case AppendRecords():
                    self.log += effect.records
                case Reply():
                    self.replies[effect.request] = effect.result
                case Refuse():
                    self.refusals[effect.request] = effect.error
                case ev.EndTxn():
                    self.markers.append(effect)
                case ev.RequestProducerIds() if self.holds_grants:
                    pass
                case ev.RequestProducerIds():
                    granted.append(self._granted(effect.count))
                case ProposeSleep():
                    self.proposals += 1
        for event in granted:
            self.step(event)

    def _granted(self, count: int) -> ev.ProducerIdsGranted:
        first, given = (self.next_id, count) if self.grants_ids else (0, 0)
        self.next_id += given
        return ev.ProducerIdsGranted(cause="controller", now_ms=self.now_ms, first=first, count=given)
