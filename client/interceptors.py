"""Interceptors: users' objects that see, and may change, every record between application and serializers (KIP-42).

A record that is sent passes the interceptors in their order, then the serializers, then the partitioner; a record that
is read passes the deserializers, then the interceptors. So they see what the application sees: objects, not bytes. An
error of an interceptor is raised to the caller. Kafka logs it and goes on; but if an interceptor that encrypts, signs
or hides something fails, the record must not pass. Used by producers and consumers. Pure.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

import msgspec

from raylog.base.errors import InterceptorFailed, InvalidConfig, InvalidRequest, RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.arguments import Headers
from raylog.client.types import OffsetAndMetadata, Record, RecordMetadata
from raylog.client.user_code import USER_ERRORS

logger = logging.getLogger(__name__)


class ProducerRecord(msgspec.Struct):
    """A record as passed to `send()`, not serialized yet. `msgspec.structs.replace` makes a changed copy."""

    topic: str
    value: Any = None
    key: Any = None
    headers: Headers | None = None
    partition: int | None = None
    timestamp_ms: int | None = None


class ProducerInterceptor:
    """Base for the interceptors of a producer; override what you need. Any object with these methods will do."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Return the record to send instead; called in the sending thread. If it raises, `send()` raises.

        The error is InterceptorFailed, and the record is not sent.
        """
        return record

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
        """Called when a record is stored (`metadata`) or has failed (`error`); on the client's thread: do not block.

        An exception is only logged: the record's outcome does not change.
        """

    def close(self) -> None:
        """Called when the producer is closed."""


class ConsumerInterceptor:
    """Base for the interceptors of a consumer; override what you need. Any object with these methods will do."""

    def on_consume(self, record: Record) -> Record | None:
        """Return the record that the user gets instead, or None to leave it out; called in the polling thread.

        If it raises, the poll returns the records before this one, and the next poll raises InterceptorFailed. The
        position stays at the record, so every further poll tries it again, until `seek()` moves past it.
        """
        return record

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Called when these offsets were committed; on the client's thread. An exception is only logged."""

    def close(self) -> None:
        """Called when the consumer is closed."""


