"""A day of services beside a cluster of hosts that `ray up` started. Run inside the lab by ``tests.chaos --only day``.

``python -m tests.hosts.day FOLDER PROGRAMS``, as of ``tests.hosts.story``. A head and three workers have a broker each;
the services run on a host of their own without Ray, and know the brokers' addresses and the file of a secret.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Final

import raylog
from tests.cluster.service import programs
from tests.cluster.service.day import PARTITIONS, SERVICES, Day
from tests.cluster.service.programs import JOBS, ORDERS
from tests.hosts.evidence import show
from tests.hosts.host import DISK, HOME, Host, wait_until
from tests.hosts.lab import Lab
from tests.hosts.story import START, Story

PORT: Final = 9092
FIXED: Final = f"--allow-plaintext --config listeners=RAYLOG://:{PORT}"
REPLICAS: Final = 3
WHOLE_S: Final = 120.0
AWAY_LINES: Final = 8
"""What a stop of some minutes may leave in a log: twice a minute, that no broker is reached."""
GOES_ON_S: Final = 60.0
FOLDER: Final = "day"


class HostDay(Day):
    """The services of a day, on a host."""

    def __init__(self, host: Host, bootstrap: str) -> None:
        super().__init__(host.root / HOME.relative_to("/") / FOLDER, bootstrap)
        self.goes_on_s = GOES_ON_S
        self._host = host

    def _run(self, what: str, first: int, errors: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a service as a process of the host."""
        seen = HOME / FOLDER
        variables = [f"RAYLOG_BOOTSTRAP={self.bootstrap}", f"RAYLOG_SECRET_FILE={seen / self.secret_file.name}"]
        python = HOME / "raylog-venv/bin/python"
        return subprocess.Popen(
            [
                *self._host.enter_command(),
                *variables,
                str(python),
                str(HOME / "programs.py"),
                what,
                str(seen),
                str(first),
            ],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
        )

    def _terminate(self, what: str, process: subprocess.Popen[bytes]) -> None:
        """The process here only waits for the one on the host."""
        self._host.run(f"kill -TERM {(self.folder / f'{what}.pid').read_text()}")

    def kill(self) -> None:
        """End what still runs, with the host."""
        self._host.vanish()
        super().kill()


def furnish(host: Host, dist: Path) -> None:
    """Install Raylog where no Ray is started, and put the services there."""
    home = host.root / HOME.relative_to("/")
    shutil.copytree(dist, home / "dist")
    shutil.copy(programs.__file__, home / "programs.py")
    host.run("raylog-venv/bin/pip install --quiet --no-deps dist/raylog-*.whl")


class Cluster:
    """What happens to the cluster."""

    def __init__(self, story: Story, day: HostDay) -> None:
        self._story, self._day = story, day
        self.hosts = [story.head, *story.workers]

    def command(self, words: str) -> str:
        """Run a command of Raylog on the head."""
        return self._story.head.run(f"raylog {words}")

    def wait_whole(self, brokers: int) -> None:
        """Wait until this many brokers are online, and every replica is in sync where all are."""

        def is_whole() -> bool:
            found = self._story.status()
            online = sum(broker["online"] for broker in found["brokers"])
            return online == brokers and not (brokers == len(self.hosts) and found["under_replicated_partitions"])

        wait_until(is_whole, WHOLE_S, f"{brokers} brokers are online, and replicas in sync")

    def brokers(self) -> list[int]:
        """The numbers of all brokers."""
        return [broker["broker"] for broker in self._story.status()["brokers"]]

    def restart(self, brokers: Iterable[int]) -> None:
        """One after the other, as for a new release."""
        for number in brokers:
            self.command(f"stop --broker {number} --data-dir {DISK}")
            self.command(f"start --broker {number} --data-dir {DISK}")
            self.wait_whole(len(self.hosts))

    def move_replicas(self, admin: raylog.Admin) -> None:
        """One replica of each partition goes to the broker that has none."""
        brokers = set(self.brokers())
        wanted: dict[tuple[str, int], list[int]] = {}
        for topic in (ORDERS, JOBS):
            for row in admin.describe_topic(topic).partitions:
                (free,) = brokers - set(row.replicas)
                wanted[topic, row.partition] = [free, *row.replicas[1:]]
        admin.alter_partition_reassignments(wanted)
        admin.wait_for_reassignments(list(wanted))

    def secret(self) -> str:
        """The clients' newest secret, as the head's disk has it."""
        assert self._story.head.disk is not None
        return (self._story.head.disk / "client-secret").read_text().split()[0]

    def change_secret(self) -> None:
        """As docs/operations.md says; the services' copy is replaced between the two commands."""
        old = self.secret()
        start = f"start --data-dir {DISK} {FIXED}"
        self.command(f"secret change --client --data-dir {DISK}")
        self.command(start)
        self._day.give(self.secret())
        self.command(f"secret finish --client --data-dir {DISK}")
        self.command(start)
        for host in self.hosts:
            assert host.disk is not None
            assert (host.disk / "client-secret").read_text().split() == [self.secret()] != [old], host.name

    def lose(self, host: Host) -> None:
        """For good: its cable first, then its processes."""
        host.vanish()
        self.hosts.remove(host)


