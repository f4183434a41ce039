"""The configuration keys of the clients, with Kafka's names: types, defaults, bounds and meaning.

The keys of each client are the fields of a frozen dataclass. They are also the registry from which the documentation is
generated (`keys_of`). `load` accepts `linger_ms=5`, `{"linger.ms": 5}`, and values as text (`{"linger.ms": "5"}`), as
configuration files have them. For an unknown key it raises an error that suggests the nearest valid one. Pure.
"""

# ruff: noqa: RUF009 - `key` only makes a dataclass field, once, as `field` itself does.

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from datetime import timedelta
from os import PathLike, fspath
from typing import Any, TypeVar

from raylog.base.errors import InvalidConfig, did_you_mean
from raylog.client.accepted import Duration
from raylog.core.queues import policy
from raylog.core.queues.durations import duration_ms
from raylog.rpc import Token
from raylog.storage.batch.compression import COMPRESSIONS

INT_MAX = 2**31 - 1
INSTANCE_ID_MAX = 249
"""The most characters of a `group_instance_id`, as in Kafka."""
ALIASES = {
    "bootstrap_servers": "bootstrap",
    # librdkafka's names.
    "queue_buffering_max_ms": "linger_ms",
    "message_timeout_ms": "delivery_timeout_ms",
    "compression_codec": "compression_type",
    "message_max_bytes": "max_request_size",
    "fetch_wait_max_ms": "fetch_max_wait_ms",
    "fetch_message_max_bytes": "max_partition_fetch_bytes",
    "request_required_acks": "acks",
    "interceptor_classes": "interceptors",
}
"""Names of keys in other clients, and our names for them."""


