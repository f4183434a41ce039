"""Settings passed to `raylog.start` that the cluster does not have then. Pure; used by `cluster` and the CLI.

One that runs already keeps its own; one that was started has what was altered while it ran, which ranks above.
"""

from __future__ import annotations

from collections.abc import Mapping

from raylog.core.config import CLUSTER_KEYS, validate_cluster_config


def ignored_settings(wanted: Mapping[str, object], running: Mapping[str, str]) -> dict[str, str]:
    """The legal settings of `wanted` whose values differ from those of the cluster."""
    return {key: value for key, value in validate_cluster_config(wanted).items() if value != _value(key, running)}


def what_was_ignored(ignored: Mapping[str, str], running: Mapping[str, str], *, was_started: bool = False) -> str:
    """The sentence for it, with the values in force and how to change them. `was_started`: by this start."""
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
