"""The metrics page of a node: HTTP on one fixed port, for all brokers of the cluster on this machine.

The first broker that binds the port serves the page. It collects the metrics of the other brokers at this address, and
of the controller and the coordinators that run here. While another process has the port, a broker retries every two
seconds, and takes over when the port becomes free. Processes on other nodes are on the pages of those nodes, so the sum
over all pages counts everything once.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final

from raylog.actors import notes
from raylog.actors.clock import monotonic_ms
from raylog.actors.metrics.broker import BrokerReport
from raylog.actors.metrics.collector import CachedResult, Endpoint, MetricsClient
from raylog.actors.metrics.coordinators import GroupFigures, transaction_metrics
from raylog.actors.metrics.http import HttpServer, Page, json_page, text_page
from raylog.actors.metrics.overview import Overview
from raylog.base.errors import RaylogError
from raylog.core.configuration.config import ClusterConfig
from raylog.core.metrics.exposition import CONTENT_TYPE, Family, families_from_wire, render
from raylog.core.metrics.families import active_controller

if TYPE_CHECKING:
    from raylog.actors.broker.server import BrokerServer

logger = logging.getLogger(__name__)

SETTLE_S: Final = 2.0
FIRST_S: Final = 0.1
"""Pause between two tries while a new broker does not know yet, before it finds the controller, where its page is."""
CONTROLLER_S: Final = 1.0
BROKER_S: Final = 7.0
"""Timeout for another broker's report, for which it queries its replicas."""
NOTE: Final = "metrics.address"
"""File in the data directory with the last address of the page, for the time before the controller is found."""
INDEX: Final = """Raylog, broker {broker}

/metrics   figures for Prometheus
/healthz   200 while this process answers and holds the lock of its data directory
/readyz    200 when every broker here is registered and every replica leads or follows on a log without damage,
           and no disk is full; else 503 with the reasons
/sd        the nodes of the cluster, for Prometheus' http_sd_configs
"""

Address = tuple[str, int]


