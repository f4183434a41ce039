"""Bugs that only the features of `parts/` show: damage, sizes, retention, tokens, addresses, unclean elections, clocks.

Most of them were real ones once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from raylog.actors.broker import supervisor
from raylog.actors.coordinators import stored_rows
from raylog.actors.coordinators.runtime import StateRuntime
from raylog.actors.coordinators.server import CoordinatorServer
from raylog.actors.coordinators.stored_rows import LiveRows
from raylog.actors.replica.consumer_reads import ConsumerReads
from raylog.actors.replica.effects import ReplicaEffects
from raylog.actors.roles.time_of_day import TimeOfDay
from raylog.actors.scheduling import delivering
from raylog.base.errors import ClusterAuthorizationFailed
from raylog.base.ids import Offset
from raylog.client.consumer.fetcher import Fetcher
from raylog.client.producer.delivery import Delivery
from raylog.client.queues.source import QueueSource
from raylog.client.reading.decode import OpenPiece, corrupt
from raylog.core.coordinators.share import CoordinatorKeys
from raylog.core.groups.consumer_groups import ConsumerGroups
from raylog.core.metrics.changes import PartitionChanges
from raylog.core.replication.disk import DiskHealth
from raylog.core.replication.replica import ReplicaMachine
from raylog.protocol import unknown_methods
from raylog.rpc.auth import handshake
from raylog.rpc.permissions import Permissions
from raylog.storage.log import partition_log
from raylog.storage.log.partition_log import PartitionLog
from raylog.storage.log.producer_state import ProducerState
from raylog.storage.segments import index
from tests.simulation.planted.bugs import Edit
from tests.simulation.whole.plan import EVERYTHING
from tests.simulation.whole.planted.bugs import SEEDS, Bug


def _bug(
    name: str,
    features: tuple[str, ...],
    rules: tuple[str, ...],
    target: Any,
    attribute: str,
    patch: Callable[[Any], Any],
    seeds: int = SEEDS,
) -> Bug:
    return Bug(name, target, attribute, patch, rules, seeds, EVERYTHING, 1, features)


def _ends_where_it_was_cut(original: Any) -> Any:
    """The machine takes the place of a cut for the log's end, though the log ends before it, as within a filler."""

    def cut(self: Any, effect: Any) -> Any:
        event = original(self, effect)
        to = getattr(effect, "to", None)
        if to is None or to <= event.log.log_end_offset:
            return event
        return replace(event, log=replace(event.log, log_end_offset=Offset(to), durable_end_offset=Offset(to)))

    return cut