def key(
    default: Any,
    doc: str,
    *,
    low: int | None = None,
    high: int | None = None,
    one_of: Iterable[Any] = (),
    accepts: str = "",
    shown: bool = True,
) -> Any:
    """One configuration key: its default, its meaning with the unit (`doc`), and its legal values.

    `accepts`: the type of the keyword argument, if it accepts more than the field's own type; it is made of the names
    in `ACCEPTED` of `client/accepted.py`. `shown=False` keeps the value out of `repr`.
    """
    metadata = {"doc": doc, "low": low, "high": high, "one_of": tuple(one_of), "accepts": accepts}
    return field(default=default, repr=shown, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Keys that all clients share."""

    bootstrap: str | list[str] | None = key(None, "Brokers to begin with, `host:port[,host:port]`; none: found by Ray.")
    secret: bytes | str | Token | None = key(
        None, "A secret of the cluster; text is its hexadecimal form.", shown=False
    )
    token: str | Token | None = key(
        None, "A token, as `raylog token create` prints it, instead of a secret.", shown=False
    )
    secret_file: str | PathLike[str] | None = key(
        None,
        "A file with the secret, one value or two, instead of `secret`. It is looked at for each new connection, so a "
        "client goes on when the secret is changed and the file replaced.",
        accepts="PathChoice",
    )
    token_file: str | PathLike[str] | None = key(
        None, "A file with the token, instead of `token`; read like `secret_file`.", accepts="PathChoice"
    )
    client_id: str = key("raylog", "A name for this client in logs and group descriptions.")
    request_timeout_ms: int = key(30_000, "How long to wait for the answer to one request.", low=1)
    retry_backoff_ms: int = key(
        20, "Pause before the first repetition. Kafka: 100; here a new leader is there within milliseconds.", low=0
    )
    retry_backoff_max_ms: int = key(1_000, "Longest pause; it doubles with each failure up to here.", low=0)
    metadata_max_age_ms: int = key(300_000, "Metadata older than this is fetched again without need.", low=1)

    def may_create_topics(self) -> bool:
        """Whether this client may create a topic by using it, in a cluster with `auto.create.topics.enable`."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """Keys of Producer and AsyncProducer."""

    acks: str | int = key(
        "all",
        "Which replicas must have stored a record: `all` in sync, 1 = the leader, 0 = no answer.",
        accepts='Literal["all", "1", "0", "-1", 1, 0, -1]',
    )
    enable_idempotence: bool | None = key(
        None, "Store each record once, in order, whatever is repeated. Default: on when acks=all, else off."
    )
    linger_ms: int | None = key(
        None,
        "How long an unfilled batch waits for more records. Default: not at all while nothing is under way to its "
        "partition, otherwise until that is answered, but at most 5 ms.",
        low=0,
    )
    batch_size: int = key(16_384, "Bytes at which a batch is sent without waiting. Under load batches grow.", low=1)
    compression_type: str = key("none", "Codec of whole batches.", one_of=COMPRESSIONS)
    buffer_memory: int = key(33_554_432, "Bytes of records not yet acknowledged; send() waits when it is full.", low=1)
    max_block_ms: int = key(60_000, "How long send() may wait for metadata or for buffer memory.", low=0)
    max_request_size: int = key(
        1_048_576, "Largest record in bytes, as an uncompressed batch of its own; and largest request.", low=1
    )
    delivery_timeout_ms: int = key(120_000, "Time from send() within which a record is acknowledged or fails.", low=1)
    retries: int = key(INT_MAX, "How often a batch is repeated within delivery_timeout_ms.", low=0)
    max_in_flight_requests_per_connection: int = key(
        5, "Unanswered requests per partition (each replica has its own connection); at most 5 with idempotence.", low=1
    )
    transactional_id: str | None = key(
        None,
        "A name for this producer's transactions, which fences the producer that had it before; none: it has none.",
    )
    transaction_timeout_ms: int = key(
        60_000, "A transaction that is open for longer is aborted, and its producer fenced.", low=1
    )
    transaction_two_phase_commit_enable: bool = key(
        False, "Transactions may be prepared and never time out: another system decides on them (KIP-939)."
    )
    partitioner: Any = key(
        None,
        "`murmur2` of the key, sticky without key (the default); `sticky` or `round_robin`, whatever the key is; "
        "`crc32` of the key, as librdkafka; a function (topic, key, value, count) or (topic, key, count) of the "
        "serialized record and the number of partitions, or an object that has it as `partition`. It returns a "
        "partition, or None for a sticky one.",
        accepts="PartitionerChoice",
    )
    interceptors: Any = key(
        None,
        "Objects with `on_send` or `on_acknowledgement`, their classes, or dotted names of these, in order.",
        accepts="InterceptorChoice",
    )
    key_serializer: Any = key(
        None,
        "`json`, `msgpack`, `string`, `bytes`, `int` or a function to bytes.",
        accepts="SerializerChoice",
    )
    value_serializer: Any = key(
        None,
        "`json`, `msgpack`, `string`, `bytes`, `int` or a function to bytes.",
        accepts="SerializerChoice",
    )

    def __post_init__(self) -> None:
        acks = {"all": "all", "-1": "all", "1": 1, "0": 0}.get(str(self.acks).lower())
        if acks is None:
            raise InvalidConfig(f"acks must be 'all', 1 or 0, not {self.acks!r}.")
        object.__setattr__(self, "acks", acks)
        if self.linger_ms is not None and self.linger_ms >= self.delivery_timeout_ms:
            raise InvalidConfig(
                f"linger_ms={self.linger_ms} is no less than delivery_timeout_ms={self.delivery_timeout_ms}: records "
                "would fail before they are sent; change one of the two."
            )
        self._check_transactions()
        if self.enable_idempotence is None:
            object.__setattr__(self, "enable_idempotence", acks == "all")
        if self.enable_idempotence:
            if acks != "all":
                raise InvalidConfig(f"enable_idempotence needs acks='all', not {acks!r}; change one of the two.")
            if self.max_in_flight_requests_per_connection > 5:
                raise InvalidConfig(
                    "max_in_flight_requests_per_connection must be at most 5 with enable_idempotence, because a leader "
                    "remembers the last five batches of a producer."
                )
            if self.retries == 0:
                raise InvalidConfig("enable_idempotence needs retries above 0; set enable_idempotence=False instead.")

    def may_create_topics(self) -> bool:
        """Always, as in Kafka."""
        return True

    def _check_transactions(self) -> None:
        if self.transactional_id is None:
            if self.transaction_two_phase_commit_enable:
                raise InvalidConfig(
                    "transaction_two_phase_commit_enable needs a transactional_id; give the producer one."
                )
            return
        if not self.transactional_id:
            raise InvalidConfig("transactional_id may not be empty; leave it out for a producer without transactions.")
        if self.acks != "all":
            raise InvalidConfig(f"A transactional_id needs acks='all', not {self.acks!r}; change one of the two.")
        if self.enable_idempotence is False:
            raise InvalidConfig(
                "A transactional_id needs enable_idempotence=True: a transaction stores each record once."
            )
        timeout_ms = keys_of(ProducerConfig)["transaction_timeout_ms"].default
        if self.transaction_two_phase_commit_enable and self.transaction_timeout_ms != timeout_ms:
            raise InvalidConfig(
                "transaction_timeout_ms has no meaning with transaction_two_phase_commit_enable=True: such "
                "transactions never time out. Leave one of the two out."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """Keys of Consumer and AsyncConsumer."""

    group_id: str | None = key(None, "The group to share the topics with; none: this consumer reads by itself.")
    group_instance_id: str | None = key(None, "A name that survives restarts, so that a restart causes no rebalance.")
    auto_offset_reset: str = key(
        "latest",
        "Where to begin without a valid offset. What is born after the subscription began is read from its start.",
        one_of=("latest", "earliest", "none"),
    )
    enable_auto_commit: bool = key(True, "Commit the positions in the background of poll().")
    auto_commit_interval_ms: int = key(5_000, "Time between two such commits.", low=1)
    max_poll_records: int = key(500, "Most records of one poll().", low=1)
    max_poll_interval_ms: int = key(300_000, "A member that does not poll for so long leaves the group.", low=1)
    session_timeout_ms: int = key(45_000, "A member whose heartbeats stay out for so long is removed.", low=1)
    heartbeat_interval_ms: int = key(3_000, "Time between two heartbeats.", low=1)
    fetch_min_bytes: int = key(1, "A fetch is answered when so much is there ...", low=0)
    fetch_max_wait_ms: int = key(
        500,
        "... or after this time. Where `fetch_min_bytes` is at most 1, a silent partition's fetches wait longer, up to "
        "20 s; below 10: never.",
        low=0,
    )
    fetch_max_bytes: int = key(52_428_800, "Most bytes that are fetched ahead, over all partitions.", low=1)
    max_partition_fetch_bytes: int = key(1_048_576, "Most bytes of one fetch; one batch is always returned.", low=1)
    short_circuit_reads: bool = key(True, "Read the files of leaders on this machine directly, where that is allowed.")
    partition_assignment_strategy: tuple[Any, ...] | None = key(
        None,
        "Assignors of the classic protocol that this member supports, best first: `range` (its default), `roundrobin`, "
        "`sticky`, `cooperative-sticky`, or subclasses of `raylog.PartitionAssignor`. Any value makes the member a "
        "classic one. With `cooperative-sticky` alone it reads on while the group rebalances.",
        accepts="AssignorChoice | Sequence[AssignorChoice]",
    )
    group_protocol: str | None = key(
        None,
        "`consumer`: the coordinator assigns, and a member reads on while others come and go (KIP-848); `classic`: a "
        "member assigns. All members of a group use the same one. Default: `consumer`; but `classic` with "
        "`partition_assignment_strategy`, and in a group that has classic members. Kafka's default is `classic`.",
        one_of=("classic", "consumer"),
    )
    group_remote_assignor: str | None = key(
        None,
        "How the coordinator assigns: `uniform` or `range`; none: it chooses. Any value makes `group_protocol` "
        "`consumer`.",
    )
    isolation_level: str = key(
        "read_uncommitted",
        "`read_committed`: see no record of a transaction before it is committed, and none that is aborted.",
        one_of=("read_uncommitted", "read_committed"),
    )
    allow_auto_create_topics: bool = key(
        True, "Whether subscribing to a topic creates it, in a cluster with `auto.create.topics.enable`."
    )
    check_crcs: bool = key(True, "Check the checksum of every batch.")
    skip_expired: bool = key(
        False,
        "Leave out records whose time to live is over by this machine's clock: their own, or the topic's `ttl.ms`. "
        "Does not count where records are taken as columns.",
    )
    consumer_timeout_ms: int | None = key(None, "Iteration ends after so long without a record; none: never.", low=0)
    default_api_timeout_ms: int = key(60_000, "How long calls without a timeout of their own may take.", low=1)
    interceptors: Any = key(
        None,
        "Objects with `on_consume` or `on_commit`, their classes, or dotted names of these, in order.",
        accepts="InterceptorChoice",
    )
    key_deserializer: Any = key(
        None,
        "`json`, `msgpack`, `string`, `bytes`, `int` or a function from bytes.",
        accepts="DeserializerChoice",
    )
    value_deserializer: Any = key(
        None,
        "`json`, `msgpack`, `string`, `bytes`, `int` or a function from bytes.",
        accepts="DeserializerChoice",
    )

    def __post_init__(self) -> None:
        strategies: Any = self.partition_assignment_strategy
        if isinstance(strategies, str):
            strategies = [part.strip() for part in strategies.split(",")]
        elif not isinstance(strategies, Iterable) and strategies is not None:
            strategies = [strategies]
        object.__setattr__(self, "partition_assignment_strategy", None if strategies is None else tuple(strategies))
        self._check_protocol()
        if self.group_instance_id is not None and not 0 < len(self.group_instance_id) <= INSTANCE_ID_MAX:
            raise InvalidConfig(
                f"group_instance_id must have 1 to {INSTANCE_ID_MAX} characters, not {len(self.group_instance_id)}; "
                "leave it out for a member that is not static."
            )
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise InvalidConfig(
                f"heartbeat_interval_ms ({self.heartbeat_interval_ms}) must be below session_timeout_ms "
                f"({self.session_timeout_ms}); a third of it is usual."
            )

    def _check_protocol(self) -> None:
        if self.partition_assignment_strategy is not None:
            if self.group_protocol == "consumer":
                raise InvalidConfig(
                    "partition_assignment_strategy counts with group_protocol='classic' only: with 'consumer' the "
                    "coordinator assigns; leave it out, and set group_remote_assignor to 'uniform' or 'range'."
                )
            if self.group_remote_assignor is not None:
                raise InvalidConfig(
                    "partition_assignment_strategy belongs to group_protocol='classic', and group_remote_assignor to "
                    "'consumer'; leave one of the two out."
                )
        if self.group_protocol == "classic" and self.group_remote_assignor is not None:
            raise InvalidConfig(
                "group_remote_assignor counts with group_protocol='consumer' only: with 'classic' a member assigns; "
                "leave it out, and set partition_assignment_strategy."
            )

    def may_create_topics(self) -> bool:
        """As `allow_auto_create_topics` says."""
        return self.allow_auto_create_topics


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig(ClientConfig):
    """Keys of Admin and AsyncAdmin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConsumerConfig(ClientConfig):
    """Keys of QueueConsumer and AsyncQueueConsumer."""

    group_id: str | None = key(None, "The group whose members share the work. Needed.")
    order: str | None = key(
        None,
        "`key`: records of a key are handed out in order, one after the other; `none`: as they come. Of the group.",
        one_of=("key", "none"),
    )
    lock: Any = key(
        None,
        "How long a record is locked for its consumer: `30s`, ms or timedelta. Of the group.",
        accepts="Duration",
    )
    lock_max: Any = key(None, "To what age a lock is extended at most; 12 hours. Of the group.", accepts="Duration")
    retry: Any = key(
        None,
        "Pauses before a record is handed out again: `10s 1m 10m`, or `exponential(1s, 2, 10m, 0.2)`. Of the group.",
        accepts="str | Sequence[Duration]",
    )
    delivery_limit: int | None = key(
        None,
        "Hand-outs after which a record becomes a dead letter; -1 = none. Default: one more than `retry` has pauses, "
        "otherwise 5. Of the group.",
    )
    dead_letter_topic: str | None = key(
        None, "Topic of what is rejected or handed out too often; `__undeliverable` without it. Of the group."
    )
    auto_offset_reset: str | None = key(
        None, "Where a new group begins; default `earliest`. Of the group.", one_of=("earliest", "latest")
    )
    priority: Any = key(
        None,
        "Between several topics: `strict`, from the first one down, or their weights, as a mapping or in their order. "
        "Default: none goes before another. Of the consumer.",
        accepts="PriorityChoice",
    )
    max_poll_records: int = key(500, "Most records that are locked ahead, before they are taken.", low=1)
    fetch_max_bytes: int = key(1_048_576, "Most bytes of one fetch; one batch is always returned.", low=1)
    fetch_max_wait_ms: int = key(20_000, "How long a fetch waits for the first record.", low=1)
    acknowledge_linger_ms: int = key(5, "How long an acknowledgement waits for others, to go with them.", low=0)
    renew_locks: bool = key(True, "Renew the locks of what this consumer holds, each time half of a lock is over.")
    session_timeout_ms: int = key(45_000, "A member whose heartbeats stay out for so long is removed.", low=1)
    heartbeat_interval_ms: int = key(3_000, "Time between two heartbeats.", low=1)
    consumer_timeout_ms: int | None = key(None, "Iteration ends after so long without a record; none: never.", low=0)
    check_crcs: bool = key(True, "Check the checksum of every batch.")
    key_deserializer: Any = key(
        None,
        "`json`, `msgpack`, `string`, `bytes`, `int` or a function from bytes.",
        accepts="DeserializerChoice",
    )
    value_deserializer: Any = key(
        None,
        "`json`, `msgpack`, `string`, `bytes`, `int` or a function from bytes.",
        accepts="DeserializerChoice",
    )

    def __post_init__(self) -> None:
        if not self.group_id:
            raise InvalidConfig("A queue's consumer needs group_id: the group whose members share the work.")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise InvalidConfig(
                f"heartbeat_interval_ms ({self.heartbeat_interval_ms}) must be below session_timeout_ms "
                f"({self.session_timeout_ms}); a third of it is usual."
            )
        policy.policy_of(self.settings(), {})

    def settings(self) -> dict[str, str]:
        """The group's settings that are given here, by the topic's keys and in normal form. Raises InvalidConfig."""
        given: dict[str, str | None] = {
            policy.ORDER: self.order,
            policy.LOCK: _ms(self.lock),
            policy.LOCK_MAX: _ms(self.lock_max),
            policy.BACKOFF: _backoff(self.retry),
            policy.LIMIT: None if self.delivery_limit is None else str(self.delivery_limit),
            policy.DEAD_LETTERS: self.dead_letter_topic,
            policy.START: self.auto_offset_reset,
        }
        return policy.checked({name: value for name, value in given.items() if value is not None})


def milliseconds(duration: Duration) -> int:
    """The milliseconds of a duration: `30s`, a timedelta, or a number of ms. Raises InvalidConfig."""
    if isinstance(duration, timedelta):
        return round(duration.total_seconds() * 1000)
    if isinstance(duration, str):
        return duration_ms(duration)
    if isinstance(duration, (int, float)) and not isinstance(duration, bool) and duration >= 0:
        return round(duration)
    raise InvalidConfig(f"A duration is text such as '30s', milliseconds or a timedelta, not {duration!r:.100}.")


def _ms(duration: Duration | None) -> str | None:
    return None if duration is None else str(milliseconds(duration))


def _backoff(retry: str | Sequence[Duration] | None) -> str | None:
    if retry is None or isinstance(retry, str):
        return retry
    return " ".join(f"{milliseconds(pause)}ms" for pause in retry)


Config = TypeVar("Config", bound=ClientConfig)


WHERE = ("bootstrap", "secret", "token")
"""The keys for the cluster's address and the credentials; embedding systems have their own names for them."""


def keys_of(kind: type[ClientConfig]) -> dict[str, Field[Any]]:
    """All keys of a client, in Python spelling; `metadata["doc"]` of a field is its meaning."""
    return {field.name: field for field in fields(kind)}


def kafka_name(name: str) -> str:
    """A key in Kafka's spelling."""
    return "bootstrap.servers" if name == "bootstrap" else name.replace("_", ".")


def show_keys(kind: type[ClientConfig], *clients: type[Any]) -> None:
    """Have `help()` and notebooks show each key of the clients with its default, instead of `**keywords`."""
    shown = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=found.default, annotation=str(found.type))
        for name, found in keys_of(kind).items()
    ]
    for client in clients:
        constructor: Any = client.__init__
        signature = inspect.signature(constructor)
        kept = [entry for entry in signature.parameters.values() if entry.kind is not inspect.Parameter.VAR_KEYWORD]
        with contextlib.suppress(AttributeError):  # the signature of a compiled constructor is fixed
            constructor.__signature__ = signature.replace(parameters=[*kept, *shown])


