"""Modules that a replica's process loads: there are many replicas, and creating a topic waits for their start."""

from raylog.actors.processes.fork_server import SHARED
from raylog.actors.processes.ray_support import UNUSED
from tests.unit.packaging.test_public_face import modules_after

NOT_OF_A_REPLICA = (
    "raylog.core.controller",
    "raylog.core.metadata",
    "raylog.core.groups",
    "raylog.core.quorum",
    "raylog.client",
    "raylog.actors.broker.server",
    "raylog.actors.controller.server",
    "raylog.actors.groups.server",
    "raylog.actors.transactions.server",
    "raylog.actors.broker.supervisor",
)
LOOK_AT_THEIR_ACTOR = {"raylog.actors.processes.ray_replica"}
"""Modules that cannot be imported before the fork: they look at the actor that they are loaded for."""


def test_a_replica_does_not_load_the_controller_groups_or_clients() -> None:
    loaded = modules_after("import raylog.actors.processes.ray_replica")
    assert "raylog.actors.replica.server" in loaded
    assert not [name for name in loaded if name.startswith(NOT_OF_A_REPLICA)]


def test_finding_the_controller_does_not_load_what_it_is_made_of() -> None:
    """Ray loads the class of an actor, with its module, into each process that gets its handle."""
    loaded = modules_after("import raylog.actors.processes.ray_actors")
    assert not [name for name in loaded if name.startswith(NOT_OF_A_REPLICA)]


def test_what_a_replica_loads_is_shared_by_all_workers_of_a_node() -> None:
    """A module that is imported after the fork is in the memory of each replica once more."""
    shared = modules_after(f"import {', '.join(SHARED)}")
    of_a_topic = "from raylog.actors.replica.leader_roles import roles_of; roles_of('orders')"
    loaded = modules_after(f"import raylog.actors.processes.ray_replica, raylog.actors.dozing.resting; {of_a_topic}")
    own = {name for name in loaded if name.startswith("raylog.")} - shared
    assert own == LOOK_AT_THEIR_ACTOR


def test_the_fork_server_imports_no_library_that_workers_leave_out() -> None:
    assert not modules_after(f"import {', '.join(SHARED)}").intersection(UNUSED)
