"""The options of `df.write.format("raylog")` and of `df.writeStream`: Kafka's names, checked. Pure.

Spark passes options as text, and ignores the case of their names. Used by `writers`.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raylog.base.errors import InvalidConfig, did_you_mean
from raylog.client.cluster.credentials import parse_secret, read_token
from raylog.client.config import WHERE, ProducerConfig, kafka_name, keys_of, load
from raylog.spark.reading.options import canonical

GUARANTEES = AT_LEAST_ONCE, EXACTLY_ONCE = ("at-least-once", "exactly-once")
WRITE = (
    *("topic", "deliveryGuarantee", "transactionalIdPrefix", "includeHeaders"),
    *(
        "raylog.bootstrap",
        "raylog.secret",
        "raylog.token",
        "raylog.tokenLifetimeMs",
        "raylog.topics",
        "kafka.bootstrap.servers",
    ),
)
WITHOUT_EFFECT = ("path", "checkpointLocation", "queryName", "kafka.partitioner.ignore.keys")
"""Options of Spark itself, and options that do nothing here. `checkpointLocation` gives the default prefix."""
REFUSED = {
    "kafka.key.serializer": "keys are bytes or text; cast the column",
    "kafka.value.serializer": "values are bytes or text; cast the column",
    "kafka.key.deserializer": "keys are bytes or text; cast the column",
    "kafka.value.deserializer": "values are bytes or text; cast the column",
    "kafka.transactional.id": "set deliveryGuarantee=exactly-once, and transactionalIdPrefix if it needs a name",
    "kafka.transaction.two.phase.commit.enable": "deliveryGuarantee=exactly-once uses it where it is needed",
    "kafka.partitioner": "put the partition's number into the column 'partition'",
    "kafka.partitioner.class": "put the partition's number into the column 'partition'",
    "kafka.interceptor.classes": "transform the columns instead",
}
CLIENT = tuple(
    f"kafka.{kafka_name(name)}"
    for name in keys_of(ProducerConfig)
    if name not in WHERE and f"kafka.{kafka_name(name)}" not in REFUSED
)
"""Keys of the producer that are passed on to it; raylog.client.config explains them."""
TRANSACTION_TIMEOUT_MS = 900_000
"""Default: the longest that a cluster allows by default. A transaction that no driver takes over ends after it."""
PREFIX_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Where and how to write; made by `parse_write_options`."""

    topic: str | None = None
    """None: the column `topic` names it."""
    topics: tuple[str, ...] = ()
    """The topics that the column may name; empty: any topic."""
    exactly_once: bool = False
    prefix: str | None = None
    """Prefix of this write's transactional ids; None: at-least-once."""
    takes_over: bool = False
    """Whether this write may take the prefix over from another query. It may if the prefix comes from the checkpoint's
    location: a query that had it before has ended."""
    bootstrap: str | None = None
    secret: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    token_lifetime_s: float = 43_200.0
    """Lifetime of the token with which tasks write; a task that begins later fails."""
    producer: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the producer, without address and secret."""


def parse_write_options(given: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Check the options of a write. Raises InvalidConfig with a sentence on what to change."""
    texts = canonical(given, (*WRITE, *WITHOUT_EFFECT, *CLIENT), REFUSED)
    guarantee = texts.get("deliveryGuarantee", AT_LEAST_ONCE).strip().lower()
    if guarantee not in GUARANTEES:
        raise InvalidConfig(did_you_mean("value of deliveryGuarantee", guarantee, GUARANTEES))
    exactly_once = guarantee == EXACTLY_ONCE
    if "transactionalIdPrefix" in texts and not exactly_once:
        raise InvalidConfig(
            "transactionalIdPrefix has no meaning without transactions: set deliveryGuarantee=exactly-once, or leave "
            "it out."
        )
    topic = texts.get("topic")
    if topic is not None and not topic.strip():
        raise InvalidConfig("The option 'topic' is empty: name a topic, or leave it out and have a column 'topic'.")
    _truth(texts, "includeHeaders")
    if _truth(texts, "kafka.partitioner.ignore.keys"):
        raise InvalidConfig(
            "kafka.partitioner.ignore.keys=true is not supported: records with a key go to the key's partition. Put a "
            "number into the column 'partition'."
        )
    _check_credentials(texts)
    return WriteOptions(
        topic=topic,
        exactly_once=exactly_once,
        topics=tuple(filter(None, (name.strip() for name in texts.get("raylog.topics", "").split(",")))),
        prefix=_prefix(texts, streaming) if exactly_once else None,
        takes_over="transactionalIdPrefix" not in texts,
        bootstrap=_one_bootstrap(texts),
        secret=texts.get("raylog.secret"),
        token=texts.get("raylog.token"),
        token_lifetime_s=_lifetime_s(texts),
        producer=_producer(texts, exactly_once),
    )


