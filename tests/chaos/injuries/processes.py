"""The first arena: three embedded brokers on one Ray node, one of them on a small disk.

May touch: Ray, its own folder, the mount namespace of this process.
"""

import os
import random
import shutil
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Final

import raylog
from raylog.actors.naming import broker_folder
from raylog.launch.forking import forked_workers
from tests.chaos.actors import ACTOR_FAULTS, RayActors
from tests.chaos.arena import OBJECT_STORE_BYTES, Injected, NoTarget, Setup
from tests.chaos.injuries import small_disk

SMALL_BROKER: Final = 1
PROCESS_FAULTS: Final = (*ACTOR_FAULTS, "restart-all", "full-disk")


class OneNode(RayActors):
    """All processes on one Ray node."""

    def __init__(self, setup: Setup, *, full_disk: bool = True) -> None:
        """Mount the small disk: Ray's processes have to inherit it."""
        super().__init__(setup)
        self.forks_workers = False
        """Whether Ray is started as `raylog.start` does it where none runs: with workers by fork, and its limits."""
        self._filled: set[Path] = set()
        self._small = broker_folder(setup.root, SMALL_BROKER)
        remark = small_disk.mount(self._small) if full_disk else "no small disk was requested"
        self._has_small_disk = not remark
        self.remarks += [remark] if full_disk and remark else []
        self.faults = {**self.faults, "restart-all": self._restart_all}
        if self._has_small_disk:
            self.faults = {**self.faults, "full-disk": partial(self._full_disk)}

    def start(self) -> None:
        """Start Ray, if it does not run, and the cluster."""
        import ray

        if not ray.is_initialized():
            with forked_workers() if self.forks_workers else nullcontext():
                ray.init(
                    address="local",
                    num_cpus=2,
                    object_store_memory=OBJECT_STORE_BYTES,
                    include_dashboard=False,
                    log_to_driver=False,
                )
        setup = self._setup
        self._cluster = raylog.start(
            setup.root, brokers=setup.brokers, config=setup.config, address="local", timeout_s=setup.start_s
        )

    def close(self) -> None:
        """Stop the cluster and Ray."""
        import ray

        try:
            self.stop()
        finally:
            ray.shutdown()

    def release(self) -> None:
        """Continue every paused process, and free the disk."""
        super().release()
        for folder in list(self._filled):
            self._free(folder)

    def directories(self) -> dict[int, Path]:
        """Return the data directory of each broker."""
        return {number: broker_folder(self._setup.root, number) for number in range(1, self._setup.brokers + 1)}

    def keep(self, folder: Path) -> None:
        """Copy Ray's logs, and the contents of the small disk."""
        copy_ray_logs(folder)
        if self._has_small_disk:
            copy = self._small.with_name(f"{self._small.name}-kept")
            shutil.copytree(self._small, copy)
            self.unmount()
            self._small.rmdir()
            copy.rename(self._small)

    def unmount(self) -> None:
        """Remove the small disk, so that the folder can be deleted."""
        if self._has_small_disk:
            small_disk.unmount(self._small)
            self._has_small_disk = False

    def _free(self, folder: Path) -> None:
        self._filled.discard(folder)
        small_disk.free(folder)

    def _restart_all(self, _: random.Random) -> Injected:
        """Stop the whole cluster, and start it on the same directories."""

        def restart() -> None:
            began_s = time.monotonic()
            self.stop()
            stopped_s = time.monotonic()
            self.start()
            stopping_s, starting_s = stopped_s - began_s, time.monotonic() - stopped_s
            print(f"        stopped in {stopping_s:.1f} s, started in {starting_s:.1f} s", flush=True)

        return Injected("everything", heal=restart)

    def _full_disk(self, rng: random.Random) -> Injected:
        """Fill one broker's disk for 2 to 5 s."""
        if not self._has_small_disk:
            raise NoTarget("no broker has a small disk")
        self._filled.add(self._small)
        taken = small_disk.fill(self._small)
        hold_s = rng.uniform(2.0, 5.0)
        note = f"{taken >> 20} MiB taken for {hold_s:.1f} s"
        return Injected(f"broker-{SMALL_BROKER}", hold_s=hold_s, heal=lambda: self._free(self._small), note=note)


def copy_ray_logs(folder: Path) -> None:
    """Copy the newest Ray session's logs of workers, raylets and the control store."""
    sessions = sorted(
        (Path(os.environ["RAY_TMPDIR"]) / "ray").glob("session_2*"), key=lambda path: path.stat().st_mtime
    )
    for session in sessions[-1:]:
        logs = session / "logs"
        for file in sorted([*logs.glob("worker-*"), *logs.glob("raylet*"), *logs.glob("gcs*")]):
            if file.is_file() and file.stat().st_size:
                shutil.copy(file, folder / file.name)
