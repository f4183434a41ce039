"""The priority of the workers of a Ray that is started for Raylog."""

from __future__ import annotations

import os

import pytest

from raylog.priority import WORKER_NICENESS, let_workers_serve


def test_workers_serve_at_the_usual_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WORKER_NICENESS, raising=False)
    let_workers_serve()
    assert os.environ[WORKER_NICENESS] == "0"


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKER_NICENESS, "7")
    let_workers_serve()
    assert os.environ[WORKER_NICENESS] == "7"
