"""Generates docs/configuration.md from the keys of topics, of the cluster and of the clients. Pure.

Run `python -m raylog.client.config_page > docs/configuration.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import Field
from typing import Any, Final

from raylog.client.config import (
    ALIASES,
    AdminConfig,
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    QueueConsumerConfig,
    kafka_name,
    keys_of,
)
from raylog.core.configuration.config_key import Change, ConfigKey
from raylog.core.configuration.config_keys import CLUSTER_KEYS, TOPIC_KEYS

FIRST: Final = "0.1"
SINCE: Final = dict.fromkeys(
    (
        "advertised.listeners",
        "delete.retention.ms",
        "listeners",
        "log.cleaner.backoff.ms",
        "log.cleaner.io.max.bytes.per.second",
        "log.message.timestamp.after.max.ms",
        "log.message.timestamp.before.max.ms",
        "log.retention.check.interval.ms",
        "log.scrub.bytes.per.second",
        "log.scrub.interval.ms",
        "max.compaction.lag.ms",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "metrics.listen",
        "metrics.per.partition",
        "metrics.port",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "producer.id.expiration.ms",
        "replica.doze.after.ms",
        "replica.sleep.after.ms",
        "replica.sync.time.max.ms",
    ),
    "0.2",
)
"""The release that introduced a key of topics or the cluster, if it was not the first one."""
CLUSTER: Final = (
    "Given to `raylog.start(config=...)`, and altered while the cluster runs with `raylog config alter` or "
    "`Admin.alter_cluster_config` ([which value counts](operations.md#settings-of-the-cluster)); kept in the metadata "
    "log. *A change counts*: `at once`; `at the next start` of the cluster; only when `given at a start`; or until the "
    "topics exist that the key is for."
)
"""The introduction to the table of the cluster's keys."""
CLIENTS: Final = (
    (
        "All clients",
        ClientConfig,
        "Given to the constructor of each client: `Producer(linger_ms=5)`. `config=` takes the same keys in Kafka's "
        "spelling, and values as text, as files have them: "
        '`Consumer("flights", config={"group.id": "board", "max.poll.records": "500"})`. A keyword wins over '
        "`config=`; None is the default; an unknown key is an error that names the nearest one. Editors and type "
        "checkers know the keywords with their types. Without `bootstrap` a client finds the cluster of the Ray "
        "session that it runs in; with it, `secret` or `token` is needed ([which one](operations.md#the-secrets)).",
    ),
    (
        "Producer",
        ProducerConfig,
        "Of `Producer`, `AsyncProducer`, the producers of half messages, and the outbox's relay; besides those of all "
        "clients.",
    ),
    (
        "Consumer",
        ConsumerConfig,
        "Of `Consumer` and `AsyncConsumer`; besides those of all clients. Where a group has committed nothing, "
        "reading begins at `auto_offset_reset`: by default at the end, as in Kafka, so what was produced before is "
        "not read. Set `earliest` to read it.",
    ),
    ("Admin", AdminConfig, "`Admin` and `AsyncAdmin` have the keys of all clients, and no others."),
    (
        "Queue consumer",
        QueueConsumerConfig,
        "Of `QueueConsumer` and `AsyncQueueConsumer`; besides those of all clients. Keys *of the group* have to be the "
        "same for all its members; left out, the topic's `queue.*` keys decide. A queue begins at the earliest record, "
        "unlike a consumer.",
    ),
)
"""The sections of clients: title, keys, and introduction."""


def to_markdown() -> str:
    """Return the text of docs/configuration.md."""
    lines = [
        "# Configuration",
        "",
        "Generated from the keys of `core/configuration/config_keys.py` and `client/config.py` by "
        "`python -m raylog.client.config_page > docs/configuration.md`; do not edit.",
        "Names are Kafka's; where a default differs from Kafka's, the text says so.",
        "",
        "[Topics](#topics) and the [cluster](#cluster); the clients: what [all](#all-clients) have, "
        "[producer](#producer), [consumer](#consumer), [admin](#admin) and [queue consumer](#queue-consumer).",
        "",
    ]
    lines += _of_brokers(
        "Topics", "Given to `Admin.create_topic(config=...)`, changed with `raylog topic`.", TOPIC_KEYS
    )
    lines += _of_brokers("Cluster", CLUSTER, CLUSTER_KEYS, has_changes=True)
    for title, kind, intro in CLIENTS:
        lines += [f"## {title}", "", intro, ""]
        lines += _of_client(own_keys(kind))
    others = ", ".join(f"`{alias}` for `{name}`" for alias, name in sorted(ALIASES.items()))
    lines += ["## Other names", "", f"Keywords and `config=` also take what other clients call a key: {others}.", ""]
    return "\n".join(lines).rstrip() + "\n"


def own_keys(kind: type[ClientConfig]) -> list[Field[Any]]:
    """The keys of a client besides those that all clients share; for `ClientConfig` the shared ones."""
    shared = {} if kind is ClientConfig else keys_of(ClientConfig)
    return [field for name, field in keys_of(kind).items() if name not in shared]


def _of_brokers(title: str, intro: str, keys: Mapping[str, ConfigKey], *, has_changes: bool = False) -> list[str]:
    columns = ["key", "default", "legal", "meaning", *(["a change counts"] if has_changes else []), "since"]
    lines = [f"## {title}", "", intro, "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name in sorted(keys):
        key = keys[name]
        cells = [f"`{name}`", key.computed or f"`{key.default}`", key.legal(), key.doc]
        cells += [*([_change(key)] if has_changes else []), SINCE.get(name, FIRST)]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _change(key: ConfigKey) -> str:
    if key.change is not Change.UNTIL_CREATED:
        return key.change.value
    return "until " + ", ".join(f"`{topic}`" for topic in key.fixed_by) + (" exist" if key.fixed_by[1:] else " exists")


def _of_client(keys: Iterable[Field[Any]]) -> list[str]:
    rows = [
        f"| `{key.name}` | `{kafka_name(key.name)}` | {_default(key)} | {_legal(key)} | {key.metadata['doc']} |"
        for key in keys
    ]
    if not rows:
        return []
    return ["| keyword | in `config=` | default | legal | meaning |", "|---|---|---|---|---|", *rows, ""]


def _default(key: Field[Any]) -> str:
    if key.default is None:
        return "see meaning" if "efault" in key.metadata["doc"] else "none"
    text = str(key.default).lower() if isinstance(key.default, bool) else str(key.default)
    return f"`{text}`"


def _legal(key: Field[Any]) -> str:
    facts = key.metadata
    if facts["one_of"]:
        return "one of " + ", ".join(str(value) for value in facts["one_of"])
    if facts["low"] is not None:
        return f"at least {facts['low']}"
    if str(key.type).startswith("bool"):
        return "true or false"
    return "text" if str(key.type).startswith("str") and not facts["accepts"] else "see meaning"


if __name__ == "__main__":
    print(to_markdown(), end="")
