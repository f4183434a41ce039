"""Bugs planted in transactions: their coordinators, the groups' part, partitions, producers and readers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from msgspec import structs

from raylog.actors.replica.consumer_reads import ConsumerReads
from raylog.actors.routes import _Seen
from raylog.actors.transactions.markers import MarkerSender
from raylog.client.producer.delivery import Delivery
from raylog.client.producer.transactions.coordinator import CoordinatorCalls
from raylog.client.producer.transactions.manager import TransactionManager
from raylog.client.reading.isolation import AbortedBatches
from raylog.client.reading.local_files import Place
from raylog.core.groups import offsets, pending
from raylog.core.transactions import rules
from raylog.core.transactions.coordinator import TxnDecision
from raylog.core.transactions.states import TxnState
from raylog.storage.log.partition_log import PartitionLog
from raylog.storage.log.producer_state import ProducerState
from tests.simulation.whole.plan import TRANSACTIONS
from tests.simulation.whole.planted.bugs import Bug

SEEDS: Final = 12


def _false(_: object) -> Callable[..., bool]:
    return lambda *_, **__: False


def _to_the_watermark(_: object) -> Callable[..., int]:
    return lambda self, high_watermark: high_watermark


def _none_opens(_: object) -> Callable[..., None]:
    return lambda *_, **__: None


def _none_aborted(_: object) -> Callable[..., Sequence[Any]]:
    return lambda *_, **__: ()


def _appended_again(original: Callable[..., bool]) -> Callable[..., bool]:
    """A marker that is repeated is appended again."""

    def check_marker(self: ProducerState, marker: Any) -> bool:
        original(self, marker)
        return True

    return check_marker


def _any_epoch(original: Callable[..., Any]) -> Callable[..., Any]:
    """A partition takes transactional batches of a producer's earlier epochs."""

    def check(self: ProducerState, header: Any) -> Any:
        entry = self.producers.get(header.producer_id)
        if entry is not None and header.is_transactional and header.producer_epoch < entry.epoch:
            return None
        return original(self, header)

    return check


def _file_hides_nothing(original: Callable[..., Any]) -> Callable[..., Any]:
    """A reader of files takes aborted batches for committed ones."""
    return lambda self, most_bytes: original(self._replace(aborted=None), most_bytes)


def _at_once(original: Callable[..., None]) -> Callable[..., None]:
    """An answer leaves before the record behind it is stored."""

    def early(self: TxnDecision, *arguments: Any) -> None:
        original(self, *arguments)
        self.now.append(self.after_sync.pop())

    return early


def _forgotten_by_its_successor(original: Callable[..., None]) -> Callable[..., None]:
    """A coordinator that was loaded leaves the markers that its predecessor owed."""

    def end_transaction(self: TxnDecision, decided: Any) -> None:
        if self.cause != "loaded":
            original(self, decided)

    return end_transaction


def _aborted_by_its_successor(original: Callable[..., None]) -> Callable[..., None]:
    """A coordinator that was loaded aborts what its predecessor has decided to commit."""

    def end_transaction(self: TxnDecision, decided: Any) -> None:
        original(self, decided.replaced(state=TxnState.PREPARE_ABORT) if self.cause == "loaded" else decided)

    return end_transaction


def _last_is_left_out(original: Callable[..., None]) -> Callable[..., None]:
    """One of several partitions gets no marker, and counts as having it."""

    def send(self: MarkerSender, effect: Any, coordinator_epoch: int) -> None:
        if len(effect.partitions) < 2:
            original(self, effect, coordinator_epoch)
            return
        original(self, replace(effect, partitions=effect.partitions[:-1]), coordinator_epoch)
        self._on_written(effect, effect.partitions[-1])

    return send


def _same_epoch(original: Callable[..., Any]) -> Callable[..., Any]:
    """A marker carries the epoch of the records before it."""

    def decided(txn: Any, *arguments: Any) -> Any:
        return original(txn, *arguments).replaced(marker_epoch=txn.producer.epoch)

    return decided


def _takes_effect_at_once(original: Callable[..., None]) -> Callable[..., None]:
    """Offsets of a transaction count before it is committed."""

    def txn_commit(store: Any, event: Any, decision: Any) -> None:
        for item in event.message.offsets:
            decision.write(offsets.committed_row(event.message.group_id, item, decision.wall_ms))
        original(store, event, decision)

    return txn_commit


