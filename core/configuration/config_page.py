"""docs/configuration.md, made from the keys. Pure.

`python -m raylog.core.configuration.config_page > docs/configuration.md` makes it.
"""

from __future__ import annotations

from typing import Final

from raylog.core.config import CLUSTER_KEYS, TOPIC_KEYS

FIRST: Final = "0.1"
SINCE: Final = dict.fromkeys(
    (
        "log.message.timestamp.after.max.ms",
        "log.message.timestamp.before.max.ms",
        "log.retention.check.interval.ms",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "metrics.listen",
        "metrics.per.partition",
        "metrics.port",
        "replica.sync.time.max.ms",
    ),
    "0.2",
) | dict.fromkeys(
    (
        "advertised.listeners",
        "delete.retention.ms",
        "listeners",
        "log.cleaner.backoff.ms",
        "log.cleaner.io.max.bytes.per.second",
        "log.scrub.bytes.per.second",
        "log.scrub.interval.ms",
        "max.compaction.lag.ms",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "producer.id.expiration.ms",
        "replica.doze.after.ms",
        "replica.sleep.after.ms",
    ),
    "0.3",
)
"""Release that brought a key, where that is not the first one."""


def to_markdown() -> str:
    """Return docs/configuration.md."""
    lines = [
        "# Configuration",
        "",
        "Generated from `core/config.py` by "
        "`python -m raylog.core.configuration.config_page > docs/configuration.md`; do not edit.",
        "Names are Kafka's; where a default differs from Kafka's, the text says so.",
        "",
    ]
    sections = (
        ("Topics", "Given to `Admin.create_topic(config=...)`, changed with `raylog topic`.", TOPIC_KEYS),
        ("Cluster", "Given to `raylog.start(config=...)`; kept in the metadata log.", CLUSTER_KEYS),
    )
    for title, intro, keys in sections:
        lines += [f"## {title}", "", intro, "", "| key | default | legal | meaning | since |", "|---|---|---|---|---|"]
        for name in sorted(keys):
            key, since = keys[name], SINCE.get(name, FIRST)
            default = key.computed or f"`{key.default}`"
            lines.append(f"| `{name}` | {default} | {key.legal()} | {key.doc} | {since} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    print(to_markdown(), end="")