class ProducerInterceptors:
    """The interceptors of one producer."""

    def __init__(self, chain: tuple[Any, ...]) -> None:
        self._chain = chain
        self._on_send = _methods(chain, "on_send")
        self._on_acknowledgement = _methods(chain, "on_acknowledgement")

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """The record after all interceptors. Raises InterceptorFailed."""
        for call in self._on_send:
            given = record
            try:
                record = call(given)
                if not isinstance(record, ProducerRecord):
                    raise TypeError(f"on_send must return a ProducerRecord, not {type(record).__name__}")
            except Exception as error:  # the user's code may raise anything
                failure = InterceptorFailed(
                    f"{_name(call)} raised for a record of topic {given.topic!r} ({type(error).__name__}: {error}); "
                    "the record was not sent.",
                    topic=given.topic,
                    record=given,
                    interceptor=_name(call),
                )
                self.acknowledged(None, failure)
                raise failure from error
        return record

    def on_columns(
        self, topic: str, partition: int | None, columns: tuple[Any, Any, Any, Any]
    ) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        """`on_send` for each row of `send_batch`. Columns: values, keys, headers, timestamps (or one for all rows).

        Raises InterceptorFailed, and InvalidRequest if an interceptor changes the topic or partition of a record.
        """
        values, keys, headers, stamps = (
            column.to_pylist() if hasattr(column, "to_pylist") else column for column in columns
        )
        records: list[ProducerRecord] = []
        for row, value in enumerate(values):
            stamp = stamps[row] if isinstance(stamps, list | tuple) else stamps
            given = ProducerRecord(
                topic,
                value,
                None if keys is None else keys[row],
                None if headers is None else headers[row],
                partition,
                stamp,
            )
            try:
                record = self.on_send(given)
            except InterceptorFailed as failure:
                self.refused(len(records), failure)  # the earlier ones; `on_send` has reported this record
                raise
            records.append(record)
            if (record.topic, record.partition) != (topic, partition):
                refusal = InvalidRequest(
                    "An interceptor may not choose another topic or partition for a record of send_batch(); use send()."
                )
                self.refused(len(records), refusal)
                raise refusal
        return (
            [record.value for record in records],
            [record.key for record in records],
            [record.headers for record in records],
            [record.timestamp_ms for record in records],
        )

    def follow(self, future: Any) -> None:
        """Report the outcome of a sent record to the interceptors when it is known."""
        if self._on_acknowledgement:
            future.add_done_callback(self._done)

    def _done(self, future: Any) -> None:
        error = future.exception(0)
        self.acknowledged(None if error is not None else future.result(0), error)

    def acknowledged(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
        """Call every `on_acknowledgement`; exceptions are logged."""
        for call in self._on_acknowledgement:
            try:
                call(metadata, error)
            except USER_ERRORS:  # the outcome is known, and there is no caller to raise it to
                logger.exception("%s raised an error.", _name(call))

    def refused(self, count: int, error: Exception) -> None:
        """Report the error for so many records that have passed `on_send` and are not sent."""
        for _ in range(count):
            self.acknowledged(None, error)

    def close(self) -> None:
        """Close every interceptor."""
        _close(self._chain)


class ConsumerInterceptors:
    """The interceptors of one consumer."""

    def __init__(self, chain: tuple[Any, ...]) -> None:
        self._chain = chain
        self._on_consume = _methods(chain, "on_consume")
        self._on_commit = _methods(chain, "on_commit")

    def on_consume(self, record: Record) -> Record | None:
        """The record after all interceptors; None = it is left out. Raises InterceptorFailed."""
        given = record
        for call in self._on_consume:
            try:
                returned = call(given)
                if returned is None:
                    return None
                if not isinstance(returned, Record):
                    raise TypeError(f"on_consume must return a Record or None, not {type(returned).__name__}")
                given = returned
            except Exception as error:  # the user's code may raise anything
                raise InterceptorFailed(
                    f"{_name(call)} raised for the record at offset {record.offset} of {record.topic}-"
                    f"{record.partition} ({type(error).__name__}: {error}). The next poll tries it again; seek to "
                    f"{record.offset + 1} to go on without it.",
                    topic=record.topic,
                    partition=record.partition,
                    offset=record.offset,
                    record=record,
                    interceptor=_name(call),
                ) from error
        return given

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Call every `on_commit`; exceptions are logged."""
        for call in self._on_commit:
            try:
                call(offsets)
            except USER_ERRORS:  # the offsets are committed, and there is no caller to raise it to
                logger.exception("%s raised an error.", _name(call))

    def close(self) -> None:
        """Close every interceptor."""
        _close(self._chain)


def interceptors_of(choice: Any, *methods: str) -> tuple[Any, ...]:
    """The objects that the key `interceptors` names; each needs at least one of `methods`. Raises InvalidConfig."""
    if choice is None:
        return ()
    if isinstance(choice, str):
        choice = [name.strip() for name in choice.split(",") if name.strip()]
    entries = list(choice) if isinstance(choice, Iterable) else [choice]
    found = []
    for entry in entries:
        made = _imported(entry) if isinstance(entry, str) else entry
        try:
            made = made() if isinstance(made, type) else made
        except Exception as error:  # any error of the user's class
            raise InvalidConfig(f"The interceptor {entry!r:.100} cannot be made: {error}") from error
        if not any(callable(getattr(made, method, None)) for method in methods):
            raise InvalidConfig(f"An interceptor here has {' or '.join(methods)}; {made!r:.100} has neither.")
        found.append(made)
    return tuple(found)


def _imported(name: str) -> Any:
    """Import the class with this dotted name."""
    module, _, attribute = name.replace(":", ".").rpartition(".")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidConfig(
            f"The interceptor {name!r} cannot be imported ({error}); write it as package.module.Class."
        ) from error


def _methods(chain: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    bases = {getattr(ProducerInterceptor, name, None), getattr(ConsumerInterceptor, name, None)}
    found = [getattr(entry, name) for entry in chain if callable(getattr(entry, name, None))]
    return tuple(call for call in found if getattr(call, "__func__", call) not in bases)


def _name(call: Any) -> str:
    owner = getattr(call, "__self__", None)
    return f"{type(owner).__name__}.{call.__name__}" if owner is not None else repr(call)


def _close(chain: tuple[Any, ...]) -> None:
    for entry in chain:
        close = getattr(entry, "close", None)
        if callable(close):
            try:
                close()
            except Exception:  # the client ends in any case
                logger.exception("%s.close raised an error.", type(entry).__name__)


def refuse_columns(call: str, instead: str) -> RaylogError:
    """The error for a call with whole columns, while interceptors have to see every record."""
    return InvalidRequest(f"{call} makes no object for a record, so no interceptor can see it; use {instead} instead.")
