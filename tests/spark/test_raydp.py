"""Raylog and Spark together in one Ray: a topic is written by a producer and read by SQL on RayDP's executors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(480)]

PROGRAM = """
import sys
from raylog.spark import java
java.prepare()  # before Ray starts, which looks for Java only then
import ray
ray.init(address="local", num_cpus=4, object_store_memory=120_000_000, include_dashboard=False, log_to_driver=False)
import raylog
import raylog.spark

with raylog.start(sys.argv[1], brokers=1) as cluster:
    with raylog.Admin() as admin:
        admin.create_topic("orders", 2, 1)
    with raylog.Producer() as producer:
        for number in range(2_000):
            producer.send("orders", b'{"amount": %d}' % number, key=b"k%d" % (number % 7))
        producer.flush(30)
    spark = raylog.spark.session("raydp-test", executor_memory="512m", config={"spark.ui.enabled": False})
    try:
        frame = spark.read.format("raylog").option("subscribe", "orders").load()
        frame.createOrReplaceTempView("orders")
        total = spark.sql("SELECT count(*), sum(get_json_object(string(value), '$.amount')) FROM orders").first()
        print("TOTAL", total[0], int(total[1]))
        print("PLACES", spark.sql("SELECT count(DISTINCT partition, offset) FROM orders").first()[0])
        print("PUSHED", spark.sql("SELECT * FROM orders WHERE partition = 1").rdd.getNumPartitions())
        since = spark.sql("SELECT * FROM orders WHERE timestamp > timestamp'2020-01-01' AND offset >= 100")
        print("SINCE", since.count(), since.agg({"offset": "min"}).first()[0])
        late = spark.read.format("raylog").option("subscribe", "orders").option("startingTimestamp", 2**41)
        print("LATE", late.option("startingOffsetsByTimestampStrategy", "latest").load().count())
    finally:
        raylog.spark.stop()
ray.shutdown()
"""


def test_sql_on_raydp_reads_what_a_producer_wrote(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAYLOG_", "RAY_ADDRESS"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "data")],
        env=kept,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=440,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    lines = done.stdout.splitlines()
    assert f"TOTAL 2000 {sum(range(2000))}" in lines
    assert "PLACES 2000" in lines
    assert "PUSHED 1" in lines
    assert "SINCE 1800 100" in lines
    assert "LATE 0" in lines
