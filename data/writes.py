"""`raylog.data.write`: a Ray `Dataset` into a topic. May touch: the network, and the Ray session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ray
import ray.data

from raylog.base.errors import InvalidConfig, RaylogError, did_you_mean
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.cluster.discovery import ClusterAddress, find_cluster
from raylog.client.cluster.reachable import require_an_answer
from raylog.client.config import ProducerConfig
from raylog.client.runtime import shared
from raylog.client.task_tokens import require_write
from raylog.data.arguments import REFUSED_OF_PRODUCER, address_of, config_of
from raylog.data.datasink import RaylogDatasink, WriteTask
from raylog.data.joining import join_ray
from raylog.data.serializing import SERIALIZERS, Fields, check_schema

PLAN_TIMEOUT_S = 60.0
TOKEN_S = 43_200.0


def write(
    ds: ray.data.Dataset,
    topic: str,
    *,
    bootstrap_servers: str | Sequence[str] | None = None,
    key_field: str | None = None,
    value_field: str | None = None,
    headers_field: str | None = None,
    timestamp_field: str | None = None,
    partition_field: str | None = None,
    key_serializer: str = "string",
    value_serializer: str | None = None,
    producer_config: Mapping[str, Any] | None = None,
    secret: str | bytes | None = None,
    token: str | None = None,
    token_lifetime_s: float = TOKEN_S,
    concurrency: int | None = None,
    ray_remote_args: Mapping[str, Any] | None = None,
) -> None:
    """Write each row of a dataset as a record; returns when all are stored by every replica in sync.

    Without `value_field` the whole row becomes JSON, as in `Dataset.write_kafka`; a value column of bytes or text is
    written as it is, any other as JSON. `headers_field`: a map of text to bytes. `timestamp_field`: a timestamp (UTC
    unless it has a zone) or milliseconds since 1970; by default the time of sending. `partition_field`: the number of
    the partition; by default the key decides, and without a key whole blocks go to one partition. Serializers: `json`,
    `string`, `bytes`; null stays null. `producer_config`: further keys of `raylog.ProducerConfig`.

    `bootstrap_servers`, `secret`, `token`: as for `read`; tasks get a token that allows writes to this topic only. A
    task that Ray repeats writes its rows again (at least once). Raises InvalidConfig, UnknownTopicOrPartition,
    InvalidRecord for what cannot be written, RecordTooLarge, and the errors of connecting to the cluster.
    """
    if not isinstance(ds, ray.data.Dataset):
        raise InvalidConfig(
            f"write() takes a Ray Dataset, not {type(ds).__name__}: ray.data.from_items or from_pandas makes one."
        )
    if not isinstance(topic, str) or not topic:
        raise InvalidConfig(f"topic must be the name of a topic, not {topic!r:.100}.")
    fields = Fields(
        value=value_field,
        key=key_field,
        headers=headers_field,
        timestamp=timestamp_field,
        partition=partition_field,
        key_serializer=_serializer("key_serializer", key_serializer) or "string",
        value_serializer=_serializer("value_serializer", value_serializer),
    )
    if known := ds.schema(fetch_if_missing=False):
        check_schema(fields, known.base_schema)
    config_of(ProducerConfig, "producer_config", producer_config, REFUSED_OF_PRODUCER)
    bootstrap, credentials = address_of(bootstrap_servers, secret, token)
    join_ray(bootstrap)
    brokers, task_token = shared().run(_access(bootstrap, credentials, topic, token_lifetime_s), PLAN_TIMEOUT_S + 5)
    task = WriteTask(topic, fields, brokers, task_token, _keywords(producer_config))
    _run(ds, RaylogDatasink(task), concurrency, ray_remote_args)


def _run(
    ds: ray.data.Dataset, sink: RaylogDatasink, concurrency: int | None, remote_args: Mapping[str, Any] | None
) -> None:
    try:
        ds.write_datasink(sink, concurrency=concurrency, ray_remote_args=dict(remote_args or {}))
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, RaylogError):
            raise error.cause from error  # the sentence, without Ray's traces of its operators in front
        raise


def _serializer(argument: str, name: str | None) -> str | None:
    if name is not None and name not in SERIALIZERS:
        raise InvalidConfig(did_you_mean(f"value of {argument}", str(name), SERIALIZERS))
    return name


def _keywords(given: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"config": {str(name): value for name, value in (given or {}).items()}}


async def _access(bootstrap: str | None, credentials: Any, topic: str, lifetime_s: float) -> tuple[str, Any]:
    """The brokers, and a token for tasks. Raises NoClusterFound, UnknownTopicOrPartition and the like."""
    found = await find_cluster(bootstrap, credentials, timeout_s=PLAN_TIMEOUT_S)
    await require_an_answer(found.endpoints)
    brokers = _text_of(found)
    async with AsyncAdmin(bootstrap=brokers, secret=found.secret) as admin:
        if not isinstance(found.secret, bytes):  # a token already; it is passed on
            require_write(found.secret, [topic])
            await admin.describe_topics([topic])
            return brokers, found.secret
        return brokers, await admin.create_token(write=[topic], lifetime_s=lifetime_s)


def _text_of(found: ClusterAddress) -> str:
    hosts = ((f"[{host}]" if ":" in host else host, port) for host, port in found.endpoints)
    return ",".join(f"{host}:{port}" for host, port in hosts)
