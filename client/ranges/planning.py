"""Plans a read: which offsets of which partitions are read, in how many tasks, and where their leaders are.

Runs in the driver, once per query. May touch: the network, the clock, and Ray when neither argument nor environment
names the brokers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from raylog.base.errors import (
    InvalidConfig,
    OffsetOutOfRange,
    RaylogError,
)
from raylog.base.ids import EARLIEST, LATEST, TopicPartition
from raylog.client.cluster.cluster_client import ClusterClient, Finder
from raylog.client.cluster.credentials import VARIABLES, CredentialFile, is_token, parse_secret, read_token
from raylog.client.cluster.discovery import ENV_BOOTSTRAP, ClusterAddress, find_cluster
from raylog.client.cluster.reachable import require_an_answer
from raylog.client.config import ConsumerConfig
from raylog.client.kept import Kept
from raylog.client.ranges.cutting import RecordSizes, cut
from raylog.client.ranges.narrowing import OFFSET_MAX, Narrowing
from raylog.client.ranges.offsets import OffsetSpec, split_ranges
from raylog.client.reading.isolation import LEVELS
from raylog.client.reading.range_fetcher import PartitionRange
from raylog.client.runtime import shared
from raylog.client.task_tokens import TaskTokens, read_token_for_topics, require_read
from raylog.rpc import Token

Result = TypeVar("Result")
logger = logging.getLogger(__name__)

PLAN_TIMEOUT_S = 60.0
"""The limit for finding the cluster, its leaders and the offsets, together."""
KEPT_ANSWER_S = 5.0
"""How long brokers may take to answer the client of an earlier plan; after that the cluster is looked up again."""
QUESTIONS_AT_ONCE = 64
"""For how many partitions offsets are looked up at the same time."""

_remembered: ClusterAddress | None = None
"""Ray's last answer, cached because a look-up takes a second; dropped when no broker answers there."""


@dataclass(frozen=True, slots=True)
class Connected:
    """A started client, with the sizes of records and the tokens that were made with it."""

    client: ClusterClient
    sizes: RecordSizes = field(default_factory=RecordSizes)
    tokens: TaskTokens = field(default_factory=TaskTokens)

    async def close(self) -> None:
        """Close the client."""
        await self.client.close()


KEPT: Kept[Connected] = Kept(Connected.close, at_most=1)
"""The client that this process keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangesWanted:
    """What to read, and how to reach the cluster. Exactly one of `topics`, `assigned` and `pattern` is given."""

    topics: tuple[str, ...] = ()
    assigned: tuple[TopicPartition, ...] = ()
    pattern: str | None = None
    """A regular expression that must match the whole name of a topic."""
    start: OffsetSpec
    end: OffsetSpec
    latest_without_match: bool = False
    """If no record is as new as the start time: read nothing (True), or raise an error (False)."""
    min_partitions: int | None = None
    """Cut the largest ranges further until there are so many ranges; None = do not."""
    max_records_per_partition: int | None = None
    """The most offsets of one range; None = no limit."""
    lateness_ms: int | None = None
    """No record is older than any record before it by more than this, so `Narrowing.time_end_ms` can end ranges; None =
    not known."""
    cuts_by_size: bool = False
    """Cut ranges by size (`cutting.py`); `min_partitions` and `max_records_per_partition` have no effect then."""
    fail_on_data_loss: bool = True
    """Offsets that do not exist are an error; if False, the nearest existing offset is used instead."""
    may_lie_ahead: bool = False
    """Without `fail_on_data_loss`: an offset after the log's end is meant to be the end, so there is no warning."""
    refuses_start_behind_end: bool = False
    """A start offset after the end is an error, even without `fail_on_data_loss`."""
    follows: bool = False
    """Future records are wanted too: an end of `latest` means no end, and an end offset need not exist yet.

    All ranges get the same token then, which also covers partitions that are added later."""
    bootstrap: str | None = None
    """The brokers, `host:port[,host:port...]`; None = from the environment, else through Ray."""
    secret: str | bytes | Token | CredentialFile | None = field(default=None, repr=False)
    """The cluster's secret (text is its hexadecimal form), or a token that may read all topics."""
    token_lifetime_s: float = 43_200.0
    """How long the tasks' tokens are valid; a task that still reads after that fails."""
    consumer: ConsumerConfig = field(default_factory=ConsumerConfig, repr=False)
    """Timeouts, isolation level and so on; its `bootstrap` and credentials are ignored."""


