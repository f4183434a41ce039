"""The faults that `test_smoke.py` leaves out, once each: lost nodes, cut links, workers that copy, replicas at rest."""

from pathlib import Path

import pytest

from tests.chaos.test_smoke import TIMEOUT_S, injure

pytestmark = [pytest.mark.long, pytest.mark.chaos, pytest.mark.timeout(TIMEOUT_S + 40)]


def test_clients_see_nothing_wrong_while_a_leaders_node_is_lost(tmp_path: Path) -> None:
    injure("nodes", "kill-leader-node", tmp_path)


def test_histories_are_sound_while_dozing_and_sleeping_ones_are_struck(tmp_path: Path) -> None:
    injure("processes", "strike-dozers,strike-sleepers", tmp_path)


def test_each_record_is_copied_once_while_workers_and_coordinators_die(tmp_path: Path) -> None:
    injure("copies", "kill-worker,kill-transaction-coordinator,kill-group-coordinator,kill-both-ends", tmp_path)


def test_histories_are_sound_while_links_are_cut_and_controllers_compete(tmp_path: Path) -> None:
    found = injure("network", "mute-leader,two-controllers", tmp_path)
    if "left_out" in found:
        pytest.skip(found["left_out"])
