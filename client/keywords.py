"""The keyword arguments of the clients, for editors and type checkers.

Generated from the registry in client/config.py by `python -m tools.client_keywords`; do not edit. Each may be None,
which stands for its default. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from raylog.client.accepted import (
    AssignorChoice,
    DeserializerChoice,
    Duration,
    InterceptorChoice,
    PartitionerChoice,
    PathChoice,
    PriorityChoice,
    SerializerChoice,
)
from raylog.rpc import Token


class ClientKeywords(TypedDict, total=False):
    """Keys that all clients share."""

    bootstrap: str | list[str] | None
    """Brokers to begin with, `host:port[,host:port]`; none: found by Ray."""
    secret: bytes | str | Token | None
    """A secret of the cluster; text is its hexadecimal form."""
    token: str | Token | None
    """A token, as `raylog token create` prints it, instead of a secret."""
    secret_file: PathChoice | None
    """A file with the secret, one value or two, instead of `secret`. It is looked at for each new connection, so a
    client goes on when the secret is changed and the file replaced.
    """
    token_file: PathChoice | None
    """A file with the token, instead of `token`; read like `secret_file`."""
    client_id: str | None
    """A name for this client in logs and group descriptions."""
    request_timeout_ms: int | None
    """How long to wait for the answer to one request."""
    retry_backoff_ms: int | None
    """Pause before the first repetition. Kafka: 100; here a new leader is there within milliseconds."""
    retry_backoff_max_ms: int | None
    """Longest pause; it doubles with each failure up to here."""
    metadata_max_age_ms: int | None
    """Metadata older than this is fetched again without need."""
    bootstrap_servers: str | list[str] | None
    """Another name of `bootstrap`."""


class ProducerKeywords(ClientKeywords, total=False):
    """Keys of Producer and AsyncProducer."""

    acks: Literal["all", "1", "0", "-1", 1, 0, -1] | None
    """Which replicas must have stored a record: `all` in sync, 1 = the leader, 0 = no answer."""
    enable_idempotence: bool | None
    """Store each record once, in order, whatever is repeated. Default: on when acks=all, else off."""
    linger_ms: int | None
    """How long an unfilled batch waits for more records. Default: not at all while nothing is under way to its
    partition, otherwise until that is answered, but at most 5 ms.
    """
    batch_size: int | None
    """Bytes at which a batch is sent without waiting. Under load batches grow."""
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] | None
    """Codec of whole batches."""
    buffer_memory: int | None
    """Bytes of records not yet acknowledged; send() waits when it is full."""
    max_block_ms: int | None
    """How long send() may wait for metadata or for buffer memory."""
    max_request_size: int | None
    """Largest record in bytes, as an uncompressed batch of its own; and largest request."""
    delivery_timeout_ms: int | None
    """Time from send() within which a record is acknowledged or fails."""
    retries: int | None
    """How often a batch is repeated within delivery_timeout_ms."""
    max_in_flight_requests_per_connection: int | None
    """Unanswered requests per partition (each replica has its own connection); at most 5 with idempotence."""
    transactional_id: str | None
    """A name for this producer's transactions, which fences the producer that had it before; none: it has none."""
    transaction_timeout_ms: int | None
    """A transaction that is open for longer is aborted, and its producer fenced."""
    transaction_two_phase_commit_enable: bool | None
    """Transactions may be prepared and never time out: another system decides on them (KIP-939)."""
    partitioner: PartitionerChoice | None
    """`murmur2` of the key, sticky without key (the default); `sticky` or `round_robin`, whatever the key is; `crc32`
    of the key, as librdkafka; a function (topic, key, value, count) or (topic, key, count) of the serialized record
    and the number of partitions, or an object that has it as `partition`. It returns a partition, or None for a
    sticky one.
    """
    interceptors: InterceptorChoice | None
    """Objects with `on_send` or `on_acknowledgement`, their classes, or dotted names of these, in order."""
    key_serializer: SerializerChoice | None
    """`json`, `msgpack`, `string`, `bytes`, `int` or a function to bytes."""
    value_serializer: SerializerChoice | None
    """`json`, `msgpack`, `string`, `bytes`, `int` or a function to bytes."""
    queue_buffering_max_ms: int | None
    """Another name of `linger_ms`."""
    message_timeout_ms: int | None
    """Another name of `delivery_timeout_ms`."""
    compression_codec: Literal["none", "gzip", "snappy", "lz4", "zstd"] | None
    """Another name of `compression_type`."""
    message_max_bytes: int | None
    """Another name of `max_request_size`."""
    request_required_acks: Literal["all", "1", "0", "-1", 1, 0, -1] | None
    """Another name of `acks`."""
    interceptor_classes: InterceptorChoice | None
    """Another name of `interceptors`."""