PART_BUGS: Final = (
    _bug(
        "a replica forgets at once that its log is damaged",
        ("damage",),
        ("W79", "W9"),
        DiskHealth,
        "damage_found",
        lambda _: lambda *_: None,
    ),
    _bug(
        "a follower keeps a log that is damaged",
        ("damage",),
        ("W79", "W9", "W10"),
        ReplicaMachine,
        "_rebuild_if_damaged",
        lambda _: lambda *_: None,
    ),
    _bug(
        "an index is believed whatever its checksum is",
        ("damage",),
        ("W79", "W9", "W10", "W5", "W19"),
        index,
        "_checked",
        lambda _: lambda data: data[:-4],
        40,
    ),
    _bug(
        "a column that cannot be read does not name the way behind it",
        ("foreign",),
        ("W80",),
        OpenPiece,
        "corrupt",
        lambda _: lambda self, cause: corrupt(self._partition, self._opened.offsets[0], cause),
    ),
    _bug(
        "a queue gives a whole answer back for one batch that does not open",
        ("foreign",),
        ("W80", "W8"),
        QueueSource,
        "_take",
        Edit('logger.warning("%s: %s", self.partition, damage)', "raise").of,
        seeds=60,
    ),
    _bug(
        "a producer does not divide a batch that is too large together",
        ("sizes",),
        ("W76",),
        Delivery,
        "_refused",
        Edit("isinstance(error, RecordTooLarge) and batch.record_count > 1", "False").of,
    ),
    _bug(
        "a scheduled record that is too large for its target is sent again and again",
        ("sizes",),
        ("W9", "W76"),
        delivering,
        "trouble_of",
        Edit("isinstance(error, RecordTooLarge | InvalidRecord)", "False", "not error.retriable or", "False or").of,
    ),
    _bug(
        "a follower begins no segment by time",
        ("retention",),
        ("W77",),
        PartitionLog,
        "append_as_follower",
        lambda original: lambda self, payload, now_ms: original(self, payload, self.segments[-1].created_ms),
    ),
    _bug(
        "a follower stamps what it appends with the start of its log",
        ("weeks",),
        ("W84",),
        PartitionLog,
        "append_as_follower",
        lambda original: lambda self, payload, now_ms: original(self, payload, self.segments[0].created_ms),
    ),
    _bug(
        "a broker does not send its replicas what was altered of the cluster's settings",
        ("settings",),
        ("W87", "W9"),
        supervisor,
        "instructions",
        Edit("if key in REPLICA_KEYS", "if False").of,
    ),
    _bug(
        "a coordinator drops the settings that it is sent",
        ("settings",),
        ("W87", "W9"),
        CoordinatorServer,
        "_configure",
        lambda _: lambda *_: None,
    ),
    _bug(
        "a coordinator loads its log up to a row that it cannot read",
        ("strange-rows",),
        ("W86", "W7", "W6", "W9", "W10"),
        LiveRows,
        "__iter__",
        Edit("if row is not None:\n            yield row", "if row is None:\n            return\n        yield row").of,
    ),
    _bug(
        "a coordinator does not load a log with a row that is none",
        ("strange-rows",),
        ("W86", "W9", "W1", "W8", "W10"),
        stored_rows,
        "_decoded",
        Edit("rows.pass_over(error)\n        return None", "raise").of,
    ),
    _bug(
        "rows that a coordinator passes over are not named",
        ("strange-rows",),
        ("W86",),
        StateRuntime,
        "_name_unreadable",
        Edit("logger.error(", "logger.debug(").of,
    ),
    _bug(
        "rows that a coordinator passes over are not counted",
        ("strange-rows", "transactions"),
        ("W86",),
        LiveRows,
        "pass_over",
        lambda _: lambda *_: None,
    ),
    _bug(
        "the states of queues are lost behind a row that cannot be read",
        ("strange-rows", "queues"),
        ("W86", "W9", "W10", "W40", "W44", "W46"),
        StateRuntime,
        "_replay",
        Edit("rows.pass_over(error)", "return").of,
    ),
    _bug(
        "a coordinator remembers the topics of groups that were deleted",
        ("weeks",),
        ("W85",),
        ConsumerGroups,
        "tick",
        Edit(" if topic in read}", "}").of,
    ),
    _bug(
        "brokers and controllers remember the partitions of topics that were deleted",
        ("weeks",),
        ("W85",),
        PartitionChanges,
        "note",
        Edit("isinstance(record, TopicDeleted)", "False").of,
    ),
    _bug(
        "a log remembers each producer for good",
        ("weeks",),
        ("W85",),
        ProducerState,
        "expire",
        lambda _: lambda *_: [],
    ),
    _bug(
        "a reader of a table goes on at its position in another life of the topic",
        ("renewed-kinds",),
        ("W83",),
        Fetcher,
        "_fetch",
        Edit("elif state.topic_id != info.topic_id:", "elif False:").of,
    ),
    _bug(
        "retention by size removes one segment too many",
        ("retention",),
        ("W77",),
        partition_log,
        "removable",
        Edit("left - segment.size >= config.retention_bytes", "left > config.retention_bytes").of,
    ),
    _bug(
        "a token holds for a minute longer at the server",
        ("tokens",),
        ("W78",),
        handshake,
        "read_claims",
        lambda original: lambda *args: replace(found := original(*args), expires_s=found.expires_s + 60),
    ),
    _bug(
        "a client waits for an expired token to hold again",
        ("tokens",),
        ("W78", "W1", "W9"),
        ClusterAuthorizationFailed,
        "retriable",
        lambda _: True,
    ),
    _bug(
        "the end of a log is where it was to be cut",
        ("unclean-tables",),
        ("W9", "W10", "W81"),
        ReplicaEffects,
        "_cut",
        _ends_where_it_was_cut,
        24,
    ),
    _bug(
        "a coordinator serves the keys of others",
        ("addresses",),
        ("W82", "W7", "W6"),
        CoordinatorKeys,
        "refusal",
        lambda _: lambda *_: None,
        24,
    ),
    _bug(
        "a method of another endpoint is refused for good",
        ("addresses",),
        ("W8", "W82"),
        unknown_methods,
        "_known",
        lambda _: frozenset(),
    ),
    _bug(
        "a replica of an internal topic refuses a client before it looks whose partition is meant",
        ("addresses", "transactions"),
        ("W8", "W82"),
        Permissions,
        "refusal",
        Edit("self.place is not None", "False").of,
        24,
    ),
    _bug(
        "an aborted transaction is not listed in an answer",
        ("watchers",),
        ("W75",),
        ConsumerReads,
        "_aborted",
        lambda _: lambda *_: (),
    ),
    _bug(
        "a leader shows readers of committed records what is open",
        ("watchers",),
        ("W75",),
        ConsumerReads,
        "_try_fetch",
        Edit("upper = Offset(self._log.last_stable_offset(upper))", "pass").of,
    ),
    _bug(
        "what is due is decided by one machine's clock",
        ("clocks", "delays"),
        ("W30", "W31", "W9"),
        TimeOfDay,
        "now_ms",
        lambda _: lambda self: self._host.wall_ms(),
    ),
    _bug(
        "a clock that was set is followed though the brokers' were not",
        ("clocks", "delays"),
        ("W30", "W31", "W9"),
        TimeOfDay,
        "follow",
        Edit("found = agreed_ms(*await self._clocks())", "found = self._host.wall_ms()").of,
    ),
)
