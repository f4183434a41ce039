"""From `ray up` to `ray up` again, as a user types it on a laptop. Run inside the lab by ``test_ray_up.py``.

``python -m tests.hosts.story FOLDER PROGRAMS``: FOLDER, on a disk, has ``dist`` with the wheel; PROGRAMS is what
:func:`tests.hosts.programs.tree_of_programs` returned, or empty.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.hosts.evidence import show
from tests.hosts.host import HOME, Host, wait_until
from tests.hosts.lab import Lab
from tests.unit.style.sources import ROOT

TOPIC: Final = "trips"
GROUP: Final = "board"
BATCH: Final = 3000
UP_TIMEOUT_S: Final = 180.0
BROKERS_TIMEOUT_S: Final = 180.0
ENDED_TIMEOUT_S: Final = 30.0
SPARK_TIMEOUT_S: Final = 300.0
VOTERS_TIMEOUT_S: Final = 60.0
START: Final = "bin/raylog start"
"""The command of `cluster.yaml` that starts the brokers."""
PROGRAM: Final = "raylog-venv/bin/python clients.py"


class Story:
    """A laptop and the cluster that it starts on other hosts."""

    def __init__(self, lab: Lab, folder: Path, workers: int = 2) -> None:
        """Build the hosts; the laptop gets the wheel, the key and the shipped `cluster.yaml`."""
        self.lab = lab
        self.laptop = lab.add("laptop", 2)
        self.head = lab.add("head", 10)
        self.workers = [lab.add(f"worker{number}", 10 + number) for number in range(1, workers + 1)]
        self.began = time.monotonic()
        lab.give_key(self.laptop)
        home = self.laptop.root / HOME.relative_to("/")
        shutil.copytree(folder / "dist", home / "dist")
        with (home / ".bashrc").open("a") as profile:
            profile.write('export PATH="$HOME/raylog-venv/bin:$PATH"\n')
        (home / "cluster.yaml").write_text(cluster_yaml(self.head, self.workers))
        for host in (self.head, *self.workers):
            shutil.copy(Path(__file__).with_name("clients.py"), host.root / HOME.relative_to("/"))

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Print the step and its duration."""
        began = time.monotonic()
        yield
        now = time.monotonic()
        print(f"{now - self.began:6.1f} s  {what} ({now - began:.1f} s)", flush=True)

    def client(self, what: str, *arguments: object, timeout_s: float = 90.0) -> Any:
        """Run a client on the head; returns its printed value."""
        words = " ".join(map(str, (what, *arguments)))
        return json.loads(self.head.run(f"{PROGRAM} {words}", timeout_s).splitlines()[-1])

    def status(self) -> dict[str, Any]:
        """The output of `raylog status --json` on the head, even when it exits with 1 because something is offline."""
        shown = self.head.run("raylog status --json || test $? = 1")
        found: dict[str, Any] = json.loads(shown[shown.index("{") :])
        return found

    def voters(self) -> list[int]:
        """Brokers that are metadata voters."""
        found: list[int] = self.status()["metadata_voters"]["voters"]
        return found

    def up(self, brokers: int, *, in_sync: bool = True) -> None:
        """`ray up`, then wait until this many brokers are online, and every replica is in sync where possible."""
        with self.step("ray up"):
            self.laptop.run("ray up --yes cluster.yaml", UP_TIMEOUT_S)

        def all_here() -> bool:
            found = self.status()
            online = [broker for broker in found["brokers"] if broker["online"]]
            return len(online) == brokers and not (in_sync and found["under_replicated_partitions"])

        with self.step(f"{brokers} brokers are online"):
            wait_until(all_here, BROKERS_TIMEOUT_S, f"{brokers} brokers are online")

    def down(self) -> None:
        """Stop everything as the comments of `cluster.yaml` describe."""
        with self.step("raylog stop --nodes"):
            self.laptop.run("ray exec cluster.yaml 'raylog stop --nodes --data-dir /var/lib/raylog'")
        for worker in self.workers:
            if worker.runs:
                wait_for_end_of_ray(worker)
        with self.step("ray down"):
            self.laptop.run("ray down --yes cluster.yaml")
        wait_for_end_of_ray(self.head)


