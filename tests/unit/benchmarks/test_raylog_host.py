"""The process that holds a cluster for the harness: what it answers when a command fails."""

from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.peers import raylog_host
from benchmarks.peers.processes import Unavailable
from benchmarks.peers.raylog_peer import Raylog
from raylog.core.errors import NoClusterFound
from raylog.launch.cluster import Cluster


class Silent:
    """A cluster whose controller does not answer."""

    def replicas(self) -> list[dict[str, Any]]:
        raise NoClusterFound("the controller does not answer")


def test_a_command_that_fails_is_answered_with_its_reason() -> None:
    found = raylog_host.answer(cast(Cluster, Silent()), "kill", ["a topic"])
    assert found == {"failed": "Raylog did not answer to kill: the controller does not answer"}


def test_a_cluster_that_was_not_started_is_unavailable(tmp_path: Path) -> None:
    peer = Raylog(tmp_path, 1)
    assert not peer.runs()
    with pytest.raises(Unavailable, match="does not run"):
        peer.pids()


def test_the_host_reports_whether_the_modules_are_compiled(tmp_path: Path) -> None:
    assert Raylog(tmp_path, 1).describe()["modules"] in ("interpreted", "compiled")
