"""What a broker reports of its machine and its process."""

import resource
from pathlib import Path

import pytest

from raylog.actors.broker import capacity
from raylog.actors.dozing import processes
from raylog.core.metadata.capacity import Capacity


def test_it_reports_the_machine_and_the_limit_of_open_files() -> None:
    found = capacity.capacity()
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert found.open_files == (-1 if soft == resource.RLIM_INFINITY else soft)
    assert found.memory_bytes > 0
    assert found.cores > 0
    assert Capacity.from_row(found.to_row()) == found


def test_an_unlimited_number_of_files_is_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda _: (unlimited, unlimited))
    assert capacity.capacity().open_files == -1


def test_a_broker_that_may_not_stop_processes_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "may_stop", lambda: False)
    assert not capacity.capacity().can_doze


def test_a_process_without_descriptors_for_others_may_not_stop_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(pid: int) -> int:
        raise PermissionError(f"no descriptor of {pid}")

    monkeypatch.setattr("os.pidfd_open", forbidden)
    assert not processes.may_stop()


@pytest.mark.parametrize(
    ("text", "is_limit"), [("1048576\n", True), ("max\n", False), ("9223372036854771712\n", False), ("", False)]
)
def test_a_container_bounds_the_memory(tmp_path: Path, text: str, is_limit: bool) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text(text)
    machine = capacity.memory_bytes([])
    assert capacity.memory_bytes([tmp_path / "not there", limit]) == (1_048_576 if is_limit else machine)
