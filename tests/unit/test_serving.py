"""When a start may return: what is waited for, and what no longer."""

from typing import Any

from raylog.launch.readiness import FOLLOWERS_WAIT_S, Readiness


def status(there: set[str], **partition: Any) -> dict[str, Any]:
    topics = {"t": [{"partition": 0, **partition}]} if partition else {}
    return {
        "brokers": [
            {"broker": number, "node_id": f"n{number}", "online": f"n{number}" in there} for number in (1, 2, 3)
        ],
        "topics": topics,
    }


def nodes(*numbers: int) -> Any:
    return lambda: {f"n{number}" for number in numbers}


def on_nodes() -> Readiness:
    return Readiness({"n1": "host-1", "n2": "host-2"}, embedded=False)


def test_every_node_that_is_there_has_to_have_its_broker() -> None:
    waiting = on_nodes()
    assert not waiting.look(status({"n1"}), 0.0, nodes(1, 2))
    assert "host-2" in waiting.problem
    assert waiting.look(status({"n1", "n2"}), 1.0, nodes(1, 2))


def test_a_node_that_was_lost_meanwhile_is_not_waited_for() -> None:
    assert on_nodes().look(status({"n1"}), 0.0, nodes(1))


def test_brokers_of_this_machine_are_waited_for_whatever_ray_says() -> None:
    waiting = Readiness({1: "here", 2: "here"}, embedded=True)
    assert not waiting.look(status({"n1"}), 0.0, nodes())
    assert waiting.look(status({"n1", "n2"}), 0.0, nodes())


def test_a_partition_without_a_local_leader_only_delays_the_start() -> None:
    waiting = Readiness({1: "here", 2: "here"}, embedded=True)
    seen = status({"n1", "n2"}, leader=-1, replicas=[1, 2], online=[1, 2], isr=[3])
    assert not waiting.look(seen, 100.0, nodes())
    assert "t-0" in waiting.problem
    assert not waiting.look(seen, 100.0 + FOLLOWERS_WAIT_S, nodes())
    assert waiting.look(seen, 100.1 + FOLLOWERS_WAIT_S, nodes())
    assert waiting.hopeless == ["t-0"]


def test_the_start_waits_for_in_sync_replicas_within_a_limit() -> None:
    waiting = Readiness({1: "here"}, embedded=True)
    seen = status({"n1"}, leader=1, replicas=[1, 2], online=[1], isr=[1, 2])
    assert not waiting.look(seen, 0.0, nodes())
    assert waiting.look(seen, 0.1 + FOLLOWERS_WAIT_S, nodes())


def test_a_start_counts_brokers_first_and_then_replicas_with_a_process() -> None:
    waiting = Readiness({1: "here", 2: "here"}, embedded=True)
    assert waiting.so_far == ""
    waiting.look(status({"n1"}), 0.0, nodes())
    assert waiting.so_far == "1 of 2 brokers online"
    seen = status({"n1", "n2"}, leader=1, replicas=[1, 2], online=[1], isr=[1, 2])
    seen["topics"]["quiet"] = [
        {"partition": 0, "leader": 1, "replicas": [1, 2], "online": [1, 2], "isr": [1, 2], "asleep": True}
    ]
    waiting.look(seen, 0.0, nodes())
    assert waiting.so_far == "1 of 2 replicas ready"


def test_what_slept_when_the_brokers_came_is_not_waited_for_when_it_wakes() -> None:
    waiting = Readiness({1: "here"}, embedded=True)
    seen = status({"n1"}, leader=1, replicas=[1], online=[], isr=[1])
    quiet = {"partition": 0, "leader": 1, "replicas": [1], "online": [1], "isr": [1], "asleep": True}
    seen["topics"]["quiet"] = [quiet]
    assert not waiting.look(seen, 0.0, nodes())
    seen["topics"]["t"][0]["online"] = [1]
    quiet.update(asleep=False, online=[])  # its processes are starting
    assert waiting.look(seen, 1.0, nodes())
    assert waiting.so_far == "1 of 1 replicas ready"
