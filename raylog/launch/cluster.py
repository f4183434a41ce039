"""Start a Raylog cluster on Ray, connect to a running one, and stop it. Called by users and by the command line.

Imports Ray when a function is called, not before.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from raylog.base.errors import NoClusterFound, StartFailed
from raylog.client.cluster.lasting_thread import in_lasting_thread
from raylog.client.cluster.ray_session import own_ray_options, require_ray_address, running_ray_address
from raylog.client.progress import Progress, Say
from raylog.core.configuration.config import ClusterConfig, validate_cluster_config
from raylog.launch.addresses import check_advertised, check_listeners
from raylog.launch.broker_lifecycle import resume_brokers, start_broker, stop_broker
from raylog.launch.controller_calls import CALL_TIMEOUT_S, POLL_S, cluster_status, controller, require_ray
from raylog.launch.forking import forked_workers, wait_for_ended
from raylog.launch.kept_directories import NODE_FOLDER, embedded_folders, kept
from raylog.launch.node_secrets import adopt_secrets, gather, own_secrets, provide
from raylog.launch.placement import (
    LOOPBACK,
    BrokerPlacement,
    broker_placements,
    check_directories,
    nodes_that_offer,
    this_node,
)
from raylog.launch.plaintext import check_hosts, plaintext_is_allowed
from raylog.launch.private_files import keep_ray_token_private
from raylog.launch.ray_note import leave_note
from raylog.launch.readiness import Readiness
from raylog.launch.replica_reports import replica_reports
from raylog.launch.running_config import ignored_settings, what_was_ignored
from raylog.launch.stopping import stop_actors
from raylog.launch.survey import adopt, join_nodes
from raylog.launch.voters import found_embedded, found_on_nodes, keep_voters, kept_voters

if TYPE_CHECKING:
    from types import TracebackType

    from raylog.client.admin.descriptions import StoppedBroker

logger = logging.getLogger(__name__)

DEFAULT_DATA_DIR: Final = "raylog-data"
DEFAULT_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 30.0
NODES_DEFAULTS: Final[Mapping[str, str]] = {
    "offsets.topic.num.partitions": "50",
    "transaction.state.log.num.partitions": "50",
    "replica.spares": "6",
}
"""Defaults of a new cluster on several nodes; an embedded cluster has the defaults of the keys (ADR 18, 44)."""


class Cluster:
    """Handle of a running Raylog cluster: ``status()``, ``stop()``.

    As a context manager it stops the cluster at the end if its :func:`start` has started it; one that ran before stays.
    """

    def __init__(
        self, *, owns_ray: bool, ignored_config: Mapping[str, str] | None = None, was_started_here: bool = False
    ) -> None:
        """Call :func:`start` or :func:`connect` instead. ``owns_ray``: ``stop`` shuts Ray down as well."""
        self.ignored_config = dict(ignored_config or {})
        """Settings given to :func:`start` that have no effect: the cluster ran already, or they were altered in it."""
        self.was_started_here = was_started_here
        """Whether :func:`start` has started this cluster; False = it ran already, and was joined."""
        self._owns_ray = owns_ray
        self._stopped = False

    def status(self) -> dict[str, Any]:
        """Return cluster id, brokers, topics, leaders and in-sync replicas as plain values.

        Raises :class:`NoClusterFound` when the controller does not answer within 15 seconds, and after :meth:`stop`.
        """
        self._require_running()
        return cluster_status(CALL_TIMEOUT_S)

    def _require_running(self) -> None:
        if self._stopped:
            raise NoClusterFound("This cluster was stopped by stop(); raylog.start() starts it again.")

    def bootstrap(self) -> str:
        """Return ``host:port[,host:port...]`` of the brokers, for clients without Ray (with :meth:`secret`)."""
        brokers = [broker for broker in self.status()["brokers"] if broker["online"]]
        return ",".join(f"{broker['host']}:{broker['port']}" for broker in brokers)

    def replicas(self) -> list[dict[str, Any]]:
        """Return role, offsets and process id of every replica that answers within 15 seconds.

        Brokers answer for dozing replicas, whose processes they have stopped while idle (``dozing``).
        """
        self._require_running()
        return replica_reports(CALL_TIMEOUT_S)

    def secret(self) -> str:
        """Return the clients' secret in hexadecimal, as ``secret=`` and ``RAYLOG_SECRET`` take it."""
        import ray

        self._require_running()
        info = ray.get(controller().connection_info.remote(), timeout=CALL_TIMEOUT_S)
        secret: bytes = info["secret"]
        return secret.hex()

    def stop(self, timeout_s: float = 60.0, *, progress: Say | None = None) -> None:
        """Stop every actor of the cluster, after partitions that can sleep have fallen asleep. Idempotent.

        The controller ends first, so that it fences no process that is stopping. Data stays on disk; :func:`start` on
        the same directory brings everything back. If it takes longer than a second, ``progress`` is called about once a
        second with a line such as "40 of 150 processes ended". Raises :class:`NoClusterFound` when this process has
        left Ray, :class:`StartFailed` when actors do not end within ``timeout_s`` seconds.
        """
        if self._stopped:
            return
        require_ray()
        try:
            stop_actors(timeout_s, progress)
        finally:
            if self._owns_ray:
                _shut_ray_down()
        self._stopped = True

    def stop_broker(
        self, broker: int, *, force: bool = False, timeout_s: float = 60.0, progress: Say | None = None
    ) -> StoppedBroker:
        """Stop one broker: its leaders move to other in-sync replicas first, then its processes end for good.

        Nothing restarts it before :meth:`start_broker` or :func:`start`. ``progress`` as in :meth:`stop`. Raises
        :class:`StopRefused`, which names the partitions that need this broker (``force`` stops it all the same),
        and :class:`InvalidRequest` for an unknown broker.
        """
        return stop_broker(self.status(), broker, force=force, timeout_s=timeout_s, say=progress)

    def start_broker(self, broker: int, timeout_s: float = DEFAULT_TIMEOUT_S, *, progress: Say | None = None) -> None:
        """Bring a stopped broker back, and wait until it serves and its replicas are in sync (at most 15 seconds more).

        ``progress`` as in :meth:`stop`. Raises :class:`InvalidRequest` for an unknown broker, :class:`StartFailed` when
        it does not serve in time.
        """
        start_broker(self.status, controller(), broker, timeout_s=timeout_s, say=progress)

    def __enter__(self) -> Self:
        """Return the cluster itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the cluster if :func:`start` has started it here."""
        if self.was_started_here:
            self.stop()


