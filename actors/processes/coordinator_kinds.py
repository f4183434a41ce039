"""Makes the server of each kind of coordinator. It is imported when needed, because a process runs one kind.

A module of its own, because it needs no Ray: what runs coordinators without Ray's actors uses it as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raylog.actors.actor_specs import CoordinatorSpec
from raylog.actors.controller_link import FindController

if TYPE_CHECKING:
    from raylog.actors.coordinators.server import CoordinatorServer


def coordinator_server(
    spec: CoordinatorSpec, *, find_controller: FindController, on_fatal: Callable[[str], None]
) -> CoordinatorServer[Any]:
    """Return a server for a coordinator of the specified kind, not started yet."""
    if spec.kind == "transaction":
        from raylog.actors.transactions.server import TransactionCoordinatorServer

        return TransactionCoordinatorServer(spec, find_controller=find_controller, on_fatal=on_fatal)
    from raylog.actors.groups.server import GroupCoordinatorServer

    return GroupCoordinatorServer(spec, find_controller=find_controller, on_fatal=on_fatal)