def load(kind: type[Config], config: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> Config:
    """Merge dotted or snake_case keys with keyword arguments (which win) into a checked configuration.

    A value of None stands for the key's default. Raises InvalidConfig for an unknown key, a value of a wrong type, or
    one out of bounds.
    """
    if config is not None and not isinstance(config, Mapping):
        raise InvalidConfig(
            f'config must be a mapping of keys, such as {{"client.id": "reports"}}, not {type(config).__name__}: '
            f"{config!r:.100}."
        )
    known = keys_of(kind)
    chosen: dict[str, Any] = {}
    for source in (config or {}, keywords):
        for spelt, value in source.items():
            if not isinstance(spelt, str):
                raise InvalidConfig(f"A configuration key must be text, not {type(spelt).__name__}: {spelt!r:.100}.")
            name = spelt.replace(".", "_").replace("-", "_")
            name = ALIASES.get(name, name)
            if name not in known:
                choices = known if "." not in spelt else [kafka_name(entry) for entry in known]
                raise InvalidConfig(did_you_mean("configuration key", spelt, choices))
            if value is not None:  # None stands for the default
                chosen[name] = _checked(known[name], spelt, value)
    return kind(**chosen)


def _checked(wanted: Field[Any], spelt: str, value: Any) -> Any:
    default = None if wanted.default is MISSING else wanted.default
    type_name = str(wanted.type).split(" ")[0]
    if value == default and type(value) is type(default):  # by type too: 5.0 == 5 and True == 1
        return value
    if type_name == "int":
        value = _whole_number(spelt, value)
    elif type_name == "bool":
        value = _truth(spelt, value)
    elif type_name == "str" and str(wanted.type) in ("str", "str | None") and not isinstance(value, str):
        raise InvalidConfig(f"{spelt} must be text, not {value!r}.")
    elif wanted.metadata["accepts"] == "PathChoice":
        value = _path(spelt, value)
    low, high, one_of = wanted.metadata["low"], wanted.metadata["high"], wanted.metadata["one_of"]
    if low is not None and value < low:
        raise InvalidConfig(f"{spelt} must be at least {low}, not {value}.")
    if high is not None and value > high:
        raise InvalidConfig(f"{spelt} must be at most {high}, not {value}.")
    if one_of and value not in one_of:
        raise InvalidConfig(did_you_mean(f"value of {spelt}", str(value), [str(item) for item in one_of]))
    return value


def _whole_number(spelt: str, value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            pass  # refused below, with the same message as every other value
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidConfig(f"{spelt} must be a whole number, not {value!r}.")
    return value


def _path(spelt: str, value: Any) -> str:
    path = fspath(value) if isinstance(value, (str, PathLike)) else None
    if not isinstance(path, str) or not path:
        raise InvalidConfig(f"{spelt} must be the path of a file, not {value!r}.")
    return path


def _truth(spelt: str, value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise InvalidConfig(f"{spelt} must be true or false, not {value!r}.")
    return value