def _outcome(committed: bool) -> Callable[[Any], Callable[..., None]]:
    """A group ends each transaction in the same way."""

    def patch(original: Callable[..., None]) -> Callable[..., None]:
        def end(store: Any, event: Any, decision: Any) -> None:
            message = structs.replace(event.message, committed=committed)
            original(store, replace(event, message=message), decision)

        return end

    return patch


def _does_not_wait(_: object) -> Callable[..., Any]:
    async def stored(self: TransactionManager, call: Any, deadline: Any) -> None:
        """End a transaction while its records are on their way."""

    return stored


def _only_the_first(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of several partitions a producer adds the first one."""

    async def add_partitions(self: CoordinatorCalls, identity: Any, partitions: Any, deadline: Any) -> Any:
        await original(self, identity, partitions[:1], deadline)
        return {at: await self._topic_id(at[0], deadline) for at in partitions}

    return add_partitions


def _remembered(_: object) -> Callable[..., Any]:
    """What is remembered of a topic denies one that was created again under its name."""

    def has(self: Any, place: Any) -> bool:
        return True

    return has


def _any_topic(_: object) -> Callable[[Any], bool]:
    """A producer goes on in a topic that was created again during its transaction."""
    return lambda delivery: True


def _offsets_left_out(_: object) -> Callable[..., Any]:
    async def commit_offsets(self: CoordinatorCalls, *arguments: Any) -> None:
        """Commit a transaction without the group's offsets."""

    return commit_offsets


def _always_committed(original: Callable[..., Any]) -> Callable[..., Any]:
    """A producer commits what it should abort."""

    async def end(self: CoordinatorCalls, identity: Any, deadline: Any, *, committed: bool) -> Any:
        return await original(self, identity, deadline, committed=True)

    return end


def _bug(name: str, target: Any, attribute: str, patch: Callable[[Any], Any], *rules: str, seeds: int = SEEDS) -> Bug:
    return Bug(name, target, attribute, patch, rules, seeds, profile=TRANSACTIONS)


TRANSACTION_BUGS: Final = (
    _bug("all below the high watermark is stable", PartitionLog, "last_stable_offset", _to_the_watermark, "W24"),
    _bug("a fetch does not name aborted transactions", ConsumerReads, "_aborted", _none_aborted, "W24"),
    _bug("a consumer returns aborted records", AbortedBatches, "hides", _false, "W24"),
    _bug("a reader of files returns aborted records", Place, "read", _file_hides_nothing, "W24"),
    _bug("a repeated marker is written again", ProducerState, "check_marker", _appended_again, "W25"),
    _bug("a batch behind its transaction's end is taken", ProducerState, "check", _any_epoch, "W25", "W9"),
    _bug("an outcome is answered before it is stored", TxnDecision, "reply", _at_once, "W25", "W8", seeds=20),
    _bug("a successor owes no markers", TxnDecision, "end_transaction", _forgotten_by_its_successor, "W9"),
    _bug("a successor aborts what was committed", TxnDecision, "end_transaction", _aborted_by_its_successor, "W25"),
    _bug("a partition is left without its marker", MarkerSender, "send", _last_is_left_out, "W9", "W25"),
    _bug("a marker does not raise the epoch", rules, "decided", _same_epoch, "W9", "W10"),
    _bug("offsets count before their transaction does", pending, "txn_commit", _takes_effect_at_once, "W27", "W26"),
    _bug("a group drops committed offsets", pending, "end", _outcome(False), "W26", "W27", "W9"),
    _bug("a group keeps aborted offsets", pending, "end", _outcome(True), "W26", "W27", "W9"),
    _bug("a commit does not wait for its records", TransactionManager, "_stored", _does_not_wait, "W25"),
    _bug(
        "a partition is not added to its transaction", CoordinatorCalls, "add_partitions", _only_the_first, "W9", "W25"
    ),
    _bug("what is remembered denies a topic", _Seen, "has", _remembered, "W9"),
    _bug("a producer goes on in a topic that was created again", Delivery, "_is_of_added_topic", _any_topic, "W9"),
    _bug(
        "offsets are left out of a transaction",
        CoordinatorCalls,
        "commit_offsets",
        _offsets_left_out,
        "W26",
        "W27",
        "W9",
    ),
    _bug("a leader queries no coordinator", ProducerState, "transaction_of", _none_opens, "W25"),
    _bug("a coordinator confirms what is not open", rules, "claim_error", _none_opens, "W25"),
    _bug("an abort commits", CoordinatorCalls, "end", _always_committed, "W24"),
)
