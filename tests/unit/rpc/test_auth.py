"""The handshake alone, without sockets."""

from __future__ import annotations

import pytest

from raylog.rpc.auth import (
    ANSWER_BYTES,
    HELLO_BYTES,
    NONCE_BYTES,
    REFUSAL,
    VERDICT_BYTES,
    ClientHandshake,
    ServerHandshake,
)
from raylog.rpc.errors import AuthenticationFailed

SERVER_NONCE = bytes(range(NONCE_BYTES))
CLIENT_NONCE = bytes(range(100, 100 + NONCE_BYTES))


def pair(server_secret: bytes = b"s", client_secret: bytes = b"s") -> tuple[ServerHandshake, ClientHandshake]:
    return ServerHandshake(server_secret, SERVER_NONCE), ClientHandshake(client_secret, CLIENT_NONCE)


def flip(message: bytes, position: int) -> bytes:
    return message[:position] + bytes([message[position] ^ 1]) + message[position + 1 :]


def test_two_ends_with_one_secret_believe_each_other() -> None:
    server, client = pair()
    assert len(server.opening) == HELLO_BYTES == client.wanted_bytes
    answer = client.receive(server.opening)
    assert len(answer) == ANSWER_BYTES == server.wanted_bytes
    verdict = server.receive(answer)
    assert len(verdict) == VERDICT_BYTES == client.wanted_bytes
    assert client.receive(verdict) == b""
    assert server.is_done
    assert client.is_done


def test_a_client_with_another_secret_is_refused_and_learns_it() -> None:
    server, client = pair(client_secret=b"other")
    with pytest.raises(AuthenticationFailed, match="does not know"):
        server.receive(client.receive(server.opening))
    assert not server.is_done
    with pytest.raises(AuthenticationFailed, match="refused our secret"):
        client.receive(server.farewell)


def test_a_server_that_accepts_everybody_is_not_believed() -> None:
    server, client = pair()
    client.receive(server.opening)
    with pytest.raises(AuthenticationFailed, match="do not trust"):
        client.receive(b"\x01" + bytes(32))
    assert not client.is_done


def test_a_clients_own_proof_sent_back_to_it_is_not_believed() -> None:
    server, client = pair()
    answer = client.receive(server.opening)
    with pytest.raises(AuthenticationFailed):
        client.receive(b"\x01" + answer[-32:])


def test_an_answer_to_another_servers_nonce_is_refused() -> None:
    server, client = pair()
    answer = client.receive(server.opening)
    with pytest.raises(AuthenticationFailed):
        ServerHandshake(b"s", CLIENT_NONCE).receive(answer)


@pytest.mark.parametrize("position", range(ANSWER_BYTES))
def test_every_changed_bit_of_an_answer_is_noticed(position: int) -> None:
    server, client = pair()
    with pytest.raises(AuthenticationFailed):
        server.receive(flip(client.receive(server.opening), position))


@pytest.mark.parametrize("position", range(VERDICT_BYTES))
def test_every_changed_bit_of_a_verdict_is_noticed(position: int) -> None:
    server, client = pair()
    verdict = server.receive(client.receive(server.opening))
    with pytest.raises(AuthenticationFailed):
        client.receive(flip(verdict, position))


def test_something_that_is_no_raylog_is_named_so() -> None:
    _, client = pair()
    with pytest.raises(AuthenticationFailed, match="no Raylog"):
        client.receive(b"HTTP/1.1 400 Bad Request".ljust(HELLO_BYTES))


def test_an_empty_secret_and_a_short_nonce_are_refused() -> None:
    with pytest.raises(ValueError, match="secret is empty"):
        ServerHandshake(b"", SERVER_NONCE)
    with pytest.raises(ValueError, match="nonce"):
        ClientHandshake(b"s", b"short")


def test_a_refusal_can_never_be_a_proof() -> None:
    assert REFUSAL[0] != 1
