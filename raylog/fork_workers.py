"""The command ``python -m raylog.fork_workers start ...``: ``ray start ...``, with workers that are forked."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from raylog.launch.forking import forked_workers

SAFE_PATH: Final = "PYTHONSAFEPATH"
"""Keeps the folder of a script, and the current one, off a Python's path."""


def keep_folder_out() -> None:
    """Keep the current folder off the path of the server for Ray Client, which `ray start` runs with `python -m`.

    Only that process gets PYTHONSAFEPATH: in Ray's workers it would reach the programs that users start there.
    """
    from ray._private import ray_constants, services

    start: Callable[..., Any] = services.start_ray_process

    def start_safely(command: list[str], process_type: str, *rest: Any, **options: Any) -> Any:
        if process_type == ray_constants.PROCESS_TYPE_RAY_CLIENT_SERVER:
            options["env_updates"] = {**(options.get("env_updates") or {}), SAFE_PATH: "1"}
        return start(command, process_type, *rest, **options)

    services.start_ray_process = start_safely


def main() -> None:
    """Run Ray's command line, so that a node that it starts forks its workers."""
    from ray.scripts.scripts import main as ray

    sys.argv[0] = "ray"
    keep_folder_out()
    with forked_workers():
        ray()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
