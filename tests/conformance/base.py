"""What a program may do with a client: each method is one call of the client's own.

Errors are those of the client; `Kit.name_of` gives them Kafka's names, so that outcomes can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

Options: TypeAlias = Mapping[str, str | int | bool]
"""Settings of a client, by Kafka's dotted names."""
Place: TypeAlias = tuple[str, int]
"""Topic and partition."""
Headers: TypeAlias = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Stored:
    """What a producer learns of a record that is stored; -1 = not known."""

    partition: int
    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Read:
    """A record as a consumer gets it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Writer(Protocol):
    """A producer."""

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
    ) -> Callable[[], Stored]:
        """Send a record; what is returned waits for its acknowledgement, and raises its error."""

    def flush(self) -> None:
        """Wait until all that was sent is stored or refused."""

    def init_transactions(self) -> None:
        """Fence earlier producers with the same transactional id."""

    def begin(self) -> None:
        """Begin a transaction."""

    def commit(self) -> None:
        """Commit it."""

    def abort(self) -> None:
        """Abort it."""

    def send_offsets(self, offsets: Mapping[Place, int], reader: Reader) -> None:
        """Commit a group's offsets in the transaction."""

    def close(self) -> None:
        """Close the producer."""


class Reader(Protocol):
    """A consumer."""

    def subscribe(self, topics: Sequence[str]) -> None:
        """Follow topics as a member of the group."""

    def subscribe_pattern(self, pattern: str) -> None:
        """Follow topics that match a regular expression, which begins with `^`."""

    def unsubscribe(self) -> None:
        """Follow nothing any more."""

    def assign(self, places: Sequence[Place]) -> None:
        """Read these partitions, without the group's assignment."""

    def assignment(self) -> set[Place]:
        """What is read at the moment."""

    def poll(self, timeout_s: float, most: int = 500) -> list[Read]:
        """Records, as soon as there are some; none after the time."""

    def seek(self, place: Place, offset: int) -> None:
        """Go on from an offset."""

    def position(self, place: Place) -> int | None:
        """The next offset; None = there is none yet."""

    def pause(self, place: Place) -> None:
        """Leave a partition out, until it is resumed."""

    def resume(self, place: Place) -> None:
        """Read it again."""

    def commit(self, offsets: Mapping[Place, int] | None = None) -> None:
        """Commit offsets, or all positions, and wait."""

    def committed(self, place: Place) -> int | None:
        """The group's committed offset; None = there is none."""

    def edges(self, place: Place) -> tuple[int, int]:
        """The first offset, and the one behind the last record."""

    def offset_at(self, place: Place, timestamp_ms: int) -> int | None:
        """The first offset with this time or a later one; None = there is none."""

    def close(self) -> None:
        """Leave the group and close the consumer."""


class Operator(Protocol):
    """An administrator's client."""

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic with one replica, and wait until it has leaders."""

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""

    def grow(self, name: str, partitions: int) -> None:
        """Give a topic so many partitions in all."""

    def config_of(self, topic: str) -> dict[str, str | None]:
        """All settings of a topic that count, with their values as text."""

    def alter(self, topic: str, config: Mapping[str, str]) -> None:
        """Set some settings of a topic."""

    def delete_before(self, place: Place, offset: int) -> int:
        """Delete the records before an offset; returns the log's first one."""

    def groups(self) -> set[str]:
        """The names of all groups."""

    def group_state(self, group: str) -> str:
        """Stable, Empty or another of Kafka's words."""

    def delete_group(self, group: str) -> None:
        """Delete a group and its offsets."""

    def close(self) -> None:
        """Close the client."""


class Kit(Protocol):
    """A client library and the cluster that it uses."""

    name: str

    def writer(self, options: Options | None = None) -> Writer:
        """Make a producer."""

    def reader(self, options: Options | None = None) -> Reader:
        """Make a consumer."""

    def operator(self) -> Operator:
        """Make an administrator's client."""

    def name_of(self, error: BaseException) -> str:
        """Kafka's name of an error, as `UnknownTopicOrPartition`; another one with its type's name in front."""
