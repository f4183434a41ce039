"""Which nodes `raylog stop --nodes` ends. (That it ends them: tests/hosts.)"""

from typing import Any

import pytest
from click.testing import CliRunner

from raylog.cli.cluster.lifecycle import stop
from raylog.launch.other_nodes import nodes_elsewhere


def node(name: str, address: str, *, alive: bool = True) -> dict[str, Any]:
    return {"NodeID": name, "NodeManagerAddress": address, "Alive": alive}


def test_living_nodes_on_other_machines_are_ended() -> None:
    nodes = [node("a", "10.0.0.1"), node("b", "10.0.0.2"), node("c", "10.0.0.3"), node("d", "10.0.0.4", alive=False)]
    assert nodes_elsewhere(nodes, "a") == {"b": "10.0.0.2", "c": "10.0.0.3"}


def test_nodes_that_share_the_machine_are_left_alone() -> None:
    """`ray stop` ends every Ray of a machine: the one of this process too, and those of other people."""
    nodes = [node("a", "127.0.0.1"), node("b", "127.0.0.1")]
    assert nodes_elsewhere(nodes, "a") == {}


@pytest.mark.parametrize("more", [["--broker", "1"], ["--keep-ray"]])
def test_it_is_refused_beside_what_leaves_ray_running(more: list[str]) -> None:
    done = CliRunner().invoke(stop, ["--nodes", *more])
    assert done.exit_code == 2
    assert "--nodes ends Ray on the other machines" in done.output
