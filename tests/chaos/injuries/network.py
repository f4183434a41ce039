"""The third arena: a process with a network namespace for each broker, one for the controller, one for the clients.

No Ray here: every node runs the real servers (``host.py``), its packets pass through ``wire.py``, and this process
restarts a node that ended, as Ray would. A killed node takes its address with it: no packet is answered from then on,
as when a machine loses its power. All namespaces end with their processes. Needs root on Linux.
"""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from raylog.actors.naming import broker_folder
from raylog.base.errors import ConnectionFailed
from raylog.core.configuration.config import validate_cluster_config
from tests.chaos.arena import Injected, NoTarget, Setup, incomplete
from tests.chaos.host import MESSAGE_BYTES, HostSpec, read_place
from tests.chaos.injuries import namespace
from tests.chaos.injuries.cuts import NETWORK_FAULTS as NETWORK_FAULTS
from tests.chaos.injuries.cuts import Cuts
from tests.chaos.sight import wait_until
from tests.chaos.wire import Links

NET: Final = "10.77.0."
CLIENTS: Final = f"{NET}200"
CONTROLLERS: Final = (f"{NET}100", f"{NET}101")
CALL_TIMEOUT_S: Final = 3.0
STOP_S: Final = 30.0
KEEP_S: Final = 0.1
PAUSE_BEFORE_NEXT_LIFE_S: Final = 0.5


