"""`raylog.read`: reads topics, or a time span of them, into one pyarrow table, without Ray Data or Spark.

May touch: the network, and Ray's session if no address is given. Needs pyarrow, the extra `data`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Unpack

import pyarrow as pa
import pyarrow.compute as pc

from raylog.base.errors import InvalidConfig, did_you_mean
from raylog.base.ids import TopicPartition
from raylog.client.arguments import checked_topic
from raylog.client.cluster.credentials import VARIABLES, choose_credentials
from raylog.client.config import ConsumerConfig, load
from raylog.client.keywords import ClientKeywords
from raylog.client.ranges.arrow import HEADERS
from raylog.client.ranges.offsets import EDGES, OffsetSpec
from raylog.client.ranges.planning import RangesWanted, plan_read
from raylog.client.ranges.reading import RangeReading, read_ranges
from raylog.client.scheduling import Moment, moment_ms

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
)
"""All columns, in the order of the table."""
_ANY = TopicPartition("", 0)


def read(
    topics: str | Sequence[str],
    *,
    start: Moment | None = None,
    end: Moment | None = None,
    columns: Sequence[str] | None = None,
    isolation_level: Literal["read_committed", "read_uncommitted"] = "read_committed",
    config: Mapping[str, Any] | None = None,
    **keywords: Unpack[ClientKeywords],
) -> pa.Table:
    """The records that topics hold now, as one table; it has to fit into memory.

    `start` and `end` are datetimes with a zone, or milliseconds since 1970. A partition is read from its first record
    that is not older than `start`, up to, not including, its first record that is not older than `end`; any record
    older than `start` is left out. `columns`: some of topic, partition, offset, timestamp, key, value, headers (None =
    all). Rows are in the order of topics, partitions and offsets. Keywords are those of all clients
    (docs/configuration.md).

    Raises InvalidConfig, ValueError for a time without zone, UnknownTopicOrPartition, NoClusterFound, ConnectionFailed.
    """
    names = _checked_topics(topics)
    chosen = _checked_columns(columns)
    first, last = _edge("start", start, "earliest"), _edge("end", end, "latest")
    if start is not None and end is not None and last.of(_ANY) < first.of(_ANY):
        raise InvalidConfig("end lies before start: nothing could be read; exchange the two.")
    consumer = load(ConsumerConfig, config, {**keywords, "isolation_level": isolation_level})
    credentials = choose_credentials({name: getattr(consumer, name) for name in VARIABLES}, {})
    bootstrap = consumer.bootstrap
    ranges = plan_read(
        RangesWanted(
            topics=names,
            start=first,
            end=last,
            latest_without_match=True,
            fail_on_data_loss=False,
            may_lie_ahead=True,
            bootstrap=bootstrap if isinstance(bootstrap, str) or bootstrap is None else ",".join(bootstrap),
            secret=credentials,
            consumer=replace(consumer, bootstrap=None, secret=None, token=None, secret_file=None, token_file=None),
        )
    )
    reading = RangeReading(fail_on_data_loss=False, isolation_level=isolation_level)
    needed = chosen if start is None or "timestamp" in chosen else (*chosen, "timestamp")
    schema = pa.schema([SCHEMA.field(name) for name in needed])
    table = pa.Table.from_batches(read_ranges(ranges, reading, schema), schema)
    if start is not None:
        table = table.filter(pc.greater_equal(table["timestamp"], _timestamp(first)))
    return table.select(list(chosen))


def _checked_topics(topics: str | Sequence[str]) -> tuple[str, ...]:
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if not names:
        raise InvalidConfig("topics must be the name of a topic, or at least one name.")
    return tuple(dict.fromkeys(checked_topic(name) for name in names))


def _checked_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    if columns is None:
        return tuple(SCHEMA.names)
    if isinstance(columns, str) or not columns:
        raise InvalidConfig(f"columns must be a list of at least one name of {', '.join(SCHEMA.names)}.")
    for name in columns:
        if name not in SCHEMA.names:
            raise InvalidConfig(did_you_mean("column", str(name), SCHEMA.names))
    return tuple(dict.fromkeys(columns))


def _edge(name: str, moment: Moment | None, default: str) -> OffsetSpec:
    if moment is None:
        return OffsetSpec(option=name, everywhere=EDGES[default])
    return OffsetSpec(option=name, everywhere=moment_ms(moment, name), is_time=True)


def _timestamp(spec: OffsetSpec) -> Any:
    return pa.scalar(spec.of(_ANY) * 1000, pa.int64()).cast(SCHEMA.field("timestamp").type)
