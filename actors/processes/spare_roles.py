"""Roles of spares: which replica an actor is, by notes in the broker's data directory and by the actors' replies.

The broker writes the note before the spare becomes the replica. A spare that Ray restarts reads it, and continues as
that replica on its own. A note is valid as long as its actor exists; the broker removes the others. Used by brokers,
replicas, and every search for the actor of a replica.
"""

from __future__ import annotations

import json
import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, Final

from raylog.actors import notes
from raylog.actors.actor_specs import ReplicaSpec, SpareSpec
from raylog.actors.naming import NAMESPACE, SPARE_PREFIX, replica_name
from raylog.base.errors import DataDirectoryError
from raylog.rpc import Secret

ROLES_FOLDER: Final = "roles"
QUERY_S: Final = 5.0
_NOTED: Final = (
    "topic_id",
    "topic",
    "partition",
    "broker",
    "replication_factor",
    "topic_config",
    "cluster_config",
    "host",
    "catch_up_bytes_per_s",
)
"""Fields of the note. The spare knows the directory and the secret, so these are not in the note."""


def name_of(spec: ReplicaSpec) -> str:
    """Return the name of a replica; its actor has the same name, unless the actor was a spare."""
    return replica_name(spec.topic, spec.partition, spec.broker, spec.topic_id)


def role_file(data_directory: Path, actor: str) -> Path:
    """Return the path of the note about an actor."""
    return data_directory / ROLES_FOLDER / actor.rpartition(":")[2]


def write_role(file: Path, spec: ReplicaSpec) -> None:
    """Note, atomically for readers, that the file's actor is this replica from now on. Raises OSError.

    The note is not synced, because it only has to outlive processes: when the machine fails, the actor ends too.
    """
    file.parent.mkdir(mode=0o700, exist_ok=True)
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    note = {key: getattr(spec, key) for key in (*_NOTED, "allow_plaintext")}
    notes.written(fresh, json.dumps(note, default=dict))
    fresh.replace(file)


def read_role(spare: SpareSpec) -> ReplicaSpec | None:
    """Return the replica that this spare has become, or None. Raises DataDirectoryError for a damaged note."""
    try:
        note = json.loads(spare.role_file.read_text(encoding="utf-8"))
        given = {key: note[key] for key in _NOTED}
        allows_plaintext = note["allow_plaintext"] is True
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataDirectoryError(
            f"{spare.role_file} does not say which replica its process is ({error!r}); remove the file and restart "
            "the broker."
        ) from None
    return ReplicaSpec(
        **given,
        data_directory=spare.data_directory,
        secret=spare.secret,
        allow_plaintext=allows_plaintext,
    )


def noted_roles(data_directory: Path, secret: Secret) -> list[tuple[Path, ReplicaSpec | None]]:
    """Return all notes of a data directory with their replicas; None = the note cannot be read."""
    found: list[tuple[Path, ReplicaSpec | None]] = []
    folder = data_directory / ROLES_FOLDER
    for file in sorted(folder.iterdir()) if folder.is_dir() else []:
        try:
            spec = read_role(SpareSpec(role_file=file, data_directory=data_directory, secret=secret))
        except DataDirectoryError:
            spec = None
        found.append((file, spec))
    return found


def actors_by_role(known: MutableMapping[str, str], timeout_s: float = QUERY_S) -> dict[str, str]:
    """Return the Ray names of all Raylog actors by role; for a replica in a former spare, that is the replica's name.

    A spare without a replica, or one that does not answer, is listed under its own name. ``known`` remembers roles
    (replica by actor) between calls: roles do not change, so a hanging actor is still recognised.
    """
    import ray

    listed: list[dict[str, str]] = ray.util.list_named_actors(all_namespaces=True)
    names = sorted(entry["name"] for entry in listed if entry["namespace"] == NAMESPACE)
    for ended in known.keys() - set(names):
        del known[ended]
    queries: dict[str, Any] = {}
    for name in names:
        if name.startswith(SPARE_PREFIX) and name not in known:
            try:
                queries[name] = ray.get_actor(name, namespace=NAMESPACE).role.remote()
            except ValueError:
                continue  # it ended since it was listed
    if queries:
        done, _ = ray.wait(list(queries.values()), num_returns=len(queries), timeout=timeout_s)
        for name, answer in queries.items():
            try:
                role = ray.get(answer) if answer in done else ""
            except ray.exceptions.RayError:
                role = ""
            if role:
                known[name] = role
    return {known.get(name, name): name for name in names}