def read_credentials(secret: str | None, token: str | None) -> str | Token | None:
    """The credentials from the options `raylog.secret` and `raylog.token`; None = neither is given.

    Raises InvalidConfig if both are given, or one is malformed.
    """
    if secret is not None and token is not None:
        raise InvalidConfig(
            "raylog.secret and raylog.token are both given: leave one out; a token is enough where it reads the topics."
        )
    if token is not None:
        return read_token(token)
    if secret is not None:
        parse_secret(secret)  # raise now, and not when a query begins
    return secret


def plan_read(
    wanted: RangesWanted, narrowing: Narrowing | None = None, *, keeps_client: bool = False
) -> list[PartitionRange]:
    """The ranges to read, one for each task. Raises RaylogErrors that say what to change.

    The end is fixed here (by default the log's end for the isolation level), so a query sees one state of the topic.
    `keeps_client`: stay connected for a minute, for the next plan of this process.
    """
    plan = _plan(wanted, narrowing or Narrowing(), keeps_client=keeps_client)
    return shared().run(plan, PLAN_TIMEOUT_S + 5)


async def _plan(wanted: RangesWanted, narrowing: Narrowing, *, keeps_client: bool) -> list[PartitionRange]:
    now_s = asyncio.get_running_loop().time
    deadline_s = now_s() + PLAN_TIMEOUT_S
    connected = await _kept_client(wanted) if keeps_client else None
    if connected is None:
        connected = Connected(await started_client(wanted, PLAN_TIMEOUT_S))
    is_planned = False
    try:
        planner = _Planner(
            connected.client, wanted, narrowing, lambda: max(0.1, deadline_s - now_s()), connected.tokens
        )
        await connected.client.renew_secret(timeout_s=PLAN_TIMEOUT_S)
        planned = await planner.ranges(connected.sizes)
        is_planned = True
    finally:
        if is_planned and keeps_client:
            await KEPT.keep(_purpose(wanted), connected)
        else:
            await connected.close()
    return planned


async def _kept_client(wanted: RangesWanted) -> Connected | None:
    """The client of an earlier plan, with fresh metadata; None if there is none, or its brokers do not answer."""
    found = KEPT.take(_purpose(wanted))
    if found is None:
        return None
    is_usable = False
    try:
        await found.client.refresh(_names(wanted), timeout_s=KEPT_ANSWER_S)
        _require_read(found.client, wanted)
        is_usable = True
    except RaylogError:
        return None  # a new client finds the cluster, or raises the error
    finally:
        if not is_usable:
            await found.close()
    return found


def _purpose(wanted: RangesWanted) -> Hashable:
    """What has to be equal for two plans to use one client."""
    environment = tuple(os.environ.get(name) for name in (ENV_BOOTSTRAP, *VARIABLES.values()))
    return wanted.bootstrap, wanted.secret, wanted.consumer, environment


def _names(wanted: RangesWanted) -> Iterable[str]:
    """The names of the topics; empty with a pattern."""
    return wanted.topics or dict.fromkeys(place.topic for place in wanted.assigned)


def _require_read(client: ClusterClient, wanted: RangesWanted) -> None:
    """Raise ClusterAuthorizationFailed for a topic that the client's token may not read."""
    if client.address is not None and isinstance(client.address.secret, Token):
        require_read(client.address.secret, _names(wanted))