def play(story: Story, day: HostDay, dist: Path) -> None:
    """The whole day; raises AssertionError where a service does not go on, or something is lost."""
    laptop = story.laptop.root / HOME.relative_to("/") / "cluster.yaml"
    text = laptop.read_text()
    assert text.count(f"{START} --data-dir /var/lib/raylog --allow-plaintext") == 1
    laptop.write_text(text.replace("--allow-plaintext\n", f"{FIXED}\n"))
    story.laptop.run("ray get-auth-token --generate")
    story.up(brokers=4)
    cluster = Cluster(story, day)
    day.give(cluster.secret())
    with raylog.Admin(bootstrap=day.bootstrap, secret_file=day.secret_file) as admin:
        for topic in (ORDERS, JOBS):
            admin.create_topic(
                topic, partitions=PARTITIONS, replication_factor=REPLICAS, config={"min.insync.replicas": 2}
            )
        day.begin()
        with day.event("brokers restart one by one"):
            cluster.restart(cluster.brokers())
        with day.event("replicas move"):
            cluster.move_replicas(admin)
        with day.event("the clients' secret is changed"):
            cluster.change_secret()
            cluster.restart(cluster.brokers()[:1])  # the connections with it are made with the new one
        with day.event("a host is lost for good"):
            cluster.lose(story.workers.pop())
        with day.event("all stops, is away for a while, and starts", AWAY_LINES):
            marks = day.logged()
            story.down()
            day.wait_until_lost(marks)
            laptop.write_text(laptop.read_text().replace(f", {lost_address(story)}]", "]"))
            story.up(brokers=3, in_sync=False)
    assert set(day.times_logged("has changed: new connections prove").values()) == {1}
    day.uses_no_more()
    day.finish()


def lost_address(story: Story) -> str:
    """The address of the worker that was lost."""
    (lost,) = [host.address for host in story.lab.hosts.values() if not host.runs]
    return lost


def main() -> None:
    """Build the lab, play the day, print the evidence when it fails."""
    folder, tree = Path(sys.argv[1]), sys.argv[2]
    with Lab(folder / "disks", Path(tree) if tree else None) as lab:
        story = Story(lab, folder, workers=3)
        services = lab.add("services", 20)
        furnish(services, folder / "dist")
        bootstrap = ",".join(f"{host.address}:{PORT}" for host in (story.head, *story.workers))
        day = HostDay(services, bootstrap)
        try:
            play(story, day, folder / "dist")
        except BaseException:
            for service in SERVICES:
                for name in (f"{service}.log", f"{service}.err"):
                    place = day.folder / name
                    print(f"--- {name} ---\n{place.read_text() if place.exists() else ''}", flush=True)
            show(lab)
            raise
        finally:
            day.kill()
    print("The day ended as it should.", flush=True)


if __name__ == "__main__":
    main()
