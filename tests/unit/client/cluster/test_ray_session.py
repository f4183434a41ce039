"""How a Ray of one's own is started. (That it is found again: tests/cluster.)"""

import pytest

from raylog.client.cluster.ray_session import NICENESS_VARIABLE, own_ray_options


def test_servers_do_not_stand_back_for_their_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NICENESS_VARIABLE, raising=False)
    assert own_ray_options()["_system_config"] == {"worker_niceness": 0}


def test_the_niceness_can_be_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NICENESS_VARIABLE, "5")
    assert own_ray_options()["_system_config"] == {"worker_niceness": 5}
