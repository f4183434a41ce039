"""A transaction coordinator for the producer's tests, on the toy cluster's brokers, with faults that a test scripts.

It is also the referee: a batch whose partition was not added to its transaction first is an error of the producer.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from raylog.base import errors
from raylog.protocol.groups import TXN_OFFSET_COMMIT, OffsetCommitResult, TxnOffsetCommitRequest
from raylog.protocol.message import Empty
from raylog.protocol.transactions import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_TRANSACTIONS,
    EndTxnReply,
    InitTransactionsReply,
    InitTransactionsRequest,
)
from raylog.rpc import Request
from tests.unit.client.toy_server import ToyCluster

Fault = errors.RaylogError | str
"""An error that refuses a request; "cut_after": done, then the connection breaks; "hold": answered by `release`."""
EPOCH_MAX = 2**15 - 1


@dataclass
class ToyTransaction:
    """What the coordinator knows of a transactional id."""

    producer_id: int
    producer_epoch: int
    partitions: set[tuple[str, int]] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    last_end: tuple[int, bool] | None = None
    """Epoch and outcome of the last one that was ended."""

    @property
    def is_open(self) -> bool:
        return bool(self.partitions or self.groups)


class ToyTransactions:
    """The coordinator of all transactional ids, and of the groups' offsets in transactions."""

    def __init__(self, cluster: ToyCluster) -> None:
        self.cluster = cluster
        self.ids: dict[str, ToyTransaction] = {}
        self.requests: list[tuple[str, Any]] = []
        self.inits: list[InitTransactionsRequest] = []
        self.faults: dict[str, deque[Fault]] = defaultdict(deque)
        self.held: list[Callable[[], None]] = []
        self.outcomes: dict[tuple[int, int], bool] = {}
        """Producer id and epoch to whether that transaction was committed."""
        self.added: dict[tuple[int, int], set[tuple[str, int]]] = defaultdict(set)
        self.pending: list[TxnOffsetCommitRequest] = []
        self.offsets: dict[tuple[str, str, int], int] = {}
        for method, handler in (
            (INIT_TRANSACTIONS, self._initialize),
            (ADD_PARTITIONS_TO_TXN, self._add_partitions),
            (ADD_OFFSETS_TO_TXN, self._add_offsets),
            (END_TXN, self._end),
            (TXN_OFFSET_COMMIT, self._commit_offsets),
        ):
            cluster.extra_methods[method.name] = self._served(method, handler)

    def named(self, method: str) -> list[Any]:
        """The requests of a method so far."""
        return [request for name, request in self.requests if name == method]

    def release(self) -> None:
        """Answer what was held."""

        def answer() -> None:
            held, self.held = self.held, []
            for each in held:
                each()

        self.cluster.do(answer)

    def values(self, topic: str, partition: int, *, committed: bool = True) -> list[bytes | None]:
        """The values of the transactions with this outcome, in order. Also checks every batch."""
        return self.cluster.do(lambda: self._values(topic, partition, committed))

    def _values(self, topic: str, partition: int, committed: bool) -> list[bytes | None]:
        found: list[bytes | None] = []
        for header, columns in self.cluster.partitions[topic, partition].columns():
            identity = (header.producer_id, header.producer_epoch)
            assert header.is_transactional
            assert (topic, partition) in self.added[identity], "the partition was added before its first batch"
            if self.outcomes.get(identity) is committed:
                found += columns.values or []
        return found

    # Requests

    def _served(self, method: Any, handler: Callable[[Any], Any]) -> Callable[[Request], None]:
        def serve(request: Request) -> None:
            wanted = method.read_request(request.args)
            self.requests.append((method.name, wanted))
            fault = self.faults[method.name].popleft() if self.faults[method.name] else None
            if isinstance(fault, errors.RaylogError):
                raise fault
            if fault == "hold":
                self.held.append(lambda: request.reply(handler(wanted)))
                return
            answer = handler(wanted)
            if fault == "cut_after":
                request.connection.abort("cut by the test")
                return
            request.reply(answer)

        return serve

    def _initialize(self, wanted: InitTransactionsRequest) -> InitTransactionsReply:
        self.inits.append(wanted)
        known = self.ids.get(wanted.transactional_id)
        if known is None:
            known = self.ids[wanted.transactional_id] = ToyTransaction(1000 + len(self.ids), 0)
            return InitTransactionsReply(known.producer_id, 0)
        before = (known.producer_id, known.producer_epoch)
        known.producer_epoch += 1
        if known.is_open and wanted.keep_prepared:
            self.added[known.producer_id, known.producer_epoch] = self.added[before]
            return InitTransactionsReply(known.producer_id, known.producer_epoch, *before)
        if known.is_open:
            self._decide(known, before, committed=False)
        return InitTransactionsReply(known.producer_id, known.producer_epoch)

    def _of(self, wanted: Any) -> ToyTransaction:
        known = self.ids.get(wanted.transactional_id)
        if known is None or known.producer_id != wanted.producer_id:
            raise errors.InvalidProducerIdMapping("Not its id.")
        if known.producer_epoch != wanted.producer_epoch:
            raise errors.ProducerFenced("A newer producer has the transactional id.")
        return known

    def _add_partitions(self, wanted: Any) -> Empty:
        known = self._of(wanted)
        rows = {(row.topic, row.partition) for row in wanted.partitions}
        known.partitions |= rows
        self.added[known.producer_id, known.producer_epoch] |= rows
        return Empty()

    def _add_offsets(self, wanted: Any) -> Empty:
        self._of(wanted).groups.add(wanted.group_id)
        return Empty()

    def _commit_offsets(self, wanted: TxnOffsetCommitRequest) -> list[OffsetCommitResult]:
        assert wanted.group_id in self._of(wanted).groups, "the group was added before its offsets came"
        self.pending.append(wanted)
        return [OffsetCommitResult(row.topic, row.partition, 0) for row in wanted.offsets]

    def _end(self, wanted: Any) -> EndTxnReply:
        known = self.ids[wanted.transactional_id]
        if known.last_end == (wanted.producer_epoch, wanted.committed) and not known.is_open:
            return EndTxnReply(known.producer_id, known.producer_epoch)
        known = self._of(wanted)
        if not known.is_open:
            raise errors.InvalidTxnState("No transaction is open.")
        known.last_end = (known.producer_epoch, wanted.committed)
        before = (known.producer_id, known.producer_epoch)
        known.producer_epoch += 1
        self._decide(known, before, committed=wanted.committed)
        return EndTxnReply(known.producer_id, known.producer_epoch)

    def _decide(self, known: ToyTransaction, identity: tuple[int, int], *, committed: bool) -> None:
        self.outcomes[identity] = committed
        pending, self.pending = self.pending, []
        for request in pending if committed else []:
            for row in request.offsets:
                self.offsets[request.group_id, row.topic, row.partition] = row.committed_offset
        for where in sorted(known.partitions):
            partition = self.cluster.partitions[where]
            partition.end_transaction(identity[0], known.producer_epoch, committed=committed)
        known.partitions.clear()
        known.groups.clear()
