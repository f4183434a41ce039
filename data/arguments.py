"""Checks of the arguments that `raylog.data.read` and `write` share. Pure but for the environment's Ray session."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from raylog.base.errors import InvalidConfig, did_you_mean
from raylog.client.cluster.credentials import read_token
from raylog.client.config import ClientConfig, ConsumerConfig, load

Config = TypeVar("Config", bound=ClientConfig)
logger = logging.getLogger(__name__)

# The keys of these three tables may not stand in `consumer_config` or `producer_config`; the values say what to do.
_BESIDE = {
    "secret": "give secret beside it",
    "token": "give token beside it",
    "secret_file": "give secret beside it, or set RAYLOG_SECRET_FILE where the program runs",
    "token_file": "give token beside it, or set RAYLOG_TOKEN_FILE where the program runs",
    "bootstrap": "give bootstrap_servers",
}
REFUSED_OF_CONSUMER = {
    "group_id": "a dataset belongs to no group; keep the offsets of the records you have",
    "group_instance_id": "a dataset belongs to no group",
    "enable_auto_commit": "a dataset commits nothing; keep the offsets of the records you have",
    "auto_offset_reset": "give start_offset, which says where a read begins",
    "partition_assignment_strategy": "tasks share the partitions out by themselves",
    "key_deserializer": "keys come as bytes; convert the column with map_batches",
    "value_deserializer": "values come as bytes; convert the column with map_batches",
    **_BESIDE,
}
REFUSED_OF_PRODUCER = {
    "transactional_id": "tasks write at least once, and without transactions",
    "transaction_two_phase_commit_enable": "tasks write at least once, and without transactions",
    "key_serializer": "give key_serializer beside producer_config",
    "value_serializer": "give value_serializer beside producer_config",
    "partitioner": "give partition_field for partitions of your own",
    **_BESIDE,
}

REMOTE_ARGUMENTS = frozenset(
    {
        "num_gpus",
        "memory",
        "label_selector",
        "fallback_strategy",
        "max_calls",
        "resources",
        "accelerator_type",
        "runtime_env",
        "ray_remote_args",
    }
)
"""Further arguments of `read_kafka`, which go to Ray as they are."""


def check_remote(given: Iterable[str], others: Iterable[str]) -> None:
    """Raise InvalidConfig for an argument that Ray does not know either; `others`: the function's named arguments."""
    for name in given:
        if name == "kafka_auth_config":
            raise InvalidConfig("kafka_auth_config is of Kafka: give secret or token, or neither inside Ray.")
        if name not in REMOTE_ARGUMENTS:
            raise InvalidConfig(did_you_mean("argument", name, [*others, *sorted(REMOTE_ARGUMENTS)]))


def checked_topics(topics: Any) -> tuple[str, ...]:
    """The names of the topics without repetitions, from one name or several. Raises InvalidConfig."""
    names = [topics] if isinstance(topics, str) else list(topics) if isinstance(topics, Iterable) else []
    if not names or not all(isinstance(name, str) and name for name in names):
        raise InvalidConfig(f"topics must be the name of a topic, or a list of at least one name, not {topics!r:.200}.")
    return tuple(dict.fromkeys(names))


def address_of(bootstrap_servers: Any, secret: Any, token: Any) -> tuple[str | None, Any]:
    """The brokers as one text ("host:port,host:port"; None = not given), and the credentials. Raises InvalidConfig."""
    if bootstrap_servers is not None and not isinstance(bootstrap_servers, str):
        if not isinstance(bootstrap_servers, Sequence) or not all(isinstance(each, str) for each in bootstrap_servers):
            raise InvalidConfig(
                f"bootstrap_servers must be 'host:port' or a list of those, not {bootstrap_servers!r:.200}."
            )
        bootstrap_servers = ",".join(bootstrap_servers)
    if secret is not None and token is not None:
        raise InvalidConfig("secret and token are two ways to the same right; give one of them.")
    return bootstrap_servers or None, read_token(token) if token is not None else secret


def config_of(kind: type[Config], argument: str, given: Any, refused: Mapping[str, str]) -> Config:
    """The checked configuration for the clients of tasks. Raises InvalidConfig.

    `given`: the argument `consumer_config` or `producer_config`, by the name `argument`; `refused`: keys it may not
    have, with what to do instead.
    """
    if given is not None and not isinstance(given, Mapping):
        raise InvalidConfig(f"{argument} must be a mapping as {{'client.id': 'training'}}, not {given!r:.100}.")
    for name in given or {}:
        plain = "bootstrap" if str(name) == "bootstrap.servers" else str(name).replace(".", "_").replace("-", "_")
        if plain in refused:
            raise InvalidConfig(f"{argument} may not have {name!r}: {refused[plain]}.")
    try:
        return load(kind, given, {})
    except InvalidConfig as error:
        raise InvalidConfig(f"In {argument}: {error.message}") from None


def consumer_of(given: Any, isolation_level: str | None) -> ConsumerConfig:
    """The configuration for reading, from `consumer_config` and the argument `isolation_level`.

    The argument wins, with a warning when `consumer_config` has another level; the default is `read_committed`.
    """
    keys = dict(given) if isinstance(given, Mapping) else given
    if isinstance(keys, dict) or keys is None:
        keys = keys or {}
        levels = {name: keys[name] for name in keys if str(name).replace(".", "_") == "isolation_level"}
        if isolation_level is not None:
            for name, level in levels.items():
                del keys[name]
                if level != isolation_level:
                    logger.warning(
                        "isolation_level=%s wins; %s=%s in consumer_config is ignored.", isolation_level, name, level
                    )
            keys["isolation_level"] = isolation_level
        elif not levels:
            keys["isolation_level"] = "read_committed"
    return config_of(ConsumerConfig, "consumer_config", keys, REFUSED_OF_CONSUMER)


def positive(name: str, value: Any) -> int | None:
    """The value, if it is a whole number from 1 on, or None. Raises InvalidConfig."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise InvalidConfig(f"{name} must be a whole number from 1 on, not {value!r:.100}.")
    found: int | None = value
    return found
