"""The machine and software of the measurements: processor, memory, disk, kernel, versions, and its load."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import psutil

from benchmarks.optional import version_of
from benchmarks.report.results import LOAD, LOAD_AT_END

LIBRARIES = (
    "raylog", "ray", "msgspec", "confluent-kafka", "aiokafka", "kafka-python", "nats-py", "redis", "uvloop", "pyspark",
    "pyarrow",
)  # fmt: skip


def describe() -> dict[str, str]:
    """The machine. The load average shows the other load at the start of the run."""
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "kernel": platform.release().split("-")[0],
        "file system": _file_system(),
        LOAD: f"{os.getloadavg()[0]:.1f}",
    }


def at_end() -> dict[str, str]:
    """The load average after the last measurement, including the run itself."""
    return {LOAD_AT_END: f"{os.getloadavg()[0]:.1f}"}


def versions() -> dict[str, str]:
    """Of Python, of Java, and of the client libraries."""
    return {
        "python": platform.python_version(),
        "java": _java(),
        **{name: version_of(name) for name in LIBRARIES if version_of(name) != "not installed"},
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system() -> str:
    here = str(Path.cwd())
    mounts = [partition for partition in psutil.disk_partitions(all=True) if here.startswith(partition.mountpoint)]
    return max(mounts, key=lambda mount: len(mount.mountpoint)).fstype if mounts else "unknown"


def _java() -> str:
    if shutil.which("java") is None:
        return "none"
    version = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    return version.split('"')[1] if '"' in version else "unknown"