def start(
    data_dir: str | os.PathLike[str] = DEFAULT_DATA_DIR,
    *,
    brokers: int | None = None,
    config: Mapping[str, object] | None = None,
    address: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    join: bool = False,
    allow_plaintext: bool | None = None,
    progress: Say | None = None,
) -> Cluster:
    """Start a cluster, or bring one back from its data directory, and wait until it serves.

    On a Ray cluster whose nodes offer the custom resource ``raylog`` there is one broker per such node, each with
    ``data_dir`` on its own disk. Otherwise ``brokers`` (default: as many as the directory has, at least 1) embedded
    brokers run on this machine, with a folder each below ``data_dir``. Ray is started when none runs, and is then shut
    down by :meth:`Cluster.stop`.

    ``config`` has cluster keys such as ``{"default.replication.factor": 3}``. A cluster that runs already keeps its own
    configuration, and values altered in a running cluster win over ``config``. Settings without effect are logged and
    in :attr:`Cluster.ignored_config`. The end of ``with raylog.start(...)`` does not stop a cluster that ran already.
    ``address`` is passed to ``ray.init``; :class:`NoClusterFound` is raised for text that is no Ray address.

    A new ``data_dir`` joins the cluster that other nodes' directories belong to, if there is one. With ``join`` it
    waits for such nodes, and never creates a cluster.

    On a cluster of several nodes, brokers listen on the nodes' addresses. This needs TLS (Ray's variables), or
    ``allow_plaintext=True`` where the network is trusted; the default is ``RAYLOG_ALLOW_PLAINTEXT``, else False.

    ``progress`` is called about once a second during the start, with a line such as "120 of 300 replicas ready".

    Raises :class:`InvalidConfig` for unknown keys and a wrong ``RAYLOG_LOG_FORMAT``, :class:`DataDirectoryError` when
    another cluster uses the directory, :class:`StartFailed` when it does not serve within ``timeout_s`` seconds.
    """
    from raylog.actors.logs import log_format

    settings = validate_cluster_config({} if config is None else config)
    log_format()
    allow_plaintext = plaintext_is_allowed() if allow_plaintext is None else allow_plaintext
    if brokers is not None and brokers < 1:
        raise StartFailed(f"brokers={brokers}: a cluster needs at least one broker.")
    root = Path(data_dir).absolute()
    owns_ray = _ensure_ray(address)
    deadline = time.monotonic() + timeout_s
    ran_before = True
    try:
        placements = broker_placements(root, brokers)
        ran_before = _checked(root, placements, settings, allow_plaintext)
        is_known = _join(root, placements, join, deadline, ran_before)
        placements = broker_placements(root, brokers)  # again, with the nodes that `join` waited for: for the secrets
        _wait_until_made(_make_actors(root, placements, settings, is_known, allow_plaintext), deadline)
        _serve(root, placements, deadline, timeout_s, Progress(progress))
    except BaseException:  # any error: a failed start leaves nothing running that it began
        if not ran_before:
            stop_actors(STOP_TIMEOUT_S)
        if owns_ray:
            _shut_ray_down()
        raise
    ignored = _ignored(settings, deadline, was_started=not ran_before) if settings else {}
    return Cluster(owns_ray=owns_ray, ignored_config=ignored, was_started_here=not ran_before)


