"""cluster.yaml is what Ray's launcher takes, as it stands and in the form its comments describe for AWS."""

from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from tests.unit.style.sources import ROOT

TEXT = (ROOT / "cluster.yaml").read_text(encoding="utf-8")


def local() -> dict[str, Any]:
    """The file as it stands."""
    config: dict[str, Any] = yaml.safe_load(TEXT)
    return config


def aws() -> dict[str, Any]:
    """The file with the commented alternative put in place of the blocks that its comment names."""
    lines = TEXT.splitlines()
    first = lines.index("# provider:")
    last = next(number for number, line in enumerate(lines) if line.startswith("# head_node_type:"))
    alternative: dict[str, Any] = yaml.safe_load("\n".join(line.removeprefix("# ") for line in lines[first : last + 1]))
    kept = {name: value for name, value in local().items() if name not in ("provider", "auth")}
    return kept | alternative


@pytest.mark.parametrize("config", [local(), aws()], ids=["local", "aws"])
def test_rays_own_schema_accepts_it(config: dict[str, Any]) -> None:
    validate_config(prepare_config(config))


def test_every_node_offers_the_resource_that_gives_it_a_broker() -> None:
    config = local()
    for commands in (config["head_start_ray_commands"], config["worker_start_ray_commands"]):
        (start,) = [command for command in commands if "ray start" in command and "raylog start" not in command]
        assert """--resources='{"raylog":1}'""" in start


def test_java_is_on_the_path_before_ray_starts() -> None:
    config = local()
    for commands in (config["head_start_ray_commands"], config["worker_start_ray_commands"]):
        (start,) = [command for command in commands if "ray start" in command and "raylog start" not in command]
        assert start.index("python -m raylog.spark.java") < start.index("ray start")


def test_the_head_starts_the_brokers_last_and_on_a_disk_that_outlives_ray() -> None:
    last = local()["head_start_ray_commands"][-1]
    assert "raylog start --data-dir /var/lib/raylog" in last
    assert any("/var/lib/raylog" in command for command in local()["setup_commands"])


def test_all_workers_are_kept() -> None:
    config = prepare_config(local())
    (node_type,) = config["available_node_types"].values()
    assert node_type["min_workers"] == node_type["max_workers"] == len(local()["provider"]["worker_ips"])


def test_the_head_runs_the_autoscaler_that_knows_its_own_head() -> None:
    """Version 2, the default of `ray up`, starts no worker on the provider `local` (Ray 2.60)."""
    (start,) = [command for command in local()["head_start_ray_commands"] if "ray start --head" in command]
    assert start.index("RAY_enable_autoscaler_v2=0") < start.index("ray start --head")


def test_every_login_shell_of_a_node_shows_the_token() -> None:
    """Workers and `ray exec` do not look for it by themselves; the launcher sources ~/.bashrc before each command."""
    assert any(
        "export RAY_AUTH_MODE=token" in command and "~/.bashrc" in command for command in local()["setup_commands"]
    )


def test_the_head_gets_a_key_for_the_workers() -> None:
    assert local()["auth"]["ssh_private_key"], "without it Ray's launcher gives the head none"
