"""What a replica's process loads: there are many, and each has to start while somebody waits for a topic."""

from tests.unit.packaging.test_public_face import modules_after

NOT_OF_A_REPLICA = (
    "raylog.core.controller",
    "raylog.core.groups",
    "raylog.core.quorum",
    "raylog.client",
    "raylog.actors.broker_server",
    "raylog.actors.controller_server",
    "raylog.actors.group_coordinator_server",
    "raylog.actors.supervisor",
)


def test_a_replica_loads_nothing_of_the_controller_the_groups_or_the_clients() -> None:
    loaded = modules_after("import raylog.actors.ray_replica")
    assert "raylog.actors.replica_server" in loaded
    assert not [name for name in loaded if name.startswith(NOT_OF_A_REPLICA)]


def test_finding_the_controller_does_not_load_what_it_is_made_of() -> None:
    """Ray loads the class of an actor, with its module, into each process that asks for its handle."""
    loaded = modules_after("import raylog.actors.ray_actors")
    assert not [name for name in loaded if name.startswith(NOT_OF_A_REPLICA)]
