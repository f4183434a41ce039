"""Every node that offers the resource gets a broker, even while other nodes fail."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from raylog.actors.actor_specs import BrokerSpec, ControllerSpec
from raylog.actors.broker.node_watch import NodeWatch
from raylog.storage.errors import WrongDirectory


def listed(*names: str) -> list[dict[str, Any]]:
    return [
        {"NodeID": name, "NodeManagerAddress": f"host-of-{name}", "Alive": True, "Resources": {"raylog": 1.0}}
        for name in names
    ]


async def given(rows: list[list[dict[str, Any]]], lost: str, last: str) -> tuple[set[str], bool]:
    """Show a watch the rows in order; returns the nodes that got a broker, and whether the lost node's was let be."""
    done: set[str] = set()
    all_served = asyncio.Event()
    let_be = asyncio.Event()

    def nodes() -> list[dict[str, Any]]:
        if not rows[0]:
            rows.pop(0)
            raise RuntimeError("Ray does not answer")
        return rows.pop(0) if len(rows) > 1 else rows[0]

    async def make(spec: BrokerSpec) -> None:
        if spec.node_id == lost:
            try:
                await asyncio.Event().wait()
            finally:
                let_be.set()
        done.add(spec.node_id)
        if spec.node_id == last:
            all_served.set()

    spec = ControllerSpec(data_directory=Path("c"), secret=b"", cluster_id="c", node_folder=Path("broker"))
    watch = NodeWatch(spec, nodes=nodes, make_broker=make, check_s=0.01)
    watch.start()
    try:
        async with asyncio.timeout(10):
            await all_served.wait()
            if lost and not any(row["NodeID"] == lost for row in rows[-1]):
                await let_be.wait()
    finally:
        await watch.stop()
    return done, let_be.is_set()


def test_a_node_that_is_lost_while_it_gets_its_broker_holds_up_no_other() -> None:
    assert asyncio.run(given([listed("a-lost", "b")], "a-lost", "b")) == ({"b"}, True)


def test_the_wait_for_a_broker_ends_with_its_node() -> None:
    assert asyncio.run(given([listed("a-lost"), listed("b")], "a-lost", "b")) == ({"b"}, True)


def test_a_failed_listing_of_nodes_is_repeated() -> None:
    assert asyncio.run(given([[], listed("a", "b")], "", "b"))[0] == {"a", "b"}


def test_a_node_with_another_clusters_directory_is_named_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        refused_before = asyncio.Event()
        tries: list[BrokerSpec] = []

        async def make(spec: BrokerSpec) -> None:
            tries.append(spec)
            if len(tries) > 1:
                refused_before.set()
            refusal = WrongDirectory(spec.folder, "cluster.id", "a" * 32, "b" * 32)
            raise RuntimeError(f"The actor died: {type(refusal).__name__}: {refusal}")  # as Ray passes it on

        spec = ControllerSpec(data_directory=Path("c"), secret=b"", cluster_id="c", node_folder=Path("broker"))
        watch = NodeWatch(spec, nodes=lambda: listed("b"), make_broker=make, check_s=0.01)
        watch.start()
        try:
            async with asyncio.timeout(10):
                await refused_before.wait()
        finally:
            await watch.stop()

    with caplog.at_level(logging.ERROR):
        asyncio.run(story())
    assert "on host-of-b belongs to another cluster" in caplog.text
    assert "raylog start --join" in caplog.text