def _prefix(texts: Mapping[str, str], streaming: bool) -> str:
    prefix = texts.get("transactionalIdPrefix")
    if prefix is not None:
        if not 0 < len(prefix) <= PREFIX_CHARACTERS_MAX:
            raise InvalidConfig(
                f"transactionalIdPrefix must have 1 to {PREFIX_CHARACTERS_MAX} characters, not {len(prefix)}."
            )
        return prefix
    if not streaming:
        return f"spark-{uuid.uuid4().hex}"
    place = texts.get("checkpointLocation")
    if place is None:
        raise InvalidConfig(
            "deliveryGuarantee=exactly-once needs a name that stays the same when the query restarts: give the option "
            "checkpointLocation to this writer, or transactionalIdPrefix."
        )
    return f"spark-{hashlib.sha256(_one_spelling(place).encode()).hexdigest()[:24]}"


def _one_spelling(place: str) -> str:
    """One spelling for checkpoint locations that are the same for Spark, as `/a/b`, `/a//b/` and `file:///a/b`."""
    scheme, colon, path = place.rpartition(":")
    path = re.sub("/+", "/", path).rstrip("/")
    return path if scheme in ("", "file") else f"{scheme}{colon}{path}"


def _check_credentials(texts: Mapping[str, str]) -> None:
    secret, token = texts.get("raylog.secret"), texts.get("raylog.token")
    if secret is not None and token is not None:
        raise InvalidConfig(
            "raylog.secret and raylog.token are both given: leave one out; a token is enough where it writes to the "
            "topics."
        )
    if token is not None:
        read_token(token)
    if secret is not None:
        parse_secret(secret)


def _one_bootstrap(texts: Mapping[str, str]) -> str | None:
    ours, kafkas = texts.get("raylog.bootstrap"), texts.get("kafka.bootstrap.servers")
    if ours is not None and kafkas is not None and ours != kafkas:
        raise InvalidConfig("raylog.bootstrap and kafka.bootstrap.servers are the same option; give one of them.")
    return ours if ours is not None else kafkas


def _truth(texts: Mapping[str, str], name: str) -> bool:
    text = texts.get(name, "false").strip().lower()
    if text not in ("true", "false"):
        raise InvalidConfig(f"{name} must be true or false, not {texts[name]!r}.")
    return text == "true"


def _lifetime_s(texts: Mapping[str, str]) -> float:
    text = texts.get("raylog.tokenLifetimeMs", "43200000")
    if not text.isdecimal() or int(text) < 1_000:
        raise InvalidConfig(f"raylog.tokenLifetimeMs must be a whole number from 1000 on, not {text!r}.")
    return int(text) / 1000


def _producer(texts: Mapping[str, str], exactly_once: bool) -> dict[str, Any]:
    keys = {name.removeprefix("kafka."): texts[name] for name in CLIENT if name in texts}
    if exactly_once:
        keys.setdefault("transaction.timeout.ms", str(TRANSACTION_TIMEOUT_MS))
        keys["transactional.id"] = "checked"  # so that settings which rule out transactions are refused here
    try:
        checked = load(ProducerConfig, keys, {})
    except InvalidConfig as error:
        raise InvalidConfig(f"An option that begins with 'kafka.' is wrong: {error.message}") from None
    fields = {kafka_name(name): name for name in keys_of(ProducerConfig)}
    return {
        fields[name]: getattr(checked, fields[name]) for name in keys if name in fields and name != "transactional.id"
    }