async def started_client(wanted: RangesWanted, timeout_s: float) -> ClusterClient:
    """A client that is connected to the cluster; the caller has to close it. Raises as `find_cluster`."""
    if wanted.bootstrap or os.environ.get(ENV_BOOTSTRAP):
        address = await find_cluster(wanted.bootstrap, wanted.secret, timeout_s=timeout_s)
        await require_an_answer(address.endpoints)
        return await _connected(address, wanted, timeout_s)
    global _remembered
    token = _token(wanted)
    if _remembered is not None:
        try:
            return await _connected(replace(_remembered, proof=token or _remembered.proof), wanted, 5.0)
        except RaylogError:
            _remembered = None  # the cluster of an earlier query has moved or stopped: look it up again
    found = await _found_through_ray(token, timeout_s)
    return await _connected(found, wanted, timeout_s)


async def _found_through_ray(token: Token | CredentialFile | None, timeout_s: float) -> ClusterAddress:
    """Look up the cluster through Ray, and cache the answer; a given token replaces the secret."""
    global _remembered
    _remembered = await _address_from_ray(timeout_s)
    return replace(_remembered, proof=token or _remembered.proof)


def _token(wanted: RangesWanted) -> Token | CredentialFile | None:
    """The given token, or the file with it; None = no token was given."""
    given = wanted.secret
    return given if isinstance(given, (Token, CredentialFile)) and is_token(given) else None


async def _connected(address: ClusterAddress, wanted: RangesWanted, timeout_s: float) -> ClusterClient:
    hosts = ((f"[{host}]" if ":" in host else host, port) for host, port in address.endpoints)
    bootstrap = ",".join(f"{host}:{port}" for host, port in hosts)
    config = replace(wanted.consumer, bootstrap=bootstrap, **address.proof_keys, allow_auto_create_topics=False)
    client = ClusterClient(config, _finder(address, _token(wanted)) if address.through_ray else None)
    try:
        await client.start(timeout_s)  # fails if the token is not valid
        _require_read(client, wanted)
    except BaseException:  # any error: half-made connections must be closed
        await client.close()
        raise
    return client


def _finder(address: ClusterAddress, token: Token | CredentialFile | None) -> Finder:
    """A finder that returns the known address at first, and looks it up through Ray at later calls."""
    known: list[ClusterAddress] = [address]

    async def find(timeout_s: float) -> ClusterAddress:
        return known.pop() if known else await _found_through_ray(token, timeout_s)

    return find


async def _address_from_ray(timeout_s: float) -> ClusterAddress:
    """Look up the cluster in the Ray session of this process; leave the session if this call joined it.

    Spark may use this process for something else later, which must not find a session in Raylog's namespace.
    """
    was_inside = "ray" in sys.modules and sys.modules["ray"].is_initialized()
    try:
        return await find_cluster(None, None, timeout_s=timeout_s)
    finally:
        if not was_inside and "ray" in sys.modules:
            await asyncio.to_thread(sys.modules["ray"].shutdown)


async def starting_offsets(
    client: ClusterClient, wanted: RangesWanted, *, timeout_s: float
) -> dict[TopicPartition, int]:
    """The offsets at which a stream begins to read the wanted partitions; `wanted.end` is ignored.

    Raises InvalidConfig, OffsetOutOfRange, UnknownTopicOrPartition, which say what to change.
    """
    now_s = asyncio.get_running_loop().time
    deadline_s = now_s() + timeout_s
    planner = _Planner(client, wanted, Narrowing(), lambda: max(0.1, deadline_s - now_s()), TaskTokens())
    return await planner.starts()


async def range_of(
    client: ClusterClient,
    tokens: TaskTokens,
    wanted: RangesWanted,
    place: TopicPartition,
    start: int,
    end: int,
    *,
    timeout_s: float,
) -> PartitionRange:
    """The range `start` to `end` for a task, with the leader as known now, the brokers, and a token."""
    info = await client.topic(place.topic, timeout_s=timeout_s)
    leader = info.partitions[place.partition]
    address = client.address
    assert address is not None  # every started client has one
    known = client.metadata.brokers
    brokers = tuple((broker.host, broker.port) for broker in known.values())
    return PartitionRange(
        topic=place.topic,
        topic_id=info.topic_id,
        partition=place.partition,
        leader_epoch=leader.leader_epoch,
        leader=leader.endpoint,
        start=start,
        end=end,
        brokers=brokers or address.endpoints,
        secret=tokens.of(address.secret, info.topic_id, place, lifetime_s=wanted.token_lifetime_s),
        node_id=known[leader.leader].node_id if leader.leader in known else "",
        may_be_compacted="compact" in str(info.config.get("cleanup.policy", "")),
    )


