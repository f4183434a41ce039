"""The program that holds the Ray of `shared_ray.py`, started as Raylog starts one: its workers are forked.

Prints one line when Ray runs, and ends it at the end of its input: also when the process that holds the other end is
killed.
"""

import sys
from typing import Final

from raylog.client.cluster.ray_session import own_ray_options
from raylog.fork_workers import forked_workers, wait_for_ended

CPUS: Final = 4
"""Logical ones, for the tasks and actors of tests: Raylog's own use none."""
STORE_BYTES: Final = 80 * 2**20
"""Size of Ray's object store, which Raylog does not use."""


def main() -> None:
    """Hold Ray."""
    import ray

    with forked_workers():
        ray.init(**own_ray_options(), num_cpus=CPUS, object_store_memory=STORE_BYTES)
    print("ready", flush=True)
    sys.stdin.read()
    ray.shutdown()
    wait_for_ended()


if __name__ == "__main__":
    main()
