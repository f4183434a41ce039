"""What `raylog start` starts imports nothing from the folder where a user stands, whatever its files are called."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

LIMIT_S = 120
COMMAND = "from raylog.cli import main; main()"
SHOW_WORKERS_PATH = """
import sys
from pathlib import Path
from raylog.cli.ray_node import join
join(None, Path("raylog-data").absolute())
import ray
print(ray.get(ray.remote(lambda: sys.path).remote()))
"""


def run(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-c", *words], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
    return done.stdout


def test_files_of_the_current_folder_are_no_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAYLOG_BOOTSTRAP", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("queue", "grp", "ray", "raylog", "sched"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')\n1 / 0\n")
    try:
        run(tmp_path, COMMAND, "start", "--address", "local", "--brokers", "1")
        run(tmp_path, COMMAND, "topic", "create", "orders")
        path = run(tmp_path, SHOW_WORKERS_PATH)
        assert "site-packages" in path
        assert str(tmp_path) not in path
    finally:
        if (tmp_path / "raylog-data" / "ray.json").exists():
            run(tmp_path, COMMAND, "stop")
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()
