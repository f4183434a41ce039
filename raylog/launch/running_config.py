"""Settings passed to `raylog.start` that have no effect. Pure; used by `cluster` and the command line.

A cluster that runs already keeps its own settings. In a cluster that was started, values altered while it ran before
win over the values of the start.
"""

from __future__ import annotations

from collections.abc import Mapping

from raylog.core.configuration.config import validate_cluster_config
from raylog.core.configuration.config_keys import CLUSTER_KEYS


def ignored_settings(wanted: Mapping[str, object], running: Mapping[str, str]) -> dict[str, str]:
    """The settings of `wanted` whose values differ from those of the cluster. Raises InvalidConfig for illegal ones."""
    return {key: value for key, value in validate_cluster_config(wanted).items() if value != _value(key, running)}


def what_was_ignored(ignored: Mapping[str, str], running: Mapping[str, str], *, was_started: bool = False) -> str:
    """The sentence for it, with the values in force and how to change them. `was_started`: this start started it."""
    differences = ", ".join(
        f"{key}={value} (it runs with {_value(key, running)})" for key, value in sorted(ignored.items())
    )
    if was_started:
        return (
            f"Altered while the cluster ran, which ranks above what a start gives; not applied: {differences}. "
            "`raylog config alter --delete-config KEY` ends an alteration."
        )
    return (
        f"The cluster runs already and keeps its configuration; not applied: {differences}. "
        "`raylog config alter --config KEY=VALUE` changes most settings while it runs."
    )


def _value(key: str, running: Mapping[str, str]) -> str:
    return running.get(key, str(CLUSTER_KEYS[key].default))
