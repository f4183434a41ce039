"""What the adapter for Ray Serve takes as its configuration: no secret, because Serve keeps and shows it."""

from pathlib import Path

import pytest

from raylog.base.errors import InvalidConfig
from raylog.rpc import Grant, mint
from raylog.rpc.auth.token_text import token_text

serve = pytest.importorskip("raylog.serve_tasks", reason="ray[serve] is not installed")


@pytest.mark.parametrize("proof", ["secret", "token"])
def test_a_secret_is_named_by_a_path(proof: str, tmp_path: Path) -> None:
    path = tmp_path / proof
    path.write_text(token_text(mint(b"a secret for tests", Grant(2**33))) if proof == "token" else "c0ffee" * 8)
    given = {"bootstrap": "host:9", f"{proof}_file": str(path)}
    assert serve._where(given) == given, "a worker lives for long, and its clients read the file again"
    assert serve._where({}) == {}
    with pytest.raises(InvalidConfig, match=f"In adapter_config: The {proof}_file .*missing cannot be read: No such"):
        serve._where({f"{proof}_file": str(tmp_path / "missing")})


@pytest.mark.parametrize("proof", ["secret", "token"])
def test_a_secret_itself_is_refused(proof: str) -> None:
    from ray.serve.schema import TaskProcessorConfig

    config = TaskProcessorConfig(
        queue_name="q",
        adapter="raylog.serve_tasks.RaylogTaskProcessorAdapter",
        adapter_config={"bootstrap": "host:9", proof: "c0ffee"},
    )
    with pytest.raises(InvalidConfig, match=f"give {proof}_file") as refusal:
        serve.RaylogTaskProcessorAdapter(config)
    assert "c0ffee" not in str(refusal.value)


def test_what_became_of_tasks_is_forgotten_after_its_time() -> None:
    known = serve.Outcomes(1_000)
    for number in range(5):
        known.add(f"task-{number}", serve._Outcome(serve.PENDING, 0.0), 100 * number)
    known.add("task-0", serve._Outcome(serve.SUCCESS, 0.0), 450)
    known.forget(1_200)
    assert sorted(known) == ["task-0", "task-3", "task-4"]
    assert known["task-0"].status == serve.SUCCESS
    known.forget(10_000)
    assert not known
    assert not known._times


def test_how_long_results_are_kept_is_a_number() -> None:
    assert serve._results_ms({}) == 7 * 86_400_000
    with pytest.raises(InvalidConfig, match="results_ms of adapter_config"):
        serve._results_ms({"results_ms": "7d"})
