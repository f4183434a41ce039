"""Decides when a cluster that was just started counts as serving. Pure; used by ``raylog.launch.cluster``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

FOLLOWERS_WAIT_S: Final = 15.0
"""How long a start waits for absent in-sync replicas and for partitions without a leader, which may never come."""


class Readiness:
    """Checks the controller's status repeatedly until the cluster serves."""

    def __init__(self, wanted: Mapping[int | str, str], embedded: bool) -> None:
        """``wanted`` has the host of each broker to wait for, by its id, or by Ray's node id unless ``embedded``."""
        self._wanted = wanted
        self._embedded = embedded
        self._led_since_s: float | None = None
        self._slept: frozenset[tuple[str, int]] | None = None
        """Partitions that slept when all brokers were online: not waited for, as they wake later or when used."""
        self.problem = "no status yet"
        """What was missing at the last check, as a text for errors."""
        self.so_far = ""
        """The progress at the last check, in one line; "" before the first check."""
        self.hopeless: list[str] = []
        """Partitions without a leader, if the last check accepted the cluster although no replica can lead them."""

    def look(self, status: Mapping[str, Any], now_s: float, nodes_here: Callable[[], set[int | str]]) -> bool:
        """Return whether the cluster serves, by its status; ``nodes_here`` returns the nodes that Ray lists now."""
        missing = self._missing(status, nodes_here)
        rows = {(topic, row["partition"]): row for topic, found in status["topics"].items() for row in found}
        if self._slept is None and not missing:
            self._slept = frozenset(place for place, row in rows.items() if row.get("asleep"))
        awaited = {place: row for place, row in rows.items() if place not in (self._slept or ())}
        self.so_far = self._how_far(awaited, len(missing))
        leaderless = _leaderless(awaited)
        names = ", ".join(leaderless) or "none"
        self.problem = f"brokers missing on: {missing or 'no host'}; partitions without a leader: {names}"
        if missing:
            return False
        self._led_since_s = now_s if self._led_since_s is None else self._led_since_s
        patient = now_s - self._led_since_s <= FOLLOWERS_WAIT_S
        if self._embedded and leaderless:
            # A partition that cannot come back must not keep the whole cluster from starting: if all its replicas on
            # present brokers have reported and there is still no leader, the disk with its records is missing.
            here = set(self._wanted)
            if patient or not all(set(item["replicas"]) & here <= set(item["online"]) for item in leaderless.values()):
                return False
            self.hopeless = list(leaderless)
            return True
        # Writes with acks=all wait for every in-sync replica, so wait for these too, but only for a limited time. On a
        # cluster of nodes do not wait for them: nodes may still be starting, which takes an unknown time.
        absent = any(set(row["isr"]) - set(row["online"]) for row in awaited.values())
        return not (self._embedded and absent and patient)

    def _how_far(self, awaited: Mapping[tuple[str, int], Mapping[str, Any]], missing: int) -> str:
        if missing:
            return f"{max(0, len(self._wanted) - missing):,} of {len(self._wanted):,} brokers online"
        awake = [row for row in awaited.values() if not row.get("asleep")]
        wanted = sum(len(row["replicas"]) for row in awake)
        if not wanted:
            return "no replica has to start; waiting for the brokers"
        return f"{sum(len(set(row['online']) & set(row['replicas'])) for row in awake):,} of {wanted:,} replicas ready"

    def _missing(self, status: Mapping[str, Any], nodes_here: Callable[[], set[int | str]]) -> list[str]:
        key = "broker" if self._embedded else "node_id"
        online = {broker[key] for broker in status["brokers"] if broker["online"]}
        missing = {name: host for name, host in self._wanted.items() if name not in online}
        if missing and not self._embedded:
            # Ray notices only after a while that a node is lost: a node that it listed at first may be lost by now.
            here = nodes_here()
            missing = {name: host for name, host in missing.items() if name in here}
        return sorted(missing.values())


def _leaderless(awaited: Mapping[tuple[str, int], Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {f"{topic}-{number}": row for (topic, number), row in awaited.items() if row["leader"] not in row["online"]}
