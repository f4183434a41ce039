"""The connection on which a follower fetches from its leader. Owned by a replica's shell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from raylog.actors.transport import dial
from raylog.base.errors import ConnectionFailed, RaylogError, RequestTimedOut
from raylog.base.ids import NO_EPOCH
from raylog.core.replication.events import SendFetch
from raylog.protocol.replica import REPLICA_FETCH, ReplicaFetchRequest
from raylog.rpc import Connection, Reply, Secret

CONNECT_TIMEOUT_S: Final = 1.0
MAX_WAIT_MS: Final = 500
MAX_FETCH_BYTES: Final = 8 * 1024 * 1024
LINK_BROKEN: Final = ConnectionFailed.code


class FollowerLink:
    """Sends one fetch at a time to the leader's endpoint, and reports its outcome."""

    def __init__(
        self,
        *,
        topic_id: str,
        partition: int,
        broker: int,
        secret: Secret,
        on_answer: Callable[[SendFetch, Reply], None],
        on_failure: Callable[[SendFetch, int, int], None],
        fetch_timeout_s: float,
    ) -> None:
        """``on_failure`` gets the fetch, Kafka's error code and the leader's log start offset (0 = unknown)."""
        self._topic_id = topic_id
        self._partition = partition
        self._broker = broker
        self._secret = secret
        self._on_answer = on_answer
        self._on_failure = on_failure
        self._fetch_timeout_s = fetch_timeout_s
        self._endpoint: tuple[str, int] | None = None
        self._connection: Connection | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    def send(self, fetch: SendFetch, endpoint: tuple[str, int] | None) -> None:
        """Send a fetch to the leader at ``endpoint``. The outcome comes through the callbacks, after this returned."""
        if endpoint != self._endpoint:
            self.disconnect()
            self._endpoint = endpoint
        standing = self._connection
        if standing is not None and not standing.is_closed:
            self._fetch(standing, fetch)
            return
        task = asyncio.create_task(self._connect_and_fetch(fetch, endpoint), name=f"fetch {fetch.request}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def disconnect(self) -> None:
        """Close the connection to the leader; a fetch in flight fails."""
        if self._connection is not None:
            self._connection.close("the leader changed")
            self._connection = None
        self._endpoint = None

    @property
    def is_quiet(self) -> bool:
        """Whether no connection is being opened. A fetch may wait at the leader."""
        return not self._tasks

    async def stop(self) -> None:
        """Close the connection and end every task; no outcome is reported any more."""
        self._is_stopped = True
        self.disconnect()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect_and_fetch(self, fetch: SendFetch, endpoint: tuple[str, int] | None) -> None:
        if endpoint is None:
            await asyncio.sleep(0)
            self._on_failure(fetch, LINK_BROKEN, 0)
            return
        try:
            connection = await self._connected(endpoint)
        except (RaylogError, OSError):
            self._on_failure(fetch, LINK_BROKEN, 0)
        else:
            self._fetch(connection, fetch)

    def _fetch(self, connection: Connection, fetch: SendFetch) -> None:
        """Send the fetch on an open connection. Without a task, for speed: every replicated record passes here."""
        connection.call_then(
            REPLICA_FETCH.name,
            ReplicaFetchRequest(
                self._topic_id,
                self._partition,
                fetch.leader_epoch,
                self._broker,
                fetch.incarnation,
                fetch.fetch_offset,
                fetch.last_fetched_epoch if fetch.last_fetched_epoch is not None else NO_EPOCH,
                fetch.max_bytes if 0 < fetch.max_bytes < MAX_FETCH_BYTES else MAX_FETCH_BYTES,
                fetch.max_wait_ms or MAX_WAIT_MS,
                fetch.log_start_offset,
                int(fetch.disk_failing),
                fetch.lacks_producers,
            ),
            timeout_s=self._fetch_timeout_s + fetch.max_wait_ms / 1000,
            then=partial(self._answered, fetch),
        )

    def _answered(self, fetch: SendFetch, answer: Reply | RaylogError) -> None:
        if self._is_stopped:
            return
        if isinstance(answer, Reply):
            self._on_answer(fetch, answer)
        elif answer.is_remote:
            start = answer.details.get("log_start_offset", 0)
            self._on_failure(fetch, answer.code, start if isinstance(start, int) else 0)
        else:
            if isinstance(answer, RequestTimedOut):
                self._give_up("a fetch was not answered in time")
            self._on_failure(fetch, LINK_BROKEN, 0)

    def _give_up(self, reason: str) -> None:
        """Close a silent connection: after a network failure, a new one works long before the old one does."""
        if self._connection is not None:
            self._connection.abort(reason)
            self._connection = None

    async def _connected(self, endpoint: tuple[str, int]) -> Connection:
        standing = self._connection
        if standing is not None and not standing.is_closed:
            return standing
        host, port = endpoint
        connection = await dial(host, port, secret=self._secret, timeout_s=CONNECT_TIMEOUT_S)
        if endpoint != self._endpoint:
            connection.close("the leader changed while connecting")
            raise ConnectionResetError("the leader changed while connecting")
        self._connection = connection
        return connection
