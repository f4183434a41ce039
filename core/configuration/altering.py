"""The cluster's configuration from its two sources: values given at starts, and alterations while it ran. Pure.

An alteration ranks above a value given at a start, as Kafka's dynamic cluster-wide values rank above the static ones:
a script that starts the cluster does not undo an alteration. Used by the controller, which decides and writes; the
rules for one key are beside its definition (:class:`~raylog.core.configuration.config_key.Change`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from raylog.base.errors import InvalidConfig
from raylog.core.configuration.config import unknown_key, validate_cluster_config
from raylog.core.configuration.config_key import Change
from raylog.core.configuration.config_keys import CLUSTER_KEYS

NEXT_START: Final = frozenset(name for name, key in CLUSTER_KEYS.items() if key.change is Change.NEXT_START)
"""Keys whose alterations take effect at the next start of the cluster."""


@dataclass(frozen=True, slots=True)
class ClusterValues:
    """The cluster's configuration by its sources; a key in neither has its default."""

    config: Mapping[str, str]
    """The values in force."""
    given: Mapping[str, str]
    """Values given at starts of the cluster; a later start replaces an earlier one's value of the same key."""
    altered: Mapping[str, str]
    """Values altered while the cluster ran."""
    start: str = ""
    """Identity of the start since which the cluster runs; empty = not known."""

    @property
    def wanted(self) -> dict[str, str]:
        """The values in force after the next start, if that start gives none."""
        return {**self.given, **self.altered}

    def started(self, given: Mapping[str, str], start: str) -> ClusterValues:
        """Return the values for a controller that starts with this configuration, as part of that start.

        Raises InvalidConfig if the given values conflict with each other or with the alterations.
        """
        after = ClusterValues(self.config, {**self.given, **given}, self.altered, start)
        validate_cluster_config(after.wanted)
        return after._counting(keep=() if start != self.start else NEXT_START)

    def alter(self, changes: Mapping[str, object], delete: Iterable[str], topics: Collection[str]) -> ClusterValues:
        """Return the values after an alteration; raises InvalidConfig if any part of it is refused.

        ``delete``: keys whose alteration ends, so that the value given at a start, or the default, is in force again.
        ``topics``: the topics that exist now.
        """
        removed = set(delete)
        both = sorted(removed & set(changes))
        if both:
            raise InvalidConfig(f"{both[0]!r} is both set and deleted; do one of the two.")
        for name in sorted({*removed, *changes}):
            if name not in CLUSTER_KEYS:
                raise InvalidConfig(unknown_key("cluster", name, CLUSTER_KEYS))
        written = {name: CLUSTER_KEYS[name].read(changes[name]) for name in sorted(changes)}
        written = {name: value for name, value in written.items() if _is_news(name, value, self.wanted)}
        kept = {name: value for name, value in self.altered.items() if name not in removed}
        after = ClusterValues(self.config, self.given, {**kept, **written}, self.start)
        for name in sorted({*removed, *changes}):
            if value_of(name, after.wanted) != value_of(name, self.wanted):
                _check_may_change(name, value_of(name, after.wanted), topics)
        validate_cluster_config(after.wanted)
        return after._counting(keep=NEXT_START)

    def _counting(self, keep: Collection[str]) -> ClusterValues:
        """Return this with the wanted values in force; the keys in ``keep`` keep their present value."""
        config = {name: value for name, value in self.wanted.items() if name not in keep}
        config.update({name: self.config[name] for name in keep if name in self.config})
        validate_cluster_config(config)
        return ClusterValues(config, self.given, self.altered, self.start)


def value_of(name: str, config: Mapping[str, str]) -> str:
    """Return the value of a key of the cluster in this configuration."""
    return config.get(name, CLUSTER_KEYS[name].default)


def _is_news(name: str, value: str, wanted: Mapping[str, str]) -> bool:
    """Return whether an alteration is recorded.

    One that repeats the present value is recorded too, so that a later start does not change it; but not for a key that
    only a start may set, where repeating the value is no alteration.
    """
    return CLUSTER_KEYS[name].change is not Change.START_ONLY or value != value_of(name, wanted)


def _check_may_change(name: str, value: str, topics: Collection[str]) -> None:
    key = CLUSTER_KEYS[name]
    if key.change is Change.START_ONLY:
        raise InvalidConfig(
            f"{name} is not altered while the cluster runs. {key.instead.format(name=name, value=value)}"
        )
    if key.change is Change.UNTIL_CREATED and all(topic in topics for topic in key.fixed_by):
        there = f"{key.fixed_by[0]} exists" if len(key.fixed_by) == 1 else "all the topics that it is for exist"
        raise InvalidConfig(f"{name} counts when a topic is created, and {there}. {key.instead}")