class _Planner:
    """Plans one query with a started client; `left_s` returns the remaining time in seconds."""

    def __init__(
        self,
        client: ClusterClient,
        wanted: RangesWanted,
        narrowing: Narrowing,
        left_s: Callable[[], float],
        tokens: TaskTokens,
    ) -> None:
        self._client = client
        self._tokens = tokens
        self._wanted = wanted
        self._narrowing = narrowing
        self._left_s = left_s
        self._at_once = asyncio.Semaphore(QUESTIONS_AT_ONCE)

    async def ranges(self, sizes: RecordSizes) -> list[PartitionRange]:
        partitions = await self._partitions()
        self._wanted.start.check_names(partitions)
        self._wanted.end.check_names(partitions)
        kept = [partition for partition in partitions if self._narrowing.keeps(partition.topic, partition.partition)]
        whole = [found for found in await _gathered(self._range(item) for item in kept) if found.start < found.end]
        if self._wanted.follows:
            whole = self._with_one_token(whole)
        if self._wanted.cuts_by_size:
            return cut(whole, await sizes.of(whole))
        pieces = split_ranges(
            [(item.start, item.end) for item in whole],
            min_partitions=self._wanted.min_partitions,
            max_records=self._wanted.max_records_per_partition,
        )
        return [replace(whole[index], start=start, end=end) for index, start, end in pieces]

    async def starts(self) -> dict[TopicPartition, int]:
        """The start offset of each wanted partition, for a stream."""
        partitions = await self._partitions()
        self._wanted.start.check_names(partitions)

        async def start_of(place: TopicPartition) -> tuple[TopicPartition, int]:
            async with self._at_once:
                low, high = await self._edges(place)
                return place, await self._start(place, low, high)

        return dict(await _gathered(start_of(place) for place in partitions))

    async def _partitions(self) -> list[TopicPartition]:
        """All wanted partitions, sorted. Raises UnknownTopicOrPartition for one that does not exist."""
        wanted = self._wanted
        if wanted.assigned:
            for partition in wanted.assigned:
                await self._client.topic_with(*partition, timeout_s=self._left_s())
            return sorted(wanted.assigned)
        topics = wanted.topics
        if wanted.pattern is not None:
            await self._client.refresh(None, timeout_s=self._left_s())
            known = [topic for topic in self._client.metadata.topics.values() if not topic.internal]
            topics = tuple(sorted(entry.name for entry in known if re.fullmatch(wanted.pattern, entry.name)))
        found: list[TopicPartition] = []
        for topic in topics:
            info = await self._client.topic(topic, timeout_s=self._left_s())
            found += [TopicPartition(topic, partition.partition) for partition in info.partitions]
        return sorted(found)

    async def _range(self, place: TopicPartition) -> PartitionRange:
        """The range to read of one partition; start >= end = nothing to read."""
        async with self._at_once:
            low, high = await self._edges(place)
            start = await self._start(place, low, high)
            end = await self._end(place, low, high)
            if not (self._wanted.start.is_time or self._wanted.end.is_time):
                _check_order(place, start, end)
            if self._wanted.refuses_start_behind_end and not self._wanted.start.is_time:
                _check_order(place, _edge_or(self._wanted.start.of(place), low, high), end)
            narrowing = self._narrowing
            start, end = max(start, narrowing.offset_low), min(end, narrowing.offset_end)
            if narrowing.time_low_ms is not None and start < end:
                found = await self._offset_at(place, narrowing.time_low_ms)
                start = max(start, found) if found >= 0 else end
            lateness_ms = self._wanted.lateness_ms
            if narrowing.time_end_ms is not None and lateness_ms is not None and start < end:
                # All records after one this young are younger than the bound.
                found = await self._offset_at(place, max(0, narrowing.time_end_ms + lateness_ms))
                end = min(end, found) if found >= 0 else end
        return await range_of(self._client, self._tokens, self._wanted, place, start, end, timeout_s=self._left_s())

    def _with_one_token(self, ranges: list[PartitionRange]) -> list[PartitionRange]:
        """The ranges with one token for whole topics: a consumer reads several partitions, and some may be added."""
        address = self._client.address
        assert address is not None  # every started client has one
        topic_ids = {item.topic: item.topic_id for item in ranges}
        token = read_token_for_topics(address.secret, topic_ids, lifetime_s=self._wanted.token_lifetime_s)
        return [replace(item, secret=token) for item in ranges]

    async def _start(self, place: TopicPartition, low: int, high: int) -> int:
        spec = self._wanted.start
        number = spec.of(place)
        if not spec.is_time:
            return self._inside(spec, place, _edge_or(number, low, high), low, high)
        found = await self._offset_at(place, number)
        if found < 0 and not self._wanted.latest_without_match:
            raise InvalidConfig(
                f"{place} has no record at or after {number} ms, which {spec.option} requires; choose an earlier "
                "time, or set startingOffsetsByTimestampStrategy to latest to read nothing of such partitions."
            )
        return high if found < 0 else min(found, high)

    async def _end(self, place: TopicPartition, low: int, high: int) -> int:
        spec = self._wanted.end
        number = spec.of(place)
        if self._wanted.follows and not spec.is_time:
            return OFFSET_MAX if number == LATEST else number
        if not spec.is_time:
            return self._inside(spec, place, _edge_or(number, low, high), low, high)
        found = await self._offset_at(place, number)
        return high if found < 0 else min(found, high)

    def _inside(self, spec: OffsetSpec, place: TopicPartition, offset: int, low: int, high: int) -> int:
        """The offset if it exists; else raises OffsetOutOfRange, or without `fail_on_data_loss` returns the nearest."""
        if low <= offset <= high:
            return offset
        if self._wanted.fail_on_data_loss:
            raise OffsetOutOfRange(
                f"{spec.option} names offset {offset} of {place}, but the log holds {low} to {high}. Set "
                "failOnDataLoss to false to read what there is.",
                start=low,
                end=high,
            )
        if offset < low:
            logger.warning(
                "%s names offset %d of %s, whose log begins at %d: it is read from there.",
                spec.option,
                offset,
                place,
                low,
            )
        elif not self._wanted.may_lie_ahead:
            logger.warning(
                "%s names offset %d of %s, whose log ends at %d: that offset is taken instead.",
                spec.option,
                offset,
                place,
                high,
            )
        return min(max(offset, low), high)

    async def _edges(self, place: TopicPartition) -> tuple[int, int]:
        """The start and end offsets of the log, looked up in parallel."""
        low, high = await _gathered(self._offset_at(place, edge) for edge in (EARLIEST, LATEST))
        return low, high

    async def _offset_at(self, place: TopicPartition, time_ms: int) -> int:
        level = LEVELS[self._wanted.consumer.isolation_level]
        return (await self._client.list_offset(place, time_ms, timeout_s=self._left_s(), isolation_level=level)).offset


def _edge_or(number: int, low: int, high: int) -> int:
    return low if number == EARLIEST else high if number == LATEST else number


def _check_order(place: TopicPartition, start: int, end: int) -> None:
    if start > end:
        raise InvalidConfig(
            f"The read of {place} begins at offset {start}, behind its end {end}; change one of the two."
        )


async def _gathered(work: Iterable[Awaitable[Result]]) -> list[Result]:
    """Run all concurrently. The first error cancels the others before it is raised, so that none keeps running."""
    tasks = [asyncio.ensure_future(item) for item in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
