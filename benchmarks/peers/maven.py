"""Jars of the peers of a benchmark: a list of jars lies beside each peer, and Maven copies them once. Runs `mvn`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.peers.processes import Unavailable

FETCH_TIMEOUT_S: Final = 600.0


def version_in(pom: Path, name: str) -> str:
    """The version that a list of jars gives to `name`, as in `<kafka.version>`."""
    return pom.read_text(encoding="utf-8").split(f"<{name}.version>")[1].split("<")[0]


def fetched(folder: Path, pom: Path, what: str, artifacts: Sequence[str] = ()) -> Path:
    """The folder with the jars of a list, or only with these artifacts; Maven copies them there the first time.

    `what` names the jars in errors. Raises Unavailable.
    """
    folder = folder.resolve()  # Maven takes a relative path from the list of jars
    if (folder / "complete").exists():
        return folder
    if shutil.which("mvn") is None:
        raise Unavailable(f"there is no mvn on the path: install Maven, which fetches {what}")
    command = [
        "mvn", "--batch-mode", "--quiet", "--file", str(pom), "dependency:copy-dependencies",
        "-DincludeScope=runtime", f"-DoutputDirectory={folder}",
        *([f"-DincludeArtifactIds={','.join(artifacts)}"] if artifacts else []),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"Maven did not fetch {what} within {FETCH_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        reason = next((line for line in done.stdout.splitlines() if "ERROR" in line), "no reason given")
        raise Unavailable(f"Maven could not fetch {what}: {reason[:300]}")
    (folder / "complete").touch()
    return folder
