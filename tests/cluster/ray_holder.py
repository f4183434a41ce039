"""The program that holds the Ray of `shared_ray.py`, started as Raylog starts one: its workers are forked.

Prints a line when Ray runs, and ends it at the end of its input: also when the process that holds the other end is
killed.
"""

import os
import sys
from pathlib import Path
from typing import Final

from raylog.client.cluster.ray_session import ADDRESS_FILE, own_ray_options
from raylog.launch.forking import forked_workers, wait_for_ended

CPUS: Final = 4
"""Logical ones, for the tasks and actors of tests: Raylog's own use none."""
STORE_BYTES: Final = 80 * 2**20
"""Size of Ray's object store, which Raylog does not use."""


def main() -> None:
    """Hold Ray."""
    import ray

    with forked_workers():
        ray.init(**own_ray_options(), num_cpus=CPUS, object_store_memory=STORE_BYTES)
    # As `ray start` does. Without it "auto" is any Ray of this machine, and each worker of the tests has one; with an
    # address in place of "auto" Ray presents no token.
    note = Path(os.environ["RAY_TMPDIR"]) / "ray" / ADDRESS_FILE
    note.write_text(ray.get_runtime_context().gcs_address, encoding="utf-8")
    print("ready", flush=True)
    sys.stdin.read()
    ray.shutdown()
    wait_for_ended()


if __name__ == "__main__":
    main()
