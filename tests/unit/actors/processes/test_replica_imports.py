"""Modules that a replica's process loads: there are many replicas, and creating a topic waits for their start."""

from tests.unit.packaging.test_public_face import modules_after

NOT_OF_A_REPLICA = (
    "raylog.core.controller",
    "raylog.core.metadata",
    "raylog.core.reassignment",
    "raylog.core.groups",
    "raylog.core.quorum",
    "raylog.client",
    "raylog.actors.broker.server",
    "raylog.actors.controller.server",
    "raylog.actors.groups.server",
    "raylog.actors.transactions.server",
    "raylog.actors.broker.supervisor",
)


def test_a_replica_does_not_load_the_controller_groups_or_clients() -> None:
    loaded = modules_after("import raylog.actors.processes.ray_replica")
    assert "raylog.actors.replica.server" in loaded
    assert not [name for name in loaded if name.startswith(NOT_OF_A_REPLICA)]


def test_finding_the_controller_does_not_load_what_it_is_made_of() -> None:
    """Ray loads the class of an actor, with its module, into each process that gets its handle."""
    loaded = modules_after("import raylog.actors.processes.ray_actors")
    assert not [name for name in loaded if name.startswith(NOT_OF_A_REPLICA)]