class ConsumerKeywords(ClientKeywords, total=False):
    """Keys of Consumer and AsyncConsumer."""

    group_id: str | None
    """The group to share the topics with; none: this consumer reads by itself."""
    group_instance_id: str | None
    """A name that survives restarts, so that a restart causes no rebalance."""
    auto_offset_reset: Literal["latest", "earliest", "none"] | None
    """Where to begin without a valid offset. What is born after the subscription began is read from its start."""
    enable_auto_commit: bool | None
    """Commit the positions in the background of poll()."""
    auto_commit_interval_ms: int | None
    """Time between two such commits."""
    max_poll_records: int | None
    """Most records of one poll()."""
    max_poll_interval_ms: int | None
    """A member that does not poll for so long leaves the group."""
    session_timeout_ms: int | None
    """A member whose heartbeats stay out for so long is removed."""
    heartbeat_interval_ms: int | None
    """Time between two heartbeats."""
    fetch_min_bytes: int | None
    """A fetch is answered when so much is there ..."""
    fetch_max_wait_ms: int | None
    """... or after this time. Where `fetch_min_bytes` is at most 1, a silent partition's fetches wait longer, up to 20
    s; below 10: never.
    """
    fetch_max_bytes: int | None
    """Most bytes that are fetched ahead, over all partitions."""
    max_partition_fetch_bytes: int | None
    """Most bytes of one fetch; one batch is always returned."""
    short_circuit_reads: bool | None
    """Read the files of leaders on this machine directly, where that is allowed."""
    partition_assignment_strategy: AssignorChoice | Sequence[AssignorChoice] | None
    """Assignors of the classic protocol that this member supports, best first: `range` (its default), `roundrobin`,
    `sticky`, `cooperative-sticky`, or subclasses of `raylog.PartitionAssignor`. Any value makes the member a
    classic one. With `cooperative-sticky` alone it reads on while the group rebalances.
    """
    group_protocol: Literal["classic", "consumer"] | None
    """`consumer`: the coordinator assigns, and a member reads on while others come and go (KIP-848); `classic`: a
    member assigns. All members of a group use the same one. Default: `consumer`; but `classic` with
    `partition_assignment_strategy`, and in a group that has classic members. Kafka's default is `classic`.
    """
    group_remote_assignor: str | None
    """How the coordinator assigns: `uniform` or `range`; none: it chooses. Any value makes `group_protocol`
    `consumer`.
    """
    isolation_level: Literal["read_uncommitted", "read_committed"] | None
    """`read_committed`: see no record of a transaction before it is committed, and none that is aborted."""
    allow_auto_create_topics: bool | None
    """Whether subscribing to a topic creates it, in a cluster with `auto.create.topics.enable`."""
    check_crcs: bool | None
    """Check the checksum of every batch."""
    skip_expired: bool | None
    """Leave out records whose time to live is over by this machine's clock: their own, or the topic's `ttl.ms`. Does
    not count where records are taken as columns.
    """
    consumer_timeout_ms: int | None
    """Iteration ends after so long without a record; none: never."""
    default_api_timeout_ms: int | None
    """How long calls without a timeout of their own may take."""
    interceptors: InterceptorChoice | None
    """Objects with `on_consume` or `on_commit`, their classes, or dotted names of these, in order."""
    key_deserializer: DeserializerChoice | None
    """`json`, `msgpack`, `string`, `bytes`, `int` or a function from bytes."""
    value_deserializer: DeserializerChoice | None
    """`json`, `msgpack`, `string`, `bytes`, `int` or a function from bytes."""
    fetch_wait_max_ms: int | None
    """Another name of `fetch_max_wait_ms`."""
    fetch_message_max_bytes: int | None
    """Another name of `max_partition_fetch_bytes`."""
    interceptor_classes: InterceptorChoice | None
    """Another name of `interceptors`."""


class AdminKeywords(ClientKeywords, total=False):
    """Keys of Admin and AsyncAdmin."""


class QueueConsumerKeywords(ClientKeywords, total=False):
    """Keys of QueueConsumer and AsyncQueueConsumer."""

    group_id: str | None
    """The group whose members share the work. Needed."""
    order: Literal["key", "none"] | None
    """`key`: records of a key are handed out in order, one after the other; `none`: as they come. Of the group."""
    lock: Duration | None
    """How long a record is locked for its consumer: `30s`, ms or timedelta. Of the group."""
    lock_max: Duration | None
    """To what age a lock is extended at most; 12 hours. Of the group."""
    retry: str | Sequence[Duration] | None
    """Pauses before a record is handed out again: `10s 1m 10m`, or `exponential(1s, 2, 10m, 0.2)`. Of the group."""
    delivery_limit: int | None
    """Hand-outs after which a record becomes a dead letter; -1 = none. Default: one more than `retry` has pauses,
    otherwise 5. Of the group.
    """
    dead_letter_topic: str | None
    """Topic of what is rejected or handed out too often; `__undeliverable` without it. Of the group."""
    auto_offset_reset: Literal["earliest", "latest"] | None
    """Where a new group begins; default `earliest`. Of the group."""
    priority: PriorityChoice | None
    """Between several topics: `strict`, from the first one down, or their weights, as a mapping or in their order.
    Default: none goes before another. Of the consumer.
    """
    max_poll_records: int | None
    """Most records that are locked ahead, before they are taken."""
    fetch_max_bytes: int | None
    """Most bytes of one fetch; one batch is always returned."""
    fetch_max_wait_ms: int | None
    """How long a fetch waits for the first record."""
    acknowledge_linger_ms: int | None
    """How long an acknowledgement waits for others, to go with them."""
    renew_locks: bool | None
    """Renew the locks of what this consumer holds, each time half of a lock is over."""
    session_timeout_ms: int | None
    """A member whose heartbeats stay out for so long is removed."""
    heartbeat_interval_ms: int | None
    """Time between two heartbeats."""
    consumer_timeout_ms: int | None
    """Iteration ends after so long without a record; none: never."""
    check_crcs: bool | None
    """Check the checksum of every batch."""
    key_deserializer: DeserializerChoice | None
    """`json`, `msgpack`, `string`, `bytes`, `int` or a function from bytes."""
    value_deserializer: DeserializerChoice | None
    """`json`, `msgpack`, `string`, `bytes`, `int` or a function from bytes."""
    fetch_wait_max_ms: int | None
    """Another name of `fetch_max_wait_ms`."""
