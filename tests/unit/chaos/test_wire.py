"""What a link does to packets, and what the network part says where it cannot run."""

import os
import random
import socket

import pytest

from tests.chaos.arena import LeftOut, incomplete
from tests.chaos.injuries import namespace
from tests.chaos.injuries.cuts import both
from tests.chaos.wire import QUEUE_BYTES, Link, Wire


def arrivals(link: Link, packets: int, size: int = 1000, every_s: float = 0.001) -> list[float | None]:
    rng = random.Random(1)
    return [link.carry(size, number * every_s, rng) for number in range(packets)]


def test_a_cut_link_carries_nothing() -> None:
    assert set(arrivals(Link(cut=True), 100)) == {None}


def test_a_lossy_link_loses_about_its_share() -> None:
    lost = arrivals(Link(loss=0.2), 2000).count(None)
    assert 300 < lost < 500


def test_a_slow_link_delays_and_nothing_overtakes() -> None:
    times = [arrival for arrival in arrivals(Link(delay_s=0.1, jitter_s=0.1), 500) if arrival is not None]
    assert len(times) == 500
    assert times == sorted(times)
    assert all(0.1 <= arrives_s - number * 0.001 < 0.3 for number, arrives_s in enumerate(times))


def test_a_narrow_link_keeps_its_rate_and_drops_what_it_cannot_keep() -> None:
    times = arrivals(Link(bytes_per_s=100_000), 2000)
    arrived = [time for time in times if time is not None]
    assert None in times
    assert len(arrived) * 1000 / arrived[-1] == pytest.approx(100_000, rel=0.01)
    assert max(time - number * 0.001 for number, time in enumerate(times) if time is not None) <= QUEUE_BYTES / 100_000


def test_a_device_replaced_with_a_packet_waiting_does_not_end_the_wire() -> None:
    parent, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    node, device = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    order = [b'{"address": "10.0.0.1"}']
    with parent, control, node, device:
        wire = Wire(control)
        socket.send_fds(parent, order, [device.fileno()])
        assert wire._obey()
        socket.send_fds(parent, order, [device.fileno()])
        node.send(b"a packet")  # both are met by one poll, the order first
        parent.shutdown(socket.SHUT_WR)
        wire.run()
        wire._unplug(wire._devices[socket.inet_aton("10.0.0.1")])


def test_both_directions_are_named() -> None:
    assert both("a", ["b", "c"]) == [("a", "b"), ("b", "a"), ("a", "c"), ("c", "a")]


def test_without_root_the_part_is_left_out_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LeftOut, match="take root on Linux"):
        namespace.require_root()


def test_a_view_is_whole_only_with_all_brokers_leaders_and_the_full_isr() -> None:
    partition = {"partition": 0, "leader": 1, "isr": [1, 2], "replicas": [2, 1]}
    brokers = [{"broker": 1, "online": True}, {"broker": 2, "online": True}]
    view = {"brokers": brokers, "topics": {"t": [partition]}}
    assert incomplete(view, 2) == ""
    assert incomplete(None, 2) == "the controller does not answer"
    assert incomplete(view, 3) == "broker 3 is offline"
    partition["leader"] = -1
    assert incomplete(view, 2) == "t-0 has no leader"
    partition["leader"], partition["isr"] = 1, [1]
    assert incomplete(view, 2) == "t-0 has in sync [1] of [1, 2]"