def _checked(root: Path, placements: list[BrokerPlacement], settings: Mapping[str, str], allow_plaintext: bool) -> bool:
    """Check, before anything is started, that this start can work; returns whether the cluster runs already."""
    check_hosts([placement.host for placement in placements], allow_plaintext)
    ran_before = check_directories(root, placements)
    if not ran_before:
        check_listeners(settings, placements, allow_plaintext=allow_plaintext)
    return ran_before


def _serve(
    root: Path, placements: list[BrokerPlacement], deadline: float, timeout_s: float, progress: Progress
) -> None:
    """Wait until the cluster serves, note its address and voters, and check the advertised addresses."""
    _resume_stopped(deadline)
    _wait_until_serving(placements, deadline, timeout_s, progress)
    leave_note(root)
    status = cluster_status(CALL_TIMEOUT_S)
    keep_voters(root, status["metadata_voters"]["voters"])
    check_advertised(status)


def _resume_stopped(deadline: float) -> None:
    """Resume the brokers that were stopped on purpose before this start of the cluster."""
    brokers = cluster_status(max(0.1, deadline - time.monotonic()))["brokers"]
    stopped = [broker["broker"] for broker in brokers if broker["stopped"]]
    resume_brokers(stopped, max(0.1, deadline - time.monotonic()))


def _ignored(settings: Mapping[str, str], deadline: float, *, was_started: bool) -> dict[str, str]:
    """Return and log the settings that have no effect, because the cluster runs with other values."""
    running: dict[str, str] = cluster_status(max(0.1, deadline - time.monotonic()))["config"]
    ignored = ignored_settings(settings, running)
    if ignored:
        logger.warning("%s", what_was_ignored(ignored, running, was_started=was_started))
    return ignored


def _shut_ray_down() -> None:
    import ray

    ray.shutdown()
    wait_for_ended()


def _join(root: Path, placements: list[BrokerPlacement], join: bool, deadline: float, ran_before: bool) -> bool:
    """Return whether the cluster exists already; a data directory without the cluster's identity gets it here."""
    import ray

    if ran_before:
        info = ray.get(controller().connection_info.remote(), timeout=CALL_TIMEOUT_S)
        adopt(root, cluster_id=info["cluster_id"])
        adopt_secrets(root, ray.get(controller().secrets.remote(), timeout=CALL_TIMEOUT_S))
    if ran_before or kept_voters(root):
        return True
    if placements[0].broker is not None:
        if join:
            raise StartFailed("--join needs Ray nodes that offer the resource 'raylog'; none is there.")
        return any(log for folder in embedded_folders(root) for log in folder.glob("metadata/*/*.log"))
    return join_nodes(
        root,
        lambda: [(found.node_id, found.host, found.folder) for found in broker_placements(root, None)],
        deadline if join else None,
    )


def _make_actors(
    root: Path, placements: list[BrokerPlacement], settings: Mapping[str, str], is_known: bool, allow_plaintext: bool
) -> dict[str, Any]:
    """Make the controller and the embedded brokers, and return their handles by role."""
    from raylog.actors.actor_specs import BrokerSpec, ControllerSpec
    from raylog.actors.listening import listeners_in
    from raylog.actors.processes import ray_actors, ray_support

    embedded = [placement for placement in placements if placement.broker is not None]
    if not embedded:
        gather(root, [placement.node_id for placement in placements], this_node())
    kept(root, "secret")
    secret = own_secrets(root)
    cluster_id = kept(root, "cluster-id")

    def spec_of(placement: BrokerPlacement) -> BrokerSpec:
        return BrokerSpec(
            broker=placement.broker,
            folder=placement.folder,
            secret=secret,
            cluster_id=cluster_id[:32],
            node_id=placement.node_id,
            host=placement.host,
            allow_plaintext=allow_plaintext,
            listeners=listeners_in(settings),
        )

    if not embedded:
        provide(secret, [placement.node_id for placement in placements], this_node())
    voters = kept_voters(root)
    if not is_known:
        settings = settings if embedded else {**NODES_DEFAULTS, **settings}
        most = ClusterConfig.from_dict(settings).metadata_voters_max
        if embedded:
            voters = found_embedded([placement.folder for placement in embedded], most)
        else:
            voters = found_on_nodes([ray_actors.make_broker(spec_of(placement)) for placement in placements], most)
        keep_voters(root, voters)
    made = {}
    made["the controller"] = ray_actors.make_controller(
        ControllerSpec(
            data_directory=root,
            secret=secret,
            cluster_id=cluster_id[:32],
            cluster_config=settings,
            cluster_start=uuid.uuid4().hex,
            voters=voters,
            host=LOOPBACK if embedded else ray_support.node_address(),
            node_folder=None if embedded else root / NODE_FOLDER,
            allow_plaintext=allow_plaintext,
        ),
        node_id=this_node(),
    )
    for placement in embedded:
        made[f"broker {placement.broker}"] = ray_actors.make_broker(spec_of(placement))
    return made