def ray_processes(host: Host) -> list[str]:
    """Processes of Ray on a host, Raylog's actors among them."""
    rows = host.run("ps -A -o args=").splitlines()
    return [row for row in rows if row.startswith("ray::") or "/ray/" in row]


def wait_for_end_of_ray(host: Host) -> None:
    """Wait until a host has no process of Ray any more."""
    wait_until(lambda: not ray_processes(host), ENDED_TIMEOUT_S, f"Ray has ended on {host.name}")


def cluster_yaml(head: Host, workers: list[Host]) -> str:
    """The shipped file, with the three changes that its comments request."""
    text = (ROOT / "cluster.yaml").read_text()
    places = ", ".join(worker.address for worker in workers)
    for shipped, ours in (
        ("head_ip: 192.0.2.10\n", f"head_ip: {head.address}\n"),
        ("worker_ips: [192.0.2.11, 192.0.2.12]\n", f"worker_ips: [{places}]\n"),
        ("\nauth:\n    ssh_user: ubuntu\n", "\nauth:\n    ssh_user: root\n"),
    ):
        if text.count(shipped) != 1:
            raise AssertionError(f"cluster.yaml has {text.count(shipped)} times {shipped!r}")
        text = text.replace(shipped, ours)
    return text


def play(story: Story) -> None:
    """The whole story; raises AssertionError where it ends differently."""
    story.laptop.run("ray get-auth-token --generate")
    story.up(brokers=3)
    assert "online" in story.laptop.run("ray exec cluster.yaml 'raylog status'")

    with story.step("a topic with a replica on each host, records with acks=all"):
        assert sorted(story.client("create", TOPIC).values()) == [3, 3, 3]
        assert story.client("produce", TOPIC, 0, BATCH) == BATCH
    total = sum(range(BATCH))
    with story.step("a group reads them"):
        assert story.client("group", TOPIC, GROUP, BATCH) == {"read": BATCH, "sum": total}
    with story.step("Spark reads them"):
        found = story.client("spark", TOPIC, timeout_s=SPARK_TIMEOUT_S)
        assert found == {"read": BATCH, "sum": total, "partitions": 3}

    with story.step("a host loses its power, records with acks=all"):
        story.workers[1].vanish()
        assert story.client("produce", TOPIC, BATCH, BATCH) == BATCH
    with story.step("the group reads them"):
        assert story.client("group", TOPIC, GROUP, BATCH)["read"] == BATCH
        before = story.client("state", TOPIC, GROUP)
    assert (before["records"], before["groups"]) == (2 * BATCH, [GROUP])
    assert before["committed"][GROUP] == before["ends"]

    story.down()
    with story.step("the host has its power back"):
        story.lab.boot(story.workers[1])
    story.up(brokers=3)
    with story.step("the same records, groups and offsets"):
        assert story.client("state", TOPIC, GROUP) == before
        assert story.client("produce", TOPIC, 2 * BATCH, BATCH) == BATCH


def lose_the_head(story: Story) -> None:
    """The head vanishes with its disk; another one with an empty disk takes over with the workers' data."""
    with story.step("three brokers keep the metadata"):
        wait_until(lambda: len(story.voters()) == 3, VOTERS_TIMEOUT_S, "three brokers keep the metadata")
    before = story.client("state", TOPIC, GROUP)
    with story.step("the head is lost with its disk, another one comes"):
        story.head.vanish()
        story.head.lose_disk()
        story.lab.boot(story.head)
    place = story.laptop.root / HOME.relative_to("/") / "cluster.yaml"
    text = place.read_text()
    assert text.count(START) == 1
    place.write_text(text.replace(START, f"{START} --join"))
    story.up(brokers=3, in_sync=False)
    with story.step("the same records, groups and offsets"):
        assert story.client("state", TOPIC, GROUP) == before
        assert story.client("produce", TOPIC, 3 * BATCH, BATCH) == BATCH


def main() -> None:
    """Build the lab, play the story, print the evidence when it fails."""
    folder, programs = Path(sys.argv[1]), sys.argv[2]
    with Lab(folder / "disks", Path(programs) if programs else None) as lab:
        try:
            story = Story(lab, folder)
            play(story)
            lose_the_head(story)
        except BaseException:
            show(lab)
            raise
    print("The story ended as it should.", flush=True)


if __name__ == "__main__":
    main()
