"""The coordinators that exactly-once talks to: the real machine of transactions, with markers that arrive at once.

A read that is not a driver's may be answered by a group coordinator that was replaced: with an earlier decision.
Records lie with their transaction until it is committed. The referee looks at `visible`.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from dataclasses import dataclass
from itertools import count
from typing import Any

from raylog.base.errors import ProducerFenced, RaylogError
from raylog.core.coordinators.events import Tick
from raylog.core.coordinators.share import EVERY_KEY
from raylog.core.decision import Refuse, Reply
from raylog.core.received import Received
from raylog.core.transactions.coordinator import TransactionMachine
from raylog.core.transactions.events import (
    Effect,
    EndTxn,
    Event,
    MarkerWritten,
    ProducerIdsGranted,
    RequestProducerIds,
    TxnRequest,
)
from raylog.core.transactions.settings import TxnSettings
from raylog.core.transactions.waiting import Participant
from raylog.protocol.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitTransactionsRequest,
    ListTransactionsRequest,
    TxnPartition,
)
from raylog.spark.writing.commits import (
    Decision,
    End,
    Fence,
    Identity,
    Init,
    Initialised,
    Prepared,
    Read,
    Release,
    Request,
    Store,
    driver_id,
)

TIMEOUT_MS = 900_000
Record = tuple[Any, ...]


@dataclass(frozen=True)
class Write:
    """A record into the open transaction of an id."""

    transactional_id: str
    identity: Identity
    record: Record


class ToyCoordinators:
    """One coordinator of transactions, and the group that holds the decision."""

    def __init__(self, prefix: str, chance: random.Random) -> None:
        self.prefix = prefix
        self._chance = chance
        self.machine = TransactionMachine(settings=TxnSettings(max_timeout_ms=TIMEOUT_MS), share=EVERY_KEY)
        self.machine.loaded(0, wall_ms=0)
        self.now_ms = 0
        self.visible: list[Record] = []
        self.decisions: list[Decision] = []
        self._staged: dict[tuple[int, int], list[Record]] = defaultdict(list)
        self._pending: dict[tuple[int, int], Decision] = {}
        self._answers: dict[int, Any] = {}
        self._numbers = count(1)

    def answer(self, request: Request | Write) -> Any:
        """Handle one request; a refusal is the value."""
        try:
            return self._answer(request)
        except RaylogError as error:
            return error

    def _answer(self, request: Request | Write) -> Any:
        match request:
            case Init():
                sender = request.sender or Identity(-1, -1)
                row = self._init(request.transactional_id, sender, keep=True, for_good=request.for_good)
                kept = None if row[2] < 0 else Prepared(request.transactional_id, row[2], row[3])
                return Initialised(Identity(row[0], row[1]), kept)
            case Fence():
                row = self._init(driver_id(self.prefix), Identity(-1, -1), keep=False, for_good=False)
                return Identity(row[0], row[1])
            case End():
                return self._end(request.transactional_id, request.identity, request.committed)
            case Read(driver=None):
                return self._chance.choice([None, *self.decisions][-2:])
            case Read(driver=driver) if driver is not None:
                self._add_group(driver)
                return self.decisions[-1] if self.decisions else None
            case Release():
                self._end(driver_id(self.prefix), request.driver, False)
                return None
            case Store():
                name = driver_id(self.prefix)
                self._add_group(request.driver)
                self._pending[request.driver] = request.decision
                self._end(name, request.driver, True)
                return None
            case Write():
                self._write(request)
                return None

    def _add_group(self, driver: Identity) -> None:
        name = driver_id(self.prefix)
        self._call(AddOffsetsToTxnRequest(name, *driver, self.prefix))

    def _init(self, name: str, sender: Identity, *, keep: bool, for_good: bool) -> list[int]:
        row: list[int] = self._call(InitTransactionsRequest(name, TIMEOUT_MS, *sender, for_good, keep))
        return row

    def _end(self, name: str, identity: Identity, committed: bool) -> Identity:
        return Identity(*self._call(EndTxnRequest(name, *identity, committed)))

    def _write(self, request: Write) -> None:
        if request.identity not in self._staged:
            partitions = [TxnPartition("id", "topic", 0)]
            self._call(AddPartitionsToTxnRequest(request.transactional_id, *request.identity, partitions))
        elif not self._staged[request.identity]:  # a marker has come: the leader knows the higher epoch
            raise ProducerFenced("The leader has seen a newer epoch.")
        self._staged[request.identity].append(request.record)

    def pass_time(self) -> None:
        """Let every transaction time out that may."""
        self.now_ms += 2 * TIMEOUT_MS
        self._carry_out(self.machine.step(Tick(cause="t", now_ms=self.now_ms, wall_ms=self.now_ms)))

    def open_ids(self) -> list[str]:
        """Transactional ids with an open transaction."""
        rows = self._call(ListTransactionsRequest(["Ongoing"]))
        return [row[0] for row in rows]

    def _call(self, message: TxnRequest) -> Any:
        number = next(self._numbers)
        self.now_ms += 1
        event = Received(message=message, cause=f"c{number}", now_ms=self.now_ms, request=number)
        self._carry_out(self.machine.step(event))
        answer = self._answers.pop(number)
        if isinstance(answer, RaylogError):
            raise answer
        return answer

    def _carry_out(self, outbox: Any) -> None:
        effects: deque[Effect] = deque([*outbox.now, *outbox.after_sync])
        while effects:
            effect = effects.popleft()
            if isinstance(effect, Reply):
                self._answers[effect.request] = effect.result
            elif isinstance(effect, Refuse):
                self._answers[effect.request] = effect.error
            elif isinstance(effect, EndTxn):
                effects += self._marked(effect)
            elif isinstance(effect, RequestProducerIds):
                granted = ProducerIdsGranted(
                    cause="ids", now_ms=self.now_ms, first=1000 * next(self._numbers), count=effect.count
                )
                effects += self._step(granted)

    def _marked(self, effect: EndTxn) -> list[Effect]:
        found: list[Effect] = []
        if effect.committed:
            self.visible += self._staged.get(effect.writer, [])
            if effect.writer in self._pending:
                self.decisions.append(self._pending[effect.writer])
        self._staged[effect.writer] = []
        self._pending.pop(effect.writer, None)
        participants: list[Participant] = [*effect.partitions, *effect.groups]
        for participant in participants:
            found += self._step(self._marker(effect, participant))
        return found

    def _marker(self, effect: EndTxn, participant: Participant) -> MarkerWritten:
        return MarkerWritten(
            cause="m",
            now_ms=self.now_ms,
            transactional_id=effect.transactional_id,
            writer=effect.writer,
            participant=participant,
        )

    def _step(self, event: Event) -> list[Effect]:
        outbox = self.machine.step(event)
        return [*outbox.now, *outbox.after_sync]
