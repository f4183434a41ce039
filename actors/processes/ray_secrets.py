"""Finds the secrets for a Ray actor on the node that it runs on.

The secrets are in files of the data directory, because Ray keeps constructor arguments and must not have them. An actor
on a node without these files gets the secrets from the controller or a broker by a Ray call; a broker then writes them
to its disk.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Final

import ray

from raylog.actors.naming import CONTROLLER
from raylog.actors.processes.ray_support import FIND_TIMEOUT_S, answer, handle_of, listed_names
from raylog.base.errors import DataDirectoryError
from raylog.rpc import Credentials, Secret
from raylog.rpc.auth.credentials import to_listen
from raylog.rpc.auth.secret_files import CLUSTER_FILE, SecretFileError, SecretFiles, copy_secrets

logger = logging.getLogger(__name__)

QUERY_S: Final = 30.0
RETRY_S: Final = 0.2


async def secret_here(given: Secret, *, keep: bool = False) -> Secret:
    """Return the source of the secrets on this node. ``keep``: write them to this node's disk if they are missing.

    Raises :class:`DataDirectoryError` if they cannot be read, or if no actor that has them answers.
    """
    if not isinstance(given, SecretFiles):
        return given
    home = os.environ.get("RAYLOG_DATA_DIR")
    places = [Path(home), given.folder] if home else [given.folder]
    try:
        for folder in places:
            files = SecretFiles(folder)
            if files.exists:
                files()
                return files
        credentials = await _query(places[0])
        if not keep:
            return credentials
        await asyncio.to_thread(copy_secrets, places[0], credentials)
    except (SecretFileError, OSError) as error:
        raise DataDirectoryError(str(error)) from None
    return SecretFiles(places[0])


def values_of(secret: Secret) -> tuple[list[str], list[str]]:
    """Return the values of both secrets in hexadecimal, for an actor that requests them."""
    credentials = to_listen(secret)
    return [value.hex() for value in credentials.cluster], [value.hex() for value in credentials.client]


async def _query(folder: Path) -> Credentials:
    """Query the controller and the brokers until one replies. Raises DataDirectoryError after QUERY_S."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + QUERY_S
    while True:
        for name in await _holders():
            try:
                handle = await handle_of(name)
                cluster, client = await answer(handle.secrets.remote(), FIND_TIMEOUT_S)
            except (ValueError, TimeoutError, ray.exceptions.RayError) as error:
                logger.debug("%s did not give the secrets: %s", name, type(error).__name__)
                continue
            return Credentials.of_cluster([*map(bytes.fromhex, cluster)], [*map(bytes.fromhex, client)])
        if loop.time() >= deadline_s:
            raise DataDirectoryError(
                f"{folder / CLUSTER_FILE} is missing, and no controller or broker answers that has the secret: copy "
                "the file from another node's data directory."
            )
        await asyncio.sleep(RETRY_S)


async def _holders() -> list[str]:
    """Return the names of the actors that may have the secrets, the controller first."""
    me = ray.get_runtime_context().get_actor_name()
    try:
        names = sorted(name for name in await listed_names("") if name != me)
    except (TimeoutError, ray.exceptions.RayError) as error:
        logger.debug("Ray does not list its actors: %r", error)
        return []
    return [name for name in names if name == CONTROLLER] + [name for name in names if name.startswith("broker-")]