def _wait_until_made(made: Mapping[str, Any], deadline: float) -> None:
    """Wait until every actor's constructor has returned. Raises StartFailed for the first that failed.

    It waits for all at once: the controller itself waits for brokers, and would report a failed one only after a
    minute.
    """
    import ray

    calls = {handle.endpoint.remote(): what for what, handle in made.items()}
    while calls:
        answered, _ = ray.wait(list(calls), timeout=max(0.1, deadline - time.monotonic()))
        what = calls.pop(answered[0]) if answered else next(iter(calls.values()))
        try:
            ray.get(answered, timeout=0.1)
            if answered:
                continue
        except ray.exceptions.ActorDiedError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise StartFailed(f"{what.capitalize()} could not start: {lines[-1]}") from None
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
            logger.debug("%s is being restarted: %s", what, error)
        if time.monotonic() >= deadline:
            raise StartFailed(f"{what.capitalize()} did not start in time.")
        if answered:
            calls[made[what].endpoint.remote()] = what
            time.sleep(POLL_S)


def connect(address: str | None = None, timeout_s: float = CALL_TIMEOUT_S) -> Cluster:
    """Return a handle to the cluster that runs in the Ray cluster at ``address``.

    By default this is the Ray that this process has joined, else one that runs on this machine ("auto"). Raises
    :class:`NoClusterFound` when no cluster answers within ``timeout_s`` seconds.
    """
    import ray

    if not ray.is_initialized():
        wanted = _wanted_ray(address)
        if wanted is None:
            raise NoClusterFound("No Ray cluster runs here; run `raylog start`, or call raylog.start().")
        try:
            ray.init(address=wanted, log_to_driver=False)
        except (ConnectionError, ValueError) as error:
            raise NoClusterFound(f"No Ray cluster answers at {wanted}: {error}") from None
    cluster_status(timeout_s)
    return Cluster(owns_ray=False)


def _wanted_ray(address: str | None) -> str | None:
    """Address of the Ray to use: the named one, else one that runs here, else None. Raises NoClusterFound."""
    if address is None or address == "auto":
        return running_ray_address()
    return require_ray_address(address, "address")


def _ensure_ray(address: str | None) -> bool:
    """Join or start Ray; returns whether it was started here."""
    import ray

    if ray.is_initialized():
        return False
    wanted = _wanted_ray(address)
    if wanted not in (None, "local"):
        ray.init(address=wanted, log_to_driver=False)
        return False
    from raylog.spark.java import put_on_path_for_ray

    put_on_path_for_ray()
    with forked_workers():
        in_lasting_thread(lambda: ray.init(**own_ray_options()))
    keep_ray_token_private()
    return True


def _wait_until_serving(
    placements: list[BrokerPlacement], deadline: float, timeout_s: float, progress: Progress
) -> None:
    embedded = placements[0].broker is not None
    waiting = Readiness(
        {
            placement.broker if placement.broker is not None else placement.node_id: placement.host
            for placement in placements
        },
        embedded,
    )

    def serving() -> bool:
        status = cluster_status(max(0.1, deadline - time.monotonic()))
        serves = waiting.look(status, time.monotonic(), nodes_that_offer)
        progress.line(waiting.so_far)
        return serves

    try:
        _wait_for(serving, deadline, "")
    except StartFailed:
        raise StartFailed(f"The cluster does not serve after {timeout_s:.0f} s: {waiting.problem}.") from None
    if waiting.hopeless:
        names = ", ".join(waiting.hopeless)
        logger.warning("no replica that is here can lead %s; `raylog status` says more", names)


def _wait_for(condition: Callable[[], bool], deadline: float, complaint: str) -> None:
    while not condition():
        if time.monotonic() >= deadline:
            raise StartFailed(complaint)
        time.sleep(POLL_S)
