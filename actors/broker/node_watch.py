"""Starts a broker on every Ray node that offers the resource ``raylog``. Owned by the controller's actor.

Nodes may join at any time after ``raylog start``, and come back with another Ray id: the broker's identity is in its
data directory, not in the node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from raylog.actors.actor_specs import BrokerSpec, ControllerSpec
from raylog.actors.listening import listeners_in
from raylog.actors.naming import RESOURCE
from raylog.storage.errors import WrongDirectory

logger = logging.getLogger(__name__)

CHECK_S: Final = 2.0
OTHER_CLUSTER: Final = (
    "The broker's directory on %s belongs to another cluster, and is not touched. If this cluster was created by "
    "mistake, on a head without its disk: run `raylog stop`, remove the head's data directory (the one with %s), and "
    "run `raylog start --join`."
)


@dataclass(frozen=True, slots=True)
class Node:
    """A live Ray node that offers the resource: Ray's id and its address."""

    node_id: str
    host: str


def offering(nodes: list[dict[str, Any]]) -> list[Node]:
    """Return the live nodes of ``ray.nodes()`` that offer the resource, by address."""
    found = [
        Node(str(node["NodeID"]), str(node["NodeManagerAddress"]))
        for node in nodes
        if node["Alive"] and node["Resources"].get(RESOURCE)
    ]
    return sorted(found, key=lambda node: (node.host, node.node_id))


class NodeWatch:
    """Checks the cluster's nodes every ``check_s`` seconds, and starts the missing brokers."""

    def __init__(
        self,
        spec: ControllerSpec,
        *,
        nodes: Callable[[], list[dict[str, Any]]],
        make_broker: Callable[[BrokerSpec], Awaitable[None]],
        check_s: float = CHECK_S,
    ) -> None:
        """``nodes`` is ``ray.nodes``, which blocks; ``make_broker`` makes a broker's actor unless it runs."""
        self._check_s = check_s
        self._spec = spec
        self._nodes = nodes
        self._make_broker = make_broker
        self._seen: set[str] = set()
        self._giving: dict[str, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; returns at once."""
        self._task = asyncio.create_task(self._run(), name="node watch")

    async def stop(self) -> None:
        """Stop checking; brokers stay."""
        tasks = [*self._giving.values(), *([] if self._task is None else [self._task])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                self._look(offering(await asyncio.to_thread(self._nodes)))
            except Exception:  # any error: Ray may answer the next time, and nothing else watches the nodes
                logger.exception("the nodes were not looked at, trying again")
            await asyncio.sleep(self._check_s)

    def _look(self, found: list[Node]) -> None:
        """Start the work for each node in a task of its own, so that a node that was just lost delays no other."""
        here = {node.node_id for node in found}
        self._seen &= here
        for node_id, task in list(self._giving.items()):
            if task.done():
                del self._giving[node_id]
            elif node_id not in here:
                task.cancel()
        for node in found:
            if node.node_id not in self._seen and node.node_id not in self._giving:
                self._giving[node.node_id] = asyncio.create_task(self._give_broker(node), name=f"broker on {node.host}")

    async def _give_broker(self, node: Node) -> None:
        folder = self._spec.node_folder
        if folder is None:
            return
        spec = BrokerSpec(
            broker=None,
            folder=folder,
            secret=self._spec.secret,
            cluster_id=self._spec.cluster_id,
            node_id=node.node_id,
            host=node.host,
            allow_plaintext=self._spec.allow_plaintext,
            listeners=listeners_in(self._spec.cluster_config),
        )
        try:
            await self._make_broker(spec)
        except (TimeoutError, OSError, RuntimeError) as error:
            logger.warning("the broker on %s was not started, trying again: %s", node.host, error)
            if WrongDirectory.__name__ in str(error):
                logger.error(OTHER_CLUSTER, node.host, folder)
        else:
            logger.info("node %s has its broker", node.host)
            self._seen.add(node.node_id)
