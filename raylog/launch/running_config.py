"""Settings passed to `raylog.start` that a running cluster does not have. Pure; used by `cluster` and the CLI.

Actors take the cluster's configuration when they are made, so it changes with the next start of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from raylog.core.config import CLUSTER_KEYS, validate_cluster_config


def ignored_settings(wanted: Mapping[str, object], running: Mapping[str, str]) -> dict[str, str]:
    """The legal settings of `wanted` whose values differ from those of the running cluster."""
    return {key: value for key, value in validate_cluster_config(wanted).items() if value != _value(key, running)}


def what_was_ignored(ignored: Mapping[str, str], running: Mapping[str, str]) -> str:
    """The sentence for it, with the values in force and how to change them."""
    differences = ", ".join(
        f"{key}={value} (it runs with {_value(key, running)})" for key, value in sorted(ignored.items())
    )
    return (
        f"The cluster runs already and keeps its configuration; not applied: {differences}. To change it, stop the "
        "cluster with `raylog stop` and start it again with these settings."
    )


def _value(key: str, running: Mapping[str, str]) -> str:
    return running.get(key, str(CLUSTER_KEYS[key].default))
