"""The part ``spark`` without Spark: it counts the copies of each record, and keeps a driver running."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

import raylog
from tests.chaos.copies.worker import RESULTS, SOURCE
from tests.chaos.spark import keeper as keeping
from tests.chaos.spark.keeper import Keeper
from tests.chaos.spark.query import QuerySpec
from tests.chaos.spark.tally import Records, tally
from tests.waiting import wait_for

FROM = raylog.TopicPartition(SOURCE, 0)
TO = raylog.TopicPartition(RESULTS, 0)
INPUTS: Records = {FROM: {0: b"a|x", 2: b"b", 3: b"c"}}


def copies(*values: bytes) -> Records:
    return {TO: dict(enumerate(values))}


def test_one_copy_of_each_record_is_right() -> None:
    found = tally(INPUTS, copies(b"0@0|1|a|x", b"0@2|1|b", b"0@3|2|c"))
    assert (found.once, found.anomalies()) == (3, [])


@pytest.mark.parametrize(
    ("results", "kind"),
    [
        ((b"0@0|1|a|x", b"0@2|1|b"), "record lost"),
        ((b"0@0|1|a|x", b"0@2|1|b", b"0@3|1|c", b"0@2|2|b"), "record repeated"),
        ((b"0@0|1|a|x", b"0@2|1|b", b"0@3|1|c", b"0@1|1|aborted"), "record invented"),
        ((b"0@0|1|a|x", b"0@2|1|b", b"0@3|1|d"), "record changed"),
    ],
)
def test_a_planted_error_is_found(results: tuple[bytes, ...], kind: str) -> None:
    [anomaly] = tally(INPUTS, copies(*results)).anomalies()
    assert anomaly.kind == kind


DRIVER = """
import json, subprocess, sys
spec = json.loads(sys.argv[1])
if spec["life"] == 3:
    raise ValueError("the checkpoint is that of another topic")
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()", "org.apache.spark.deploy.SparkSubmit"],
                         stdin=subprocess.PIPE)
print(json.dumps({"batch": 0, "rows": 7}), flush=True)
sys.stdin.read()
child.stdin.close()
child.wait()
"""


def test_a_driver_that_ends_is_started_again_and_ends_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sample_driver.py").write_text(DRIVER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setattr(keeping, "QUERY", "sample_driver")
    monkeypatch.setattr(keeping, "AGAIN_S", 0.01)
    keeper = Keeper(lambda life: QuerySpec("b", "s", SOURCE, RESULTS, str(tmp_path), life=life), tmp_path / "log")
    keeper.start()
    try:
        wait_for(lambda: keeper.batches == 1 and keeper.like(keeping.JVM), "the first life")
        jvm = keeper.like(keeping.JVM)[0]
        assert keeper.kill_driver() == 1
        assert not keeper.works_again(1)
        wait_for(lambda: keeper.works_again(1), "the second life")
        [driver] = [item for item in keeper.processes() if "sample_driver" in " ".join(item.cmdline())]
        driver.send_signal(signal.SIGTERM)
        wait_for(lambda: keeper.life == 4 and keeper.in_life == 1, "the fourth life")
        assert [reason.rpartition(": ")[2] for reason in keeper.failures[1:]] == [
            "the checkpoint is that of another topic"
        ]
    finally:
        assert keeper.end(10)
    assert not psutil.pid_exists(jvm.pid) or jvm.status() == psutil.STATUS_ZOMBIE
    assert keeper.rows == 3 * 7
