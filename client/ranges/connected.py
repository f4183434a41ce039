"""Keeps the client of a process's last plan, and what was learned with it, for the next plan.

Spark plans all queries of a session in processes that it uses again, and most of the time of a plan is for connecting.
Used by planning.py. May touch: the network, the event loop's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.kept import Kept
from raylog.client.ranges.cutting import RecordSizes
from raylog.client.task_tokens import TaskTokens


@dataclass(frozen=True, slots=True)
class Connected:
    """A started client, with the sizes of records and the tokens that were made with it."""

    client: ClusterClient
    sizes: RecordSizes = field(default_factory=RecordSizes)
    tokens: TaskTokens = field(default_factory=TaskTokens)

    async def close(self) -> None:
        """Close the client."""
        await self.client.close()


KEPT: Kept[Connected] = Kept(Connected.close, at_most=1)
"""The client that this process keeps."""
