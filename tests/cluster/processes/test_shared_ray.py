"""The Ray that files of tests share: what one leaves behind, and what the next one finds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import raylog
from tests.cluster import shared_ray
from tests.cluster.ray_support import actor_names
from tests.cluster.shared_ray import SharedRay, shared_ray_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def test_between_two_files_there_is_no_ray_and_the_cluster_stays(
    pytestconfig: pytest.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    before = dict(os.environ)
    shared = shared_ray_of(pytestconfig)
    with shared.joined():
        shared.stop_cluster()
        cluster_id = raylog.start(tmp_path).status()["cluster_id"]
        ray.shutdown()  # as a file may do that believes to be alone
    assert not ray.is_initialized()
    assert dict(os.environ) == before
    with shared.joined():
        assert raylog.connect().status()["cluster_id"] == cluster_id
        shared.stop_cluster()
        assert actor_names() == []


def test_it_ends_when_it_is_idle_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [1_000.0]
    monkeypatch.setattr(shared_ray, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    ends: list[float] = []
    shared = SharedRay()
    monkeypatch.setattr(shared, "end", lambda: ends.append(now_s[0]))
    now_s[0] += 10 * shared_ray.IDLE_S
    shared.end_if_idle()
    assert ends == [], "it does not run, or this process has joined it"
    shared._left_s = now_s[0]
    now_s[0] += shared_ray.IDLE_S
    shared.end_if_idle()
    assert ends == []
    now_s[0] += 1
    shared.end_if_idle()
    assert ends == [now_s[0]]


def test_a_holder_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_ray, "END_S", 0.1)
    command = [sys.executable, "-c", "import signal; print('ready', flush=True); signal.pause()"]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    with pytest.raises(subprocess.TimeoutExpired):
        shared_ray.end(holder)
    assert holder.returncode == -9
