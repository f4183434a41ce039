"""What both half message producers share: names, records and decisions of half messages. Owned by such a producer.

Belongs to the client's loop. May touch: the network through the producer's engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import uuid4

from raylog.base.errors import InvalidConfig, InvalidTxnState
from raylog.client.arguments import Headers, checked_headers
from raylog.client.half_messages.checking import Checker, GroupChecker, HalfVerdict, check_stands, decide
from raylog.client.producer.engine import ProducerEngine
from raylog.client.producer.futures import SendFuture
from raylog.client.producer.partition_queues import TopicQueues
from raylog.client.producer.scheduling import Waiting, check_own
from raylog.client.scheduling import Delay, delay_ms
from raylog.client.types import Header
from raylog.core.scheduling.envelope import HalfName

CHECK_AFTER: Final = "6s"
"""The age at which a half message is first checked, as in RocketMQ."""
CHECK_AFTER_MAX_MS: Final = 86_400_000
NAME_MAX: Final = 249


@dataclass(frozen=True, slots=True)
class Prepared:
    """A record with its key and value serialized, and its headers except the one that names the target."""

    key: bytes | None
    value: bytes | None
    pairs: list[Header]


@dataclass(slots=True)
class HalfBook:
    """One half message, as its sender keeps it."""

    name: HalfName
    shard: int = -1
    """The partition of ``__scheduled`` that holds it; -1 = not chosen yet."""
    records: int = 0
    """How many of its records are stored."""
    outcome: HalfVerdict | None = None
    """This sender's decision; None = none yet."""
    is_unsure: bool = False
    """Whether a record was refused or not acknowledged: then it can only be rolled back."""

    @contextmanager
    def storing(self) -> Iterator[None]:
        """Wrap the storing of a record, and count it."""
        try:
            yield
        except BaseException:  # even after an interrupt the record may be stored
            self.is_unsure = True
            raise
        self.records += 1

    def check_open(self, what: str) -> None:
        """Raise InvalidTxnState if it is decided."""
        if self.outcome is not None:
            raise InvalidTxnState(
                f"{what} comes after {self.outcome.value} of half message {self.name.txid!r}: prepare another one."
            )


class Preparing:
    """The half messages of one producer, and its group's checker."""

    def __init__(self, engine: ProducerEngine, group: str, checker: Checker | None, check_after: Delay) -> None:
        if not isinstance(group, str) or not 0 < len(group) <= NAME_MAX:
            raise InvalidConfig(f"group names the senders and checkers of half messages, not {group!r:.100}.")
        if engine.config.transactional_id is not None:
            raise InvalidConfig("Half messages and transactional_id exclude each other; use a producer for each.")
        if checker is not None and not callable(checker):
            raise InvalidConfig(f"checker is a function of a half message, not {type(checker).__name__}.")
        self.group = group
        self._engine = engine
        self._check_after_ms = checked_after_ms(check_after)
        self._checker = None if checker is None else GroupChecker(engine.cluster, group, checker)

    def start(self) -> None:
        """Start the checker, if there is one."""
        if self._checker is not None:
            self._checker.start()

    async def close(self) -> None:
        """Stop the checker."""
        if self._checker is not None:
            await self._checker.close()

    def book(self, txid: str | None, check_after: Delay | None) -> HalfBook:
        """A new half message without records. Raises ValueError, TypeError."""
        if txid is None:
            txid = uuid4().hex
        if not isinstance(txid, str) or not 0 < len(txid) <= NAME_MAX:
            raise ValueError(f"txid is the name of a local transaction, 1 to {NAME_MAX} characters, not {txid!r:.100}.")
        after_ms = self._check_after_ms if check_after is None else checked_after_ms(check_after)
        return HalfBook(HalfName(self.group, txid, after_ms))

    def record(self, key: Any, value: Any, headers: Headers | None, book: HalfBook) -> Prepared:
        """A record with key and value serialized, and with the half message's header. Raises TypeError, ValueError."""
        pairs = checked_headers(headers) or []
        check_own(pairs)
        return Prepared(self._engine.checked_key(key), self._engine.checked_value(value), [*pairs, book.name.header()])

    def append(
        self, book: HalfBook, record: Prepared, partition: int | None, waiting: Waiting, queues: TopicQueues
    ) -> Callable[[], SendFuture | None]:
        """The call that queues a record, or returns None if the buffer is full.

        All records of a half message go to the same shard.
        """
        if book.shard < 0:
            book.shard = waiting.shard_of(book.name.id)
        pairs = [*record.pairs, waiting.header(partition)]
        add = self._engine.accumulator.append
        return partial(add, queues, record.key, record.value, pairs, book.shard, waiting.held_ms())

    async def decide(self, book: HalfBook, verdict: HalfVerdict, timeout_s: float | None) -> None:
        """Commit or roll back. Raises HalfMessageDecided, UnknownHalfMessage, RequestTimedOut, InvalidTxnState."""
        if book.outcome is not verdict:
            book.check_open(verdict.value)
        if book.is_unsure and verdict is HalfVerdict.COMMIT:
            raise InvalidTxnState(
                f"A record of half message {book.name.txid!r} was not stored, or has no answer: roll it back."
            )
        self._engine.check_usable()
        limit_s = self._engine.max_block_s if timeout_s is None else timeout_s
        name = book.name
        reply = await decide(self._engine.cluster, book.shard, name.group, [(name.txid, verdict, -1)], limit_s)
        check_stands(name.id, verdict, reply.standings[0], reply.records[0], book.records)
        book.outcome = verdict


def checked_after_ms(delay: Delay) -> int:
    """The age in milliseconds at which a half message is first checked. Raises ValueError, TypeError."""
    found = delay_ms(delay)
    if found > CHECK_AFTER_MAX_MS:
        raise ValueError(f"check_after is a day at most, not {found} ms.")
    return found