class NodePage:
    """Serves the page of this node, while this broker has the port."""

    def __init__(self, server: BrokerServer) -> None:
        """``server``: the broker of this process."""
        self._server = server
        self._client = MetricsClient(server.spec.secret)
        self._groups = GroupFigures(self._client)
        self._overview = Overview()
        self._page: CachedResult[bytes] = CachedResult(self._metrics)
        self._http: HttpServer | None = None
        self._served: Address | None = None
        """The configured address, once it is served (or port 0: not to be served)."""
        self._complained: Address | None = None
        self._task: asyncio.Task[None] | None = None
        self.endpoint: Address | None = None
        """The address of the page; None while another process has the port, or pages are off."""

    def start(self) -> None:
        """Begin to serve, or to wait for the port; returns at once."""
        self._task = asyncio.create_task(self._run(), name="page of the node")

    async def stop(self) -> None:
        """Release the port."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._close()
        self._client.close()

    def state(self) -> tuple[str, str]:
        """Return state and address of the page: "on", "taken" by another process, "off", or "unknown" at first."""
        if self.endpoint is not None:
            host, port = self.endpoint
            return "on", f"{host}:{port}"
        if self._served is not None:
            return "off", ""
        return ("unknown", "") if self._complained is None else ("taken", "{}:{}".format(*self._complained))

    async def _run(self) -> None:
        while True:
            try:
                await self._settle()
            except Exception:  # any error: a broker works without its page
                logger.exception("the page of this node is not served, trying again")
            await asyncio.sleep(FIRST_S if self.state()[0] == "unknown" else SETTLE_S)

    async def _settle(self) -> None:
        wanted = await self._wanted()
        if wanted == self._served:
            return
        await self._close()
        if wanted is None or not wanted[1]:
            self._served = wanted
            return
        http = HttpServer(self._answer)
        try:
            self.endpoint = await http.start(*wanted)
        except OSError as error:
            if wanted != self._complained:
                self._complained = wanted
                what = "is taken" if error.errno == errno.EADDRINUSE else f"is not to be had ({error})"
                logger.info("metrics: %s:%d %s; this broker serves the page when it can be had", *wanted, what)
            return
        self._http, self._served, self._complained = http, wanted, None
        logger.info("metrics at http://%s:%d/metrics", *self.endpoint)

    async def _close(self) -> None:
        http, self._http, self._served, self.endpoint = self._http, None, None, None
        if http is not None:
            await http.close()

    async def _wanted(self) -> Address | None:
        """Return the address that the page should have; None while that is not known."""
        note = self._server.spec.folder / NOTE
        if not self._server.image.version:
            return await asyncio.to_thread(_read_note, note)
        config = ClusterConfig.from_dict(self._server.image.config)
        own = self._server.spec.host
        host = {"loopback": "127.0.0.1", "node": own, "all": "0.0.0.0"}[config.metrics_listen]
        wanted = host, config.metrics_port
        if wanted != self._served:
            with suppress(OSError):  # without the note, the page is back a little later after the next start
                await asyncio.to_thread(_write_note, note, wanted)
        return wanted

    # ------------------------------------------------------------ answers

    async def _answer(self, path: str) -> Page:
        if path == "/metrics":
            return Page(HTTPStatus.OK, CONTENT_TYPE, await self._page.get())
        if path == "/healthz":
            reasons = [] if self._server.is_locked else ["the data directory is not locked by this process"]
            return _verdict(reasons)
        if path == "/readyz":
            return _verdict([reason for report in await self._reports() for reason in report.reasons])
        if path == "/sd":
            return json_page(HTTPStatus.OK, self._targets())
        if path == "/":
            return Page(HTTPStatus.OK, "text/html; charset=utf-8", (await self._people()).encode(errors="replace"))
        return text_page(HTTPStatus.NOT_FOUND, "there is /metrics, /healthz, /readyz and /sd\n")

    async def _people(self) -> str:
        image, host = self._server.image, self._server.endpoint[0]
        reports, groups = await asyncio.gather(self._reports(), self._groups.families(image, host))
        families = [*(family for report in reports for family in report.families), *groups]
        reasons = [reason for report in reports for reason in report.reasons]
        return self._overview.page(families, reasons, INDEX.format(broker=self._server.broker), monotonic_ms() / 1000)

    async def _metrics(self) -> bytes:
        began_ms = monotonic_ms()
        image, host = self._server.image, self._server.endpoint[0]
        reports, *others = await asyncio.gather(
            self._reports(),
            self._controller(),
            self._groups.families(image, host),
            transaction_metrics(self._client, image, host),
        )
        took = Family("raylog_metrics_collection_seconds", "gauge", "Time that making this page took.")
        took.add((monotonic_ms() - began_ms) / 1000)
        known = (family for families in others for family in families)
        families = [*(family for report in reports for family in report.families), *known, took]
        return render(families).encode(errors="replace")

    async def _reports(self) -> list[BrokerReport]:
        """Return the reports of all brokers here; for one that does not answer, a report with the reason alone."""
        own, others = await asyncio.gather(self._server.metrics.report(), self._others())
        return [own, *others]

    async def _others(self) -> list[BrokerReport]:
        server = self._server
        here: dict[Endpoint, int] = {}
        reports = []
        for known in server.image.brokers.values():
            if known.broker == server.broker or known.host != server.endpoint[0] or known.stopped:
                continue
            if known.online:
                here[known.host, known.port] = known.broker
            else:
                reports.append(BrokerReport([], [f"broker {known.broker} is offline"]))
        answers = await self._client.call({item: ("broker_metrics", []) for item in here}, BROKER_S)
        for place, broker in here.items():
            answer = answers.get(place)
            try:
                if not isinstance(answer, dict):
                    raise ValueError("no answer")
                reports.append(BrokerReport(families_from_wire(answer["families"]), list(answer["reasons"])))
            except (ValueError, KeyError, TypeError) as error:
                reports.append(BrokerReport([], [f"broker {broker} does not report: {error}"]))
        return reports

    async def _controller(self) -> list[Family]:
        """Return the controller's metrics if it runs on this node."""
        link = self._server.link
        if link.place is None or link.place[0] != self._server.endpoint[0] or not link.is_connected:
            return [active_controller(0)]
        try:
            reply = await link.call("controller_metrics", [], timeout_s=CONTROLLER_S)
            return [active_controller(1), *families_from_wire(reply.args)]
        except (RaylogError, ValueError, TypeError) as error:
            logger.debug("the controller has no figures: %s", error)
            return [active_controller(0)]

    def _targets(self) -> list[dict[str, object]]:
        """Return the pages of all nodes in the form of Prometheus' http_sd."""
        image = self._server.image
        port = ClusterConfig.from_dict(image.config).metrics_port
        targets: list[dict[str, object]] = []
        for host in sorted({broker.host for broker in image.brokers.values() if broker.online}):
            brokers = sorted(
                int(broker.broker) for broker in image.brokers.values() if broker.online and broker.host == host
            )
            labels = {"cluster_id": image.cluster_id, "brokers": ",".join(map(str, brokers))}
            targets.append({"targets": [f"{host}:{port}"], "labels": labels})
        return targets if port else []


def _verdict(reasons: list[str]) -> Page:
    if reasons:
        return json_page(HTTPStatus.SERVICE_UNAVAILABLE, {"status": "unavailable", "reasons": reasons})
    return json_page(HTTPStatus.OK, {"status": "ok"})


def _read_note(file: Path) -> Address | None:
    try:
        host, port = file.read_text(encoding="ascii").split()
        return (host, int(port)) if 0 <= int(port) <= 65_535 else None
    except (OSError, ValueError):
        return None


def _write_note(file: Path, address: Address) -> None:
    if _read_note(file) != address:
        notes.written(file, f"{address[0]} {address[1]}\n")
