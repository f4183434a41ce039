"""The options of `format("raylog")` for reads: Kafka's names, checked; an unknown one is an error that helps.

Spark passes options as text, and ignores the case of their names. Used by source.py. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from raylog.base.errors import InvalidConfig, did_you_mean
from raylog.base.ids import EARLIEST, LATEST, TopicPartition
from raylog.client.config import WHERE, ConsumerConfig, kafka_name, keys_of, load
from raylog.client.ranges.offsets import OffsetSpec, parse_assignment, parse_offsets, parse_times
from raylog.client.ranges.planning import RangesWanted, read_credentials
from raylog.client.ranges.reading import RangeReading
from raylog.spark.reading.admission import DEFAULT_MAX_TRIGGER_DELAY, Limits, parse_duration_ms

LATENESS = "raylog.timestampLatenessMs"
WHAT = ("subscribe", "assign", "subscribePattern")
READ = (
    *WHAT,
    *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy"),
    *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
    *("minPartitions", "maxRecordsPerPartition", "failOnDataLoss", "includeHeaders", "columns"),
    *("raylog.bootstrap", "raylog.secret", "raylog.token", "raylog.tokenLifetimeMs", LATENESS),
    *("kafka.bootstrap.servers", "kafkaConsumer.pollTimeoutMs"),
)
LIMITS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
"""Options of streams; without effect in a batch query, as in Kafka's source, so that one set of options serves both."""
ENDINGS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
RETRIES = ("fetchOffset.numRetries", "fetchOffset.retryIntervalMs")
WITHOUT_EFFECT = (
    # Of Kafka's source: there is no group to prefix, and time limits the repetitions instead of a count.
    *("groupIdPrefix", *RETRIES),
    # Spark's own, from load(path).
    "path",
)
REFUSED = {
    "kafka.auto.offset.reset": "set startingOffsets instead, which says where a query begins",
    "kafka.key.deserializer": "keys come as bytes; cast the column",
    "kafka.value.deserializer": "values come as bytes; cast the column",
    "kafka.key.serializer": "keys come as bytes; cast the column",
    "kafka.value.serializer": "values come as bytes; cast the column",
    "kafka.enable.auto.commit": "Spark keeps the offsets of a query itself",
    "kafka.interceptor.classes": "transform the columns instead",
}
SECURITY = ("kafka.security.", "kafka.sasl.", "kafka.ssl.")
SECURITY_HINT = "give raylog.secret or raylog.token; for TLS set Ray's variables (RAY_USE_TLS) on driver and executors"
CLIENT = tuple(f"kafka.{kafka_name(name)}" for name in keys_of(ConsumerConfig) if name not in WHERE)
"""Keys of the consumer that are passed on to it; raylog.client.config explains them."""
FETCH_BYTES = "kafka.max.partition.fetch.bytes"
PATTERN_HINT = "subscribePattern is a regular expression in Python's spelling that must match whole names"


HEADERS = "headers"
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""Kafka's columns, in its order; `headers` follows when they are included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What to read, how tasks read it, and the columns to make; made by `parse_options`."""

    wanted: RangesWanted
    reading: RangeReading
    columns: tuple[str, ...] = COLUMNS
    limits: Limits = field(default_factory=Limits)
    """How much each trigger of a stream reads."""
    ignored: tuple[str, ...] = ()
    """A sentence for each given option that has no effect because of the others."""


