"""The client of a process's last plan, and what plans have learned with it, kept for the next plan.

Spark plans all queries of a session in processes that it uses again, and connecting is most of what a plan takes. Used
by planning.py. May touch: the network, the event loop's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.kept import Kept
from raylog.client.ranges.cutting import RecordSizes
from raylog.client.task_tokens import TaskTokens


@dataclass(frozen=True, slots=True)
class Connected:
    """A started client, and what belongs to it."""

    client: ClusterClient
    sizes: RecordSizes = field(default_factory=RecordSizes)
    tokens: TaskTokens = field(default_factory=TaskTokens)

    async def close(self) -> None:
        """Close the client."""
        await self.client.close()


KEPT: Kept[Connected] = Kept(Connected.close, at_most=1)
"""That of this process."""
