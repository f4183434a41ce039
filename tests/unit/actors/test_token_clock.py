"""Tokens end once, whatever happens to the wall clock."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from raylog.actors.actor_specs import BrokerSpec
from raylog.actors.permissions import permissions
from raylog.actors.token_clock import LOOK_MS, TokenClock, token_clock
from raylog.actors.transport import listen
from raylog.core.clock_guard import BELIEVED_AFTER_MS, JUMP_MS
from raylog.protocol.broker import BROKER
from raylog.protocol.replica import REPLICA
from raylog.rpc import Grant, Request, RequestConnection, Role, TopicGrant
from raylog.rpc.auth.secret_files import SecretFiles, make_secrets
from raylog.rpc.auth.tokens import ALL_PARTITIONS

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


class Clocks:
    """A machine's clocks, which the test moves."""

    def __init__(self) -> None:
        self.boot_ms, self.ahead_ms = 5_000, START_MS - 5_000
        self.clock = TokenClock(
            since_boot=lambda: self.boot_ms,
            wall=lambda: self.boot_ms + self.ahead_ms,
            monotonic=lambda: self.boot_ms,
        )

    def after(self, passed_ms: int, *, jump_ms: int = 0) -> int:
        """Return the milliseconds since the start by the tokens' clock."""
        self.boot_ms += passed_ms
        self.ahead_ms += jump_ms
        return round(self.clock.now_s() * 1000) - START_MS


def test_it_goes_with_the_wall_clock() -> None:
    clocks = Clocks()
    assert clocks.after(0) == 0
    assert clocks.after(LOOK_MS) == LOOK_MS
    assert clocks.after(HOUR_MS, jump_ms=900) == LOOK_MS + HOUR_MS + 900


@pytest.mark.parametrize("jump_ms", [-24 * HOUR_MS, -2 * JUMP_MS, 2 * JUMP_MS, 24 * HOUR_MS])
def test_a_jump_neither_revives_nor_ends_a_token(jump_ms: int, caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks()
    assert clocks.after(HOUR_MS) == HOUR_MS
    assert clocks.after(LOOK_MS, jump_ms=jump_ms) == HOUR_MS + LOOK_MS
    assert clocks.after(HOUR_MS) == 2 * HOUR_MS + LOOK_MS
    assert "Tokens end by the clock before the jump" in caplog.text
    assert clocks.after(LOOK_MS, jump_ms=-jump_ms) == 2 * HOUR_MS + 2 * LOOK_MS


def test_a_clock_that_stays_where_it_was_set_is_believed_after_a_day() -> None:
    clocks = Clocks()
    clocks.after(LOOK_MS, jump_ms=48 * HOUR_MS)
    for _ in range(23):
        clocks.after(HOUR_MS)
    assert clocks.after(BELIEVED_AFTER_MS - 23 * HOUR_MS) == LOOK_MS + BELIEVED_AFTER_MS + 48 * HOUR_MS


def test_it_stands_still_where_the_wall_clock_is_set_back_a_little() -> None:
    clocks = Clocks()
    before = clocks.after(HOUR_MS)
    assert clocks.after(LOOK_MS, jump_ms=-30_000) == before
    assert clocks.after(29_000) == before
    assert clocks.after(2_000) == HOUR_MS + LOOK_MS + 31_000 - 30_000


class Sent:
    """Takes the answers to requests."""

    refusals = None

    def __init__(self) -> None:
        self.answers: list[str] = []

    def send_error(self, correlation_id: int, description: list[Any], request_bytes: int) -> None:
        self.answers.append(description[1])

    def send_reply(self, correlation_id: int, args: object, payload: object, request_bytes: int) -> None:
        self.answers.append("served")


@pytest.mark.parametrize("jump_ms", [-24 * HOUR_MS, 24 * HOUR_MS])
def test_a_connection_is_served_up_to_the_end_of_its_token(jump_ms: int) -> None:
    clocks, sent = Clocks(), Sent()
    found = replace(permissions(REPLICA), now_s=clocks.clock.now_s)
    grant = Grant((START_MS + HOUR_MS) // 1000, (TopicGrant("id", "t", ALL_PARTITIONS),))
    _, handler = found.admit(Role.TOKEN, grant, lambda request: request.reply())

    def answer(method: str, *args: object) -> str:
        encoded = msgspec.Raw(msgspec.msgpack.encode(args))
        handler(Request(cast("RequestConnection", sent), 1, method, encoded, memoryview(b""), False))
        return sent.answers.pop()

    clocks.after(HOUR_MS // 2, jump_ms=jump_ms)
    assert answer("fetch", "id", 0, 0, 0, 1, 1, 0, 0) == answer("list_offsets", "id", 0, 0, -1) == "served"
    clocks.after(HOUR_MS // 2)
    assert "expired" in answer("fetch", "id", 0, 0, 0, 1, 1, 0, 0)
    clocks.after(LOOK_MS, jump_ms=-24 * HOUR_MS)
    assert "expired" in answer("fetch", "id", 0, 0, 0, 1, 1, 0, 0)
    assert "expired" in answer("list_offsets", "id", 0, 0, -1)


def test_every_endpoint_of_an_actor_goes_by_it(tmp_path: Path) -> None:
    make_secrets(tmp_path)
    spec = BrokerSpec(
        broker=1, folder=tmp_path / "b", secret=SecretFiles(tmp_path), cluster_id="c", node_id="n", host="127.0.0.1"
    )
    server = listen(lambda request: None, spec, permissions(BROKER))
    assert server.permissions is not None
    assert server.permissions.now_s == token_clock().now_s