class _Texts:
    """The given options by their canonical names; the methods that parse them name the option in their errors."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._texts = {name: str(text) for name, text in given.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._texts

    def text(self, name: str) -> str | None:
        return self._texts.get(name)

    def truth(self, name: str, default: bool) -> bool:
        text = self._texts.get(name, str(default)).strip().lower()
        if text not in ("true", "false"):
            raise InvalidConfig(f"{name} must be true or false, not {self._texts[name]!r}.")
        return text == "true"

    def number(self, name: str, low: int) -> int | None:
        text = self._texts.get(name)
        if text is None:
            return None
        try:
            value = int(text)
        except ValueError:
            raise InvalidConfig(f"{name} must be a whole number, not {text!r}.") from None
        if value < low:
            raise InvalidConfig(f"{name} must be at least {low}, not {value}.")
        return value


def parse_options(given: Mapping[str, str], *, is_stream: bool = False) -> ReadOptions:
    """Check the options of a batch read or a stream read. Raises InvalidConfig with a sentence on what to change."""
    texts = _Texts(canonical(given, (*READ, *LIMITS, *WITHOUT_EFFECT, *CLIENT), REFUSED))
    if is_stream and (ending := [name for name in ENDINGS if name in texts]):
        raise InvalidConfig(
            f"{ending[0]} has no meaning in a stream, which has no end: leave it out, or use Trigger.AvailableNow, "
            "which ends at the latest offsets of its start."
        )
    topics, assigned, pattern = _what(texts)
    strategy = (texts.text("startingOffsetsByTimestampStrategy") or "error").lower()
    if strategy not in ("error", "latest"):
        raise InvalidConfig(did_you_mean("value of startingOffsetsByTimestampStrategy", strategy, ("error", "latest")))
    for name in RETRIES:
        texts.number(name, 0)
    consumer = _consumer(texts)
    fail_on_data_loss = texts.truth("failOnDataLoss", True)
    min_partitions, max_records = texts.number("minPartitions", 1), texts.number("maxRecordsPerPartition", 1)
    wanted = RangesWanted(
        topics=topics,
        assigned=assigned,
        pattern=pattern,
        start=_edge(texts, "starting", "latest" if is_stream else "earliest", illegal=None if is_stream else LATEST),
        end=_edge(texts, "ending", "latest", illegal=EARLIEST),
        latest_without_match=strategy == "latest",
        min_partitions=min_partitions,
        max_records_per_partition=max_records,
        lateness_ms=texts.number(LATENESS, 0),
        # With either option ranges are cut as in Kafka's source; minPartitions=1 gives one task for each partition.
        cuts_by_size=min_partitions is None and max_records is None,
        fail_on_data_loss=fail_on_data_loss,
        bootstrap=_one_bootstrap(texts),
        secret=read_credentials(texts.text("raylog.secret"), texts.text("raylog.token")),
        token_lifetime_s=(texts.number("raylog.tokenLifetimeMs", 1_000) or 43_200_000) / 1000,
        consumer=consumer,
    )
    reading = RangeReading(
        fail_on_data_loss=fail_on_data_loss,
        stall_timeout_s=(texts.number("kafkaConsumer.pollTimeoutMs", 1) or 120_000) / 1000,
        fetch_max_bytes=consumer.max_partition_fetch_bytes if FETCH_BYTES in texts else None,
        isolation_level=consumer.isolation_level,
        check_crcs=consumer.check_crcs,
        short_circuit_reads=consumer.short_circuit_reads,
    )
    return ReadOptions(
        wanted=wanted, reading=reading, columns=_columns(texts), limits=_limits(texts), ignored=_ignored(texts)
    )


def canonical(given: Mapping[str, str], known_names: Iterable[str], refused: Mapping[str, str]) -> dict[str, str]:
    """The options of a read or a write, with their names spelt as in `known_names`.

    `refused`: options that are not supported, by name in small letters, with the reason. Raises InvalidConfig for
    these, and for unknown options.
    """
    spelling = {name.lower(): name for name in known_names}
    found = {}
    for name, text in given.items():
        if name.lower() in refused:
            raise InvalidConfig(f"The option {name!r} is not supported: {refused[name.lower()]}.")
        if name.lower().startswith(SECURITY):
            raise InvalidConfig(f"The option {name!r} is not supported: {SECURITY_HINT}.")
        known = spelling.get(name.lower())
        if known is None:
            raise InvalidConfig(_unknown(name, spelling))
        found[known] = str(text)
    return found


def _unknown(name: str, spelling: Mapping[str, str]) -> str:
    """The sentence for an unknown option. Names are compared without case, and suggested in their proper spelling."""
    sentence = did_you_mean("option", name.lower(), spelling)
    for small in sorted(spelling, key=len, reverse=True):
        sentence = sentence.replace(f"'{small}'", f"'{spelling[small]}'")
    return sentence.replace(repr(name.lower()), repr(name))


def _what(texts: _Texts) -> tuple[tuple[str, ...], tuple[TopicPartition, ...], str | None]:
    chosen = [name for name in WHAT if name in texts]
    if len(chosen) != 1:
        given = f"; {' and '.join(chosen)} were given" if chosen else ""
        raise InvalidConfig(f"Exactly one of the options {', '.join(WHAT)} must say what to read{given}.")
    text = texts.text(chosen[0]) or ""
    if chosen[0] == "assign":
        return (), parse_assignment("assign", text), None
    if chosen[0] == "subscribe":
        topics = _unique(part.strip() for part in text.split(","))
        if not topics:
            raise InvalidConfig("subscribe must name at least one topic, several with commas between them.")
        return topics, (), None
    if not text.strip():
        raise InvalidConfig(f"{PATTERN_HINT}; it is empty.")
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidConfig(f"{PATTERN_HINT}; {text!r} is none: {error}.") from None
    return (), (), text


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name))


def _edge(texts: _Texts, prefix: str, default: str, *, illegal: int | None) -> OffsetSpec:
    """The start or end of the read. Precedence as in Kafka: a time for all, then times for each, then offsets."""
    time, times, offsets = _precedence(prefix)
    time_ms = texts.number(time, 0)
    if time_ms is not None:
        return OffsetSpec(option=time, everywhere=time_ms, is_time=True)
    each = texts.text(times)
    if each is not None:
        return parse_times(times, each)
    return parse_offsets(offsets, texts.text(offsets) or default, illegal=illegal)


def _precedence(prefix: str) -> tuple[str, str, str]:
    """The options for one end of the read; the first of them that is given wins."""
    return f"{prefix}Timestamp", f"{prefix}OffsetsByTimestamp", f"{prefix}Offsets"


def _ignored(texts: _Texts) -> tuple[str, ...]:
    """A sentence for each given option that has no effect: another one wins, or one that it needs is missing."""
    found = []
    for prefix in ("starting", "ending"):
        winner, *others = [name for name in _precedence(prefix) if name in texts] or [""]
        found += [f"{winner} wins; {name} is ignored." for name in others]
    strategy, times = "startingOffsetsByTimestampStrategy", _precedence("starting")[:2]
    if strategy in texts and not any(name in texts for name in times):
        found.append(f"{strategy} is ignored: it needs {' or '.join(times)}.")
    if "maxTriggerDelay" in texts and "minOffsetsPerTrigger" not in texts:
        found.append("maxTriggerDelay is ignored: it needs minOffsetsPerTrigger.")
    return tuple(found)


def _limits(texts: _Texts) -> Limits:
    most, least = texts.number("maxOffsetsPerTrigger", 1), texts.number("minOffsetsPerTrigger", 1)
    if most is not None and least is not None and most < least:
        raise InvalidConfig(
            f"minOffsetsPerTrigger ({least}) is above maxOffsetsPerTrigger ({most}), so a trigger could satisfy only "
            "one of them; lower the first or raise the second."
        )
    delay = texts.text("maxTriggerDelay") or DEFAULT_MAX_TRIGGER_DELAY
    return Limits(max_offsets=most, min_offsets=least, max_delay_ms=parse_duration_ms("maxTriggerDelay", delay))


def _columns(texts: _Texts) -> tuple[str, ...]:
    """The columns to make, always in Kafka's order."""
    include_headers = texts.truth("includeHeaders", False)
    text = texts.text("columns")
    if text is None:
        return (*COLUMNS, HEADERS) if include_headers else COLUMNS
    spelling = {name.lower(): name for name in (*COLUMNS, HEADERS)}
    names = _unique(part.strip().lower() for part in text.split(","))
    for name in names:
        if name not in spelling:
            raise InvalidConfig(did_you_mean("column in the option columns", name, (*COLUMNS, HEADERS)))
    if not names:
        raise InvalidConfig(f"columns must name at least one of {', '.join((*COLUMNS, HEADERS))}.")
    if "includeHeaders" in texts and include_headers != (HEADERS in names):
        raise InvalidConfig(
            f"includeHeaders={str(include_headers).lower()} contradicts columns={text}: leave includeHeaders out, "
            "columns alone says whether headers are read."
        )
    return tuple(name for small, name in spelling.items() if small in names)


def _one_bootstrap(texts: _Texts) -> str | None:
    ours, kafkas = texts.text("raylog.bootstrap"), texts.text("kafka.bootstrap.servers")
    if ours is not None and kafkas is not None and ours != kafkas:
        raise InvalidConfig("raylog.bootstrap and kafka.bootstrap.servers are the same option; give one of them.")
    return ours if ours is not None else kafkas


def _consumer(texts: _Texts) -> ConsumerConfig:
    keys = {name.removeprefix("kafka."): texts.text(name) for name in CLIENT if name in texts}
    try:
        return load(ConsumerConfig, keys, {})
    except InvalidConfig as error:
        raise InvalidConfig(f"An option that begins with 'kafka.' is wrong: {error.message}") from None
