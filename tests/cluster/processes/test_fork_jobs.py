"""Forked workers on a node that has served another job before: each works for the job that it was started for."""

import subprocess
import sys
from typing import Any

import pytest

from raylog.launch import forking
from tests.cluster.ray_support import STORE_BYTES, ray_folder

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers are forked on Linux only"),
]

JOB = """
import os, sys
import ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
parent = ray.remote(num_cpus=0, resources={"elsewhere": 0.1})(lambda: os.getppid())
print(ray.get(parent.remote(), timeout=60))
"""


def test_the_second_job_on_a_node_is_served_too() -> None:
    """Ray reads the id of a worker's job once a process: if the fork server read it, all workers would share it."""
    from ray.cluster_utils import Cluster as RayCluster

    small: dict[str, Any] = {"num_cpus": 1, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    with ray_folder():
        nodes = RayCluster()
        try:
            nodes.add_node(**small)
            with forking.forked_workers():
                nodes.add_node(resources={"elsewhere": 1}, **small)
            server = forking._servers[-1][0].pid
            for _ in range(2):
                command = [sys.executable, "-c", JOB, nodes.address]
                done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
                assert done.stdout == f"{server}\n", f"{done.stdout}\n{done.stderr}"
        finally:
            nodes.shutdown()  # type: ignore[no-untyped-call]
            forking.wait_for_ended()
