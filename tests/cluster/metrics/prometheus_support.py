"""A real Prometheus for tests: the installed one, or Debian's package unpacked into a cache folder.

Nothing is installed. It listens on loopback, keeps its data in a folder of the test, and is always stopped.
"""

import json
import os
import random
import shutil
import socket
import subprocess
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.waiting import wait_for

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "raylog-tests"


@dataclass(frozen=True, slots=True)
class Tools:
    """Where the programs are."""

    prometheus: Path
    promtool: Path


def find_tools() -> Tools | None:
    """The programs from the PATH, the cache, or Debian's package; None where they are not available."""
    installed = shutil.which("prometheus"), shutil.which("promtool")
    if installed[0] and installed[1]:
        return Tools(Path(installed[0]), Path(installed[1]))
    folder = CACHE / "prometheus"
    if not (folder / "usr/bin/promtool").exists() and not _unpack("prometheus", folder):
        return None
    return Tools(folder / "usr/bin/prometheus", folder / "usr/bin/promtool")


def _unpack(package: str, folder: Path) -> bool:
    """Download one package of Debian and unpack it, without installing it; returns whether that worked."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return False
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as name:
        work = Path(name)
        for command in (["apt-get", "download", package], ["apt-get", "update"], ["apt-get", "download", package]):
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(command, cwd=work, capture_output=True, timeout=120, check=False)
            if any(work.glob("*.deb")):
                break
        for found in work.glob("*.deb"):
            unpacked = work / "unpacked"
            subprocess.run(["dpkg-deb", "-x", found, unpacked], check=True, timeout=120)
            with suppress(OSError):  # another test run was faster
                unpacked.rename(folder)
            return True
    return False


def free_port() -> int:
    """A port on loopback without a listener, which the system does not assign as an ephemeral port."""
    while True:
        port = random.randrange(20_000, 32_000)  # Linux's ephemeral ports begin at 32768
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def fetch(url: str) -> str:
    """The body of a page; raises OSError for another status than 200."""
    with urllib.request.urlopen(url, timeout=20) as answer:
        body: bytes = answer.read()
        return body.decode()


class Prometheus:
    """A running Prometheus."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"

    def query(self, query: str) -> list[dict[str, Any]]:
        """The samples of an expression, each with `metric` and `value`."""
        quoted = urllib.parse.quote(query)
        found: list[dict[str, Any]] = json.loads(fetch(f"{self.address}/api/v1/query?query={quoted}"))["data"]["result"]
        return found

    def rules(self) -> dict[str, str]:
        """The state of each alert rule, by its name."""
        groups = json.loads(fetch(f"{self.address}/api/v1/rules"))["data"]["groups"]
        return {rule["name"]: rule["state"] for group in groups for rule in group["rules"]}

    def targets(self) -> list[dict[str, Any]]:
        """Its scrape targets."""
        found: list[dict[str, Any]] = json.loads(fetch(f"{self.address}/api/v1/targets"))["data"]["activeTargets"]
        return found


@contextmanager
def prometheus(tools: Tools, folder: Path, *, page: str, rules: str) -> Iterator[Prometheus]:
    """Run Prometheus with these alert rules on the nodes that a page lists under /sd, with one scrape a second."""
    folder.mkdir(parents=True)
    (folder / "rules.yml").write_text(rules, encoding="utf-8")
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        "rule_files: [rules.yml]\n"
        "scrape_configs:\n"
        "  - job_name: raylog\n"
        "    http_sd_configs:\n"
        f"      - url: {page}/sd\n"
        "        refresh_interval: 1s\n",
        encoding="utf-8",
    )
    port = free_port()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                tools.prometheus,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
    try:
        running = Prometheus(port)

        def ready() -> bool:
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            try:
                return "Ready" in fetch(f"{running.address}/-/ready")
            except OSError:
                return False

        wait_for(ready, "Prometheus is ready")
        yield running
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)