class Node:
    """One process with its namespace."""

    def __init__(self, spec: HostSpec, links: Links, log: Path) -> None:
        """Start it; returns when its device is connected. ``log`` is appended to."""
        self.spec = spec
        self._lock = threading.Lock()
        self._number = 0
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, log.open("ab") as output:
            command = [sys.executable, "-m", "tests.chaos.host", str(theirs.fileno())]
            self.process = subprocess.Popen(
                [*command, msgspec.json.encode(spec).decode()],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._control = ours
        ours.settimeout(30)
        _, fds, _, _ = socket.recv_fds(ours, 64, 1)
        if not fds:
            self.kill()
            raise ConnectionFailed(f"{spec.name} did not start; {log} says why")
        links.plug(spec.address, fds[0])
        os.close(fds[0])

    def call(self, what: str, timeout_s: float = CALL_TIMEOUT_S) -> dict[str, Any] | None:
        """Return its answer, bypassing the network; None when there is none in time."""
        with self._lock, suppress(OSError, ValueError):
            self._number += 1
            self._control.settimeout(timeout_s)
            self._control.send(json.dumps({"id": self._number, "do": what}).encode())
            while message := self._control.recv(MESSAGE_BYTES):
                answer: dict[str, Any] = json.loads(message)
                if answer["id"] == self._number:
                    return answer
        return None

    def kill(self) -> None:
        """SIGKILL it; its namespace goes with it."""
        self.process.kill()
        self.process.wait()
        self._control.close()


class Namespaces(Cuts):
    """Brokers, controller and clients, each in a network namespace."""

    def __init__(self, setup: Setup) -> None:
        """Enter the clients' namespace; raises :class:`~tests.chaos.arena.LeftOut` where that is impossible."""
        namespace.require_root()
        self._device = namespace.enter(CLIENTS)
        self._setup = setup
        self.remarks: list[str] = []
        self._places = setup.root.parent / "places"
        self._logs = setup.root.parent / "nodes"
        self._secret = secrets.token_hex(32)
        self._cluster_id = secrets.token_hex(16)
        self._wire: subprocess.Popen[bytes] | None = None
        self._nodes: dict[str, Node] = {}
        self._lock = threading.RLock()
        self._away: set[str] = set()
        """Nodes that stay down until :meth:`let_up`."""
        self._controller_life = 0
        self._over = threading.Event()
        self._keeper = threading.Thread(target=self._keep_running, name="keeper", daemon=True)
        self._begun = threading.Event()
        super().__init__(setup.topic, setup.partitions, [f"broker-{n}" for n in range(1, setup.brokers + 1)])

    # The cluster

    def start(self) -> None:
        """Start wire and nodes, and wait until all brokers are online."""
        for folder in (self._setup.root, self._places, self._logs):
            folder.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._wire = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.wire", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self.links = Links(ours)
        self.links.plug(CLIENTS, self._device)
        # The thread that starts a process has to outlive it, because the kernel ends the process with that thread.
        self._keeper.start()
        if not wait_until(self._is_serving, self._setup.start_s):
            raise TimeoutError(f"the cluster does not serve: {self.missing() or 'no broker has a place'}")

    def _is_serving(self) -> bool:
        view = self.status()
        return view is not None and sum(broker["online"] for broker in view["brokers"]) == self._setup.brokers

    def _keep_running(self) -> None:
        """Start missing nodes, as Ray would."""
        while not self._over.wait(KEEP_S):
            with self._lock:
                for name in [*self.brokers, "controller"]:
                    node = self._nodes.get(name)
                    if name in self._away or (node is not None and node.process.poll() is None):
                        continue
                    if node is not None:
                        node.kill()
                        self._over.wait(PAUSE_BEFORE_NEXT_LIFE_S)
                    with suppress(ConnectionFailed, OSError):
                        self._nodes[name] = self._make(name)

    def _make(self, name: str) -> Node:
        spec = HostSpec(
            name=name,
            address=self.address(name),
            root=str(self._setup.root),
            places=str(self._places),
            secret=self._secret,
            cluster_id=self._cluster_id,
            config=dict(validate_cluster_config(dict(self._setup.config))),
            voters=list(range(1, self._setup.brokers + 1)),
        )
        return Node(spec, self.links, self._logs / f"{name}.log")

    def address(self, name: str) -> str:
        """Return the address of a node; each home of the controller has a new one."""
        if name == "clients":
            return CLIENTS
        if name == "controller":
            return CONTROLLERS[self._controller_life % len(CONTROLLERS)]
        return f"{NET}{name.removeprefix('broker-')}"

    def stop(self) -> None:
        """Stop everything cleanly: the controller first, so that it fences no stopping broker."""
        self._over.set()
        self._keeper.join()
        for name in ["controller", *self.brokers]:
            if name in self._nodes:
                self._nodes[name].call("stop", STOP_S)
                with suppress(subprocess.TimeoutExpired):
                    self._nodes[name].process.wait(STOP_S)

    def close(self) -> None:
        """End every process, and with them their namespaces."""
        self._over.set()
        if self._keeper.ident is not None:
            self._keeper.join()
        for node in self._nodes.values():
            node.kill()
        if self._wire is not None:
            self._wire.kill()
            self._wire.wait()

    def clients(self) -> dict[str, Any]:
        """Return brokers and secret."""
        places = []
        for name in self.brokers:
            with suppress(ConnectionFailed):
                places.append("{}:{}".format(*read_place(self._places, name)))
        return {"bootstrap": ",".join(places), "secret": self._secret}

    def secret(self) -> str:
        """Return the cluster's secret."""
        return self._secret

    def status(self) -> dict[str, Any] | None:
        """Return the newest controller's view."""
        node = self._nodes.get("controller")
        reply = None if node is None else node.call("status")
        return None if reply is None else reply["controller"]

    def replica_states(self) -> list[dict[str, Any]]:
        """Return the status of every replica of every broker that answers."""
        reply = [self._nodes[name].call("status") for name in self.brokers if name in self._nodes]
        return [state for item in reply if item is not None for state in item["replicas"]]

    def missing(self) -> str:
        """Return the reason why the cluster is not whole."""
        lacking = incomplete(self.status(), self._setup.brokers)
        silent = [name for name in self.brokers if name not in self._nodes or self._nodes[name].call("status") is None]
        return lacking or (f"{', '.join(silent)} does not answer" if silent else "")

    def directories(self) -> dict[int, Path]:
        """Return the data directory of each broker."""
        return {number: broker_folder(self._setup.root, number) for number in range(1, self._setup.brokers + 1)}

    def keep(self, folder: Path) -> None:
        """Move the nodes' logs there."""
        for file in self._logs.glob("*.log"):
            file.rename(folder / file.name)

    # Used by the faults

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a node's process."""
        with self._lock:
            node = self._nodes.get(name)
            if node is None or node.process.poll() is not None:
                raise NoTarget(f"{name} is down")
            node.process.send_signal(number)

    def take_down(self, name: str) -> None:
        """SIGKILL a node; nothing answers at its address until :meth:`let_up`."""
        with self._lock:
            self._away.add(name)
            self.signal(name, signal.SIGKILL)
            self._nodes[name].process.wait()

    def let_up(self, name: str) -> None:
        """Allow a node's next life to begin."""
        self._away.discard(name)

    def replace_controller(self) -> Node:
        """Start a controller in another namespace, while the one that was cut off still runs; returns the old one."""
        with self._lock:
            old = self._nodes.pop("controller")
            self._controller_life += 1
            return old

    def end_old(self, old: Node) -> Injected | None:
        """End a replaced controller after its time as a zombie."""
        time.sleep(1.0)
        old.kill()
        return None
