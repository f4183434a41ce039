"""Every public call of every client refuses an argument of a wrong type by an error of its own, with one sentence.

Each argument of each call is replaced by values of other kinds. The call may take what it is given; else its error is
raised on purpose, in a module of Raylog, and reads as a sentence. None hangs.
"""

from __future__ import annotations

import inspect
import linecache
import traceback
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

import raylog
from raylog.base.errors import RaylogError, StopRefused
from raylog.base.ids import TopicPartition
from raylog.client.types import OffsetAndMetadata
from tests.unit.client.consumer_support import fill, numbers, with_coordinator
from tests.unit.client.toy_server import ToyCluster

HERE = TopicPartition("t", 0)
WRONG: tuple[Any, ...] = (
    None, 5, -1, 2.5, float("nan"), True, "x", "", b"x", [], [object()], [None], [5], ["x"], {}, {"a": object()},
    {object(): 1}, {HERE: object()}, {("t", 0): "1"}, {"t": 5}, ("t", "0"), ("t", -1), (5, 0), object(),
    datetime(2030, 1, 1), lambda: None,
)  # fmt: skip
SAMPLES: dict[str, Any] = {
    "topic": "t",
    "name": "t",
    "topics": ["t"],
    "names": ["t"],
    "partition": HERE,
    "partitions": [HERE],
    "group_id": "g",
    "group": "g",
    "txid": "t-1",
    "timestamps": {HERE: 0},
    "epochs": {HERE: 0},
    "offset": 0,
    "offsets": {HERE: OffsetAndMetadata(0)},
    "before": {HERE: 0},
    "total": 2,
    "number": 1,
    "level": 1,
    "broker": 1,
    "producer_id": 1,
    "transactional_ids": ["tx"],
    "schedule_id": "s-1",
    "reassignments": {HERE: [1]},
    "to": "earliest",
    "values": [b"a"],
    "handler": lambda message: None,
    "prepared_state": raylog.PreparedTxnState(1, 0),
    "group_metadata": raylog.ConsumerGroupMetadata("g"),
    "columns": None,
}
"""What a parameter without a default gets, by its name."""
WAITS = {"timeout_s": 0.3, "timeout": 0.1, "timeout_ms": 1}
"""For these None and numbers are legal, and some would wait long."""
ENDING = {"close", "run", "end"}
LIMITS = {"request_timeout_ms": 300, "retry_backoff_max_ms": 20}
CLIENTS: dict[type[Any], dict[str, Any]] = {
    raylog.Producer: {"max_block_ms": 300, "delivery_timeout_ms": 600},
    raylog.Consumer: {"group_id": "g", "default_api_timeout_ms": 300},
    raylog.Admin: {},
    raylog.QueueConsumer: {"group_id": "q"},
}


def calls(client: type[Any]) -> list[str]:
    """The names of its public methods that take an argument, but for those that end it."""
    found = []
    for name, method in inspect.getmembers(client, callable):
        if not name.startswith("_") and name not in ENDING and len(inspect.signature(method).parameters) > 1:
            found.append(name)
    return found


ALL = [(client, name) for client in CLIENTS for name in calls(client)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ToyCluster]:
    with ToyCluster(brokers=1) as running:
        with_coordinator(running)
        running.create_topic("t")
        fill(running, "t", 0, numbers(0, 10))
        yield running


@pytest.fixture(scope="module")
def opened(cluster: ToyCluster) -> Iterator[dict[type[Any], Any]]:
    """A client of each kind."""
    made: dict[type[Any], Any] = {}
    for client, options in CLIENTS.items():
        topics = ("t",) if client is raylog.QueueConsumer else ()
        made[client] = client(*topics, **cluster.options, **{**LIMITS, **options})
    yield made
    for client_of_kind in made.values():
        client_of_kind.close(**({} if isinstance(client_of_kind, raylog.Admin) else {"timeout": 1.0}))


def complaint(error: BaseException) -> str:
    """What is wrong with an error; empty for one that was raised on purpose and reads as a sentence."""
    text = error.message if isinstance(error, RaylogError) else str(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    if isinstance(error, (TimeoutError, StopRefused)):  # the toy's words for a broker that it does not have
        return ""
    if not isinstance(error, (RaylogError, TypeError, ValueError)):
        return f"{type(error).__name__}: {text}"
    if "raise" not in linecache.getline(last.filename, last.lineno or 0) and not isinstance(error, RaylogError):
        return f"{type(error).__name__}: {text} (not raised on purpose, {last.filename}:{last.lineno})"
    if not text.endswith((".", "?", "!")) or not text[:1].strip():
        return f"{type(error).__name__}: {text!r} is no sentence"
    return ""


def arguments(client: type[Any], name: str) -> tuple[list[str], dict[str, Any], str]:
    """Parameters that are replaced, what the required ones have otherwise, and the name of a variadic one."""
    parameters = list(inspect.signature(getattr(client, name)).parameters.values())[1:]
    variadic = next((each.name for each in parameters if each.kind is inspect.Parameter.VAR_POSITIONAL), "")
    plain = [each for each in parameters if each.name != variadic]
    given: dict[str, Any] = {}
    for each in plain:
        if each.default is inspect.Parameter.empty:
            given[each.name] = SAMPLES[each.name]
        elif each.name in WAITS:
            given[each.name] = WAITS[each.name]
    return [each.name for each in plain], given, variadic


@pytest.mark.parametrize(("client", "name"), ALL, ids=[f"{client.__name__}.{name}" for client, name in ALL])
def test_a_wrong_argument_is_refused_with_one_sentence(
    opened: dict[type[Any], Any], client: type[Any], name: str
) -> None:
    replaced, given, variadic = arguments(client, name)
    complaints = []
    for parameter in [*replaced, *([variadic] if variadic else [])]:
        for wrong in WRONG:
            if parameter in WAITS and (wrong is None or isinstance(wrong, (int, float))):
                continue
            method = getattr(opened[client], name)
            if client is raylog.Consumer:
                opened[client].assign([HERE])
                opened[client].seek(HERE, 0)
            try:
                if parameter == variadic:
                    method(wrong, **given)
                else:
                    method(**{**given, parameter: wrong})
            except Exception as error:  # judged
                if problem := complaint(error):
                    complaints.append(f"{name}({parameter}={wrong!r:.60}) -> {problem}")
    assert not complaints, "\n".join(complaints)
