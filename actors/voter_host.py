"""Gives a broker its metadata voter: opened by the first request, and opened again after it failed.

Every broker can be a voter; which ones are is the controller's to know. Works before the broker is registered, because
the controller can only begin when its voters answer.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from raylog.actors.voter import Voter
from raylog.core.errors import KafkaStorageError, NotController
from raylog.rpc import Request
from raylog.storage.directory import parse_partition_folder
from raylog.storage.errors import StorageError


class VoterHost:
    """Owns the voter of one data directory, whose lock its broker holds."""

    def __init__(self, directory: Path) -> None:
        """Nothing is opened or made before the first request."""
        self._directory = directory
        self._voter: Voter | None = None
        self._closing: asyncio.Task[None] | None = None
        self._closed = False

    def on_request(self, request: Request) -> None:
        """Hand a ``voter_*`` request on; fails it when the files cannot be opened now."""
        if self._closed:
            request.fail(NotController("This broker is stopping; ask again."))
            return
        if self._voter is not None and self._voter.failed and self._closing is None:
            self._closing = asyncio.create_task(self._drop(self._voter), name="closing a failed voter")
        if self._closing is not None:
            request.fail(KafkaStorageError("The metadata voter of this broker is being opened again; ask again."))
            return
        if self._voter is None:
            try:
                self._voter = Voter.open(self._directory, holds_data=_holds_data(self._directory))
            except (StorageError, OSError) as error:
                request.fail(KafkaStorageError(f"The metadata voter of this broker cannot be opened: {error}"))
                return
        self._voter.on_request(request)

    async def close(self) -> None:
        """Close the voter cleanly; requests are refused from now on."""
        self._closed = True
        if self._closing is not None:
            await self._closing
        if self._voter is not None:
            voter, self._voter = self._voter, None
            await voter.close()

    async def _drop(self, voter: Voter) -> None:
        try:
            await voter.close()
        finally:
            self._voter = self._closing = None


def _holds_data(directory: Path) -> bool:
    return any(parse_partition_folder(folder.name) is not None for folder in directory.iterdir())
