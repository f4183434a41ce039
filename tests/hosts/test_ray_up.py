"""`ray up` with the shipped `cluster.yaml`: a laptop, a head and two workers are namespaces of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.hosts.entering import play, programs_of_hosts
from tests.hosts.environment import build_wheel
from tests.hosts.programs import LeftOut

STORY_TIMEOUT_S: Final = 840.0

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def programs() -> str:
    """The folder with this machine's missing programs, empty when none is missing."""
    try:
        return programs_of_hosts()
    except LeftOut as reason:
        pytest.skip(str(reason))


def test_a_cluster_on_hosts_reached_by_ssh(programs: str, tmp_path: Path) -> None:
    """One command starts three brokers; they outlive the loss of a host, `ray down` and `ray up` on the same disks."""
    build_wheel(tmp_path)
    try:
        print(play("tests.hosts.story", tmp_path, programs, STORY_TIMEOUT_S))
    except AssertionError as failure:
        pytest.fail(str(failure), pytrace=False)
