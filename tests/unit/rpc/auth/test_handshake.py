"""The handshake alone, without sockets."""

import pickle
from typing import Any
from unittest import mock

import pytest

from raylog.base.access import Role
from raylog.base.errors import AuthenticationFailed
from raylog.rpc.auth.credentials import Credentials, derived_client_secret, to_dial, to_listen
from raylog.rpc.auth.handshake import (
    MAX_MESSAGE_BYTES,
    NONCE_BYTES,
    ClientHandshake,
    Endpoints,
    ServerHandshake,
    Software,
)
from raylog.rpc.auth.tokens import ALL_PARTITIONS, Form, Grant, Token, TokenError, TopicGrant, mint, ranges_of

SERVER_NONCE = bytes(range(NONCE_BYTES))
CLIENT_NONCE = bytes(range(100, 100 + NONCE_BYTES))
CLUSTER = b"the cluster's secret"
CLIENT = b"the clients' own secret"
HERE = Endpoints(address="192.0.2.1:9092")
NOW_S = 1_000_000.0
GRANT = Grant(int(NOW_S) + 60, (TopicGrant("t" * 32, "orders", ranges_of([0, 2])),))
WIDE = Grant(
    int(NOW_S) + 60,
    (TopicGrant("0a" * 16, "orders", ALL_PARTITIONS, writes=True), TopicGrant("id", "t", (range(3), range(5, 9)))),
    transactional_id_prefix="sink",
    group="g",
)


def server(credentials: Credentials | bytes = CLUSTER, ends: Endpoints = HERE, **more: Any) -> ServerHandshake:
    made = ServerHandshake(to_listen(credentials), SERVER_NONCE, **{"now_s": lambda: NOW_S, **more})
    made.bind(ends)
    return made


def client(secret: Credentials | Token | bytes = CLUSTER, ends: Endpoints = HERE, **more: Any) -> ClientHandshake:
    made = ClientHandshake(to_dial(secret), CLIENT_NONCE, **more)
    made.bind(ends)
    return made


def feed(handshake: ClientHandshake | ServerHandshake, message: bytes) -> bytes:
    """Pass a message in parts of the requested size; returns the bytes to send."""
    sent = b""
    while message:
        part, message = message[: handshake.wanted_bytes], message[handshake.wanted_bytes :]
        sent += handshake.receive(part)
    return sent


def ends_well(handshake: ClientHandshake | ServerHandshake, message: bytes, *, answered: bool = False) -> bool:
    """Whether a message is accepted (or, `answered`, replied to); after a longer length the end keeps waiting."""
    try:
        sent = feed(handshake, message)
    except AuthenticationFailed:
        return False
    return bool(sent) if answered else handshake.is_done


def shake(accepting: ServerHandshake, connecting: ClientHandshake) -> None:
    """Run the whole handshake; a refusal is delivered to the client before it is raised."""
    answer = feed(connecting, accepting.opening)
    try:
        verdict = feed(accepting, answer)
    except AuthenticationFailed:
        with pytest.raises(AuthenticationFailed):
            feed(connecting, accepting.farewell)
        raise
    assert feed(connecting, verdict) == b""
    assert accepting.is_done
    assert connecting.is_done
    assert accepting.wanted_bytes == connecting.wanted_bytes == 0


def why(accepting: ServerHandshake, connecting: ClientHandshake) -> tuple[str, str]:
    """The error of either end of a refused handshake."""
    answer = feed(connecting, accepting.opening)
    with pytest.raises(AuthenticationFailed) as refused:
        feed(accepting, answer)
    assert not accepting.is_done
    with pytest.raises(AuthenticationFailed) as failed:
        feed(connecting, accepting.farewell)
    return str(refused.value), str(failed.value)


def flip(message: bytes, position: int) -> bytes:
    return message[:position] + bytes([message[position] ^ 1]) + message[position + 1 :]


def test_two_ends_with_one_secret_accept_each_other() -> None:
    accepting, connecting = server(), client()
    shake(accepting, connecting)
    assert accepting.peer is not None
    assert connecting.peer is not None
    assert accepting.peer.role == connecting.peer.role == Role.CLUSTER


def test_each_end_learns_feature_level_and_software_of_the_other() -> None:
    accepting = server(software=Software(feature_level=7, name="raylog 7.1"))
    connecting = client(software=Software(feature_level=5, name="raylog 5.0"))
    shake(accepting, connecting)
    assert accepting.peer is not None
    assert connecting.peer is not None
    assert (accepting.peer.feature_level, accepting.peer.software) == (5, "raylog 5.0")
    assert (connecting.peer.feature_level, connecting.peer.software) == (7, "raylog 7.1")


@pytest.mark.parametrize(
    ("given", "role"),
    [
        (CLUSTER, Role.CLUSTER),
        (CLIENT, Role.CLIENT),
        (mint(CLIENT, GRANT), Role.TOKEN),
        (mint(CLUSTER, GRANT), Role.TOKEN),
    ],
)
def test_the_role_follows_from_what_was_proved(given: bytes | Token, role: Role) -> None:
    accepting, connecting = server(Credentials.of_cluster([CLUSTER], [CLIENT])), client(given)
    shake(accepting, connecting)
    assert accepting.peer is not None
    assert accepting.peer.role == role
    assert (accepting.peer.grant == GRANT) is (role == Role.TOKEN)


def test_without_a_secret_of_their_own_clients_have_one_that_is_derived() -> None:
    accepting = server(CLUSTER)
    shake(accepting, client(derived_client_secret(CLUSTER)))
    assert accepting.peer is not None
    assert accepting.peer.role == Role.CLIENT


OLD, NEW = b"an old value of it", b"the new value of it"


@pytest.mark.parametrize("held", [[OLD], [NEW, OLD], [OLD, NEW]])
@pytest.mark.parametrize("offered", [[OLD], [NEW, OLD], [OLD, NEW]])
def test_peers_with_the_old_and_the_new_secret_connect_during_a_change(held: list[bytes], offered: list[bytes]) -> None:
    shake(server(Credentials.of_cluster(held)), client(Credentials.of_cluster(offered)))


def test_an_old_value_that_was_removed_is_refused() -> None:
    reasons = why(server(Credentials.of_cluster([NEW])), client(Credentials.of_cluster([OLD])))
    assert "does not know this cluster's secret" in reasons[0]


def test_a_client_with_another_secret_is_refused_and_learns_it() -> None:
    refused, failed = why(server(), client(b"another cluster's"))
    assert "does not know" in refused
    assert "refused our secret" in failed


def test_a_server_that_accepts_any_client_is_refused() -> None:
    accepting, connecting = server(), client()
    feed(connecting, accepting.opening)
    with pytest.raises(AuthenticationFailed, match="do not trust"):
        feed(connecting, b"\x01\x00\x04\x03\x00\x01\x00" + bytes(32))
    assert not connecting.is_done


def test_a_server_with_the_clients_secret_cannot_pass_for_a_broker() -> None:
    # An actor offers the cluster's values alone, so a client's host cannot stand in for the controller.
    pretender, actor = server(Credentials.of_cluster([CLIENT], [CLIENT])), client(Credentials.of_cluster([CLUSTER]))
    assert "does not know" in why(pretender, actor)[0]


def test_a_clients_own_proof_sent_back_to_it_is_not_believed() -> None:
    accepting, connecting = server(), client()
    answer = feed(connecting, accepting.opening)
    with pytest.raises(AuthenticationFailed):
        feed(connecting, b"\x01\x00\x04\x03\x00\x01\x00" + answer[-32:])


def test_an_answer_to_another_servers_nonce_is_refused() -> None:
    answer = feed(client(), server().opening)
    replayed = ServerHandshake(to_listen(CLUSTER), CLIENT_NONCE, now_s=lambda: NOW_S)
    replayed.bind(HERE)
    with pytest.raises(AuthenticationFailed, match="does not know"):
        feed(replayed, answer)


def test_a_foreign_address_is_refused_and_both_ends_report_it() -> None:
    refused, failed = why(server(), client(ends=Endpoints(address="192.0.2.66:9092")))
    assert "meant to reach 192.0.2.66:9092 and has reached 192.0.2.1:9092" in refused
    assert "192.0.2.66:9092 does not know this address for its own" in failed
    assert "RAYLOG_ADVERTISED_ADDRESSES" in refused
    assert "RAYLOG_ADVERTISED_ADDRESSES" in failed


def test_a_stranger_learns_nothing_of_the_address() -> None:
    assert "secret" in why(server(), client(b"another cluster's", Endpoints(address="192.0.2.66:1")))[1]


def test_an_advertised_address_is_accepted() -> None:
    shake(
        server(accepts=lambda dialled, own: dialled == "203.0.113.5:1"), client(ends=Endpoints(address="203.0.113.5:1"))
    )


def test_another_certificate_than_the_servers_is_refused() -> None:
    shown = Endpoints(address=HERE.address, certificate=b"c" * 32)
    shake(server(ends=shown), client(ends=shown))
    why(server(ends=shown), client(ends=Endpoints(address=HERE.address, certificate=b"m" * 32)))
    why(server(ends=shown), client())


def test_an_expired_token_is_refused_and_the_holder_learns_it() -> None:
    accepting = server(now_s=lambda: NOW_S + 60)
    refused, failed = why(accepting, client(mint(CLUSTER, GRANT)))
    assert "expired" in refused
    assert "expired" in failed


def test_claims_of_a_token_cannot_be_changed() -> None:
    token = mint(CLIENT, GRANT)
    more = Grant(GRANT.expires_s * 2, GRANT.topics)
    forged = Token(mint(b"whatever it is that is known", more).claims, token.key)
    assert "does not know" in why(server(Credentials.of_cluster([CLUSTER], [CLIENT])), client(forged))[0]


def test_a_tokens_key_is_no_secret() -> None:
    token = mint(CLIENT, GRANT)
    why(server(Credentials.of_cluster([CLUSTER], [CLIENT])), client(token.key))
    assert CLIENT not in pickle.dumps(token)


def test_a_token_of_whole_topics_gives_what_was_granted() -> None:
    accepting = server(Credentials.of_cluster([CLUSTER], [CLIENT]))
    shake(accepting, client(mint(CLIENT, WIDE)))
    assert accepting.peer is not None
    assert (accepting.peer.role, accepting.peer.grant) == (Role.TOKEN, WIDE)


def test_the_key_of_one_form_opens_nothing_in_the_other() -> None:
    held = Credentials.of_cluster([CLUSTER], [CLIENT])
    for grant in (GRANT, WIDE):
        token = mint(CLIENT, grant)
        other = Form.TOPICS if token.form == Form.PARTITIONS else Form.PARTITIONS
        assert "does not know" in why(server(held), client(Token(token.claims, token.key, other)))[0]


def test_a_token_of_another_cluster_is_refused_in_one_sentence() -> None:
    _, failed = why(server(Credentials.of_cluster([CLUSTER], [CLIENT])), client(mint(b"another cluster's", WIDE)))
    assert failed == (
        "The server refused our token: it was made with a secret that this cluster does not have, or no longer has. "
        "Make a new one for this cluster (`raylog token create`)."
    )


def test_a_release_before_whole_topics_refuses_their_tokens_in_words() -> None:
    with mock.patch("raylog.rpc.auth.handshake._FORMS", {2: Form.PARTITIONS}):
        refused, failed = why(server(CLIENT), client(mint(CLIENT, WIDE)))
        assert "kind 3" in refused
        assert "Upgrade the server" in failed
        shake(server(CLIENT), client(mint(CLIENT, GRANT)))


def test_a_grant_that_fits_into_no_message_is_refused_when_it_is_made() -> None:
    name = "n" * 249
    with pytest.raises(TokenError, match="grant fewer"):
        mint(CLIENT, Grant(1, tuple(TopicGrant("0a" * 16, name, ALL_PARTITIONS) for _ in range(3))))
    for partitions in (range(1000, 1100), range(1000, 1400), range(0, 200, 2)):
        longest = mint(CLIENT, Grant(2**40, (TopicGrant("t" * 32, name, ranges_of(partitions)),)))
        assert len(feed(client(longest), server().opening)) <= MAX_MESSAGE_BYTES


@pytest.mark.parametrize("position", range(len(feed(client(), server().opening))))
def test_every_changed_bit_of_an_answer_is_noticed(position: int) -> None:
    accepting = server()
    changed = flip(feed(client(), accepting.opening), position)
    assert not ends_well(accepting, changed)


@pytest.mark.parametrize("position", range(42))
def test_every_changed_bit_of_a_hello_or_a_verdict_is_noticed(position: int) -> None:
    accepting, connecting = server(), client()
    if ends_well(connecting, flip(accepting.opening, position), answered=True):
        hello = flip(accepting.opening, position)
        assert not ends_well(accepting, feed(client(), hello))
    accepting, connecting = server(), client()
    verdict = feed(accepting, feed(connecting, accepting.opening))
    assert not ends_well(connecting, flip(verdict, position))


def test_what_later_versions_add_behind_the_known_fields_is_ignored() -> None:
    # The parts are put together by hand, as a later version would: its bodies are longer, its range is wider.
    accepting = server()
    body = bytes([2]) + b"something new"
    accepting.opening = accepting.opening[:6] + b"\x07" + SERVER_NONCE + len(body).to_bytes(2, "big") + body
    accepting._software = Software(versions=(2, 7))
    connecting = client()
    answer = feed(connecting, accepting.opening)
    assert answer[0] == 2
    assert feed(connecting, feed(accepting, answer)) == b""
    assert connecting.is_done


def test_of_two_ranges_of_versions_the_newest_common_one_is_used() -> None:
    accepting = server(software=Software(versions=(2, 5)))
    connecting = client(software=Software(versions=(1, 3)))
    assert feed(connecting, accepting.opening)[0] == 3


def test_versions_that_do_not_meet_are_named() -> None:
    for mine, theirs, advice in (((2, 2), (3, 4), "upgrade this client"), ((3, 4), (2, 2), "upgrade the server")):
        with pytest.raises(AuthenticationFailed, match=advice):
            feed(client(software=Software(versions=mine)), server(software=Software(versions=theirs)).opening)
    accepting = server()
    with pytest.raises(AuthenticationFailed, match="version 9 of the handshake, we speak 2 to 2"):
        feed(accepting, b"\x09\x00\x10\x01")
    connecting = client()
    feed(connecting, server().opening)
    with pytest.raises(AuthenticationFailed, match="upgrade the older"):
        feed(connecting, accepting.farewell)


def test_the_first_version_is_refused_in_a_sentence_by_both_ends() -> None:
    with pytest.raises(AuthenticationFailed, match="version 1 of the handshake at most, we speak 2 to 2"):
        feed(client(), b"RAYLOG\x01" + bytes(32))
    opening = server().opening
    assert (opening[:6], opening[6]) == (b"RAYLOG", 2), "where the first version looks for another's number"
    with pytest.raises(AuthenticationFailed, match="version 1"):
        feed(server(), b"\x01" + bytes(64))


def test_something_that_is_no_raylog_is_named_so() -> None:
    with pytest.raises(AuthenticationFailed, match="no Raylog"):
        feed(client(), b"HTTP/1.1 400 Bad Request".ljust(39))


@pytest.mark.parametrize("length", [922, 5000, 65535])
def test_an_announced_length_that_fits_into_no_message_is_refused(length: int) -> None:
    accepting = server()
    with pytest.raises(AuthenticationFailed):
        feed(accepting, b"\x02" + length.to_bytes(2, "big") + b"\x02" + bytes(length))
    with pytest.raises(AuthenticationFailed):
        feed(client(), server().opening[:39] + length.to_bytes(2, "big") + bytes(length))


def test_an_empty_or_short_secret_is_refused_and_not_shown() -> None:
    with pytest.raises(ValueError, match="secret is empty"):
        to_listen(b"")
    with pytest.raises(ValueError, match="empty"):
        to_dial(b"")
    for make in (to_listen, to_dial):
        with pytest.raises(ValueError, match="at least 16 bytes") as short:
            make(b"fifteen bytes..")
        assert "fifteen" not in str(short.value)
    with pytest.raises(ValueError, match="at most 2"):
        Credentials.of_cluster([OLD, NEW, CLUSTER])
    with pytest.raises(ValueError, match="nonce"):
        ClientHandshake(to_dial(CLUSTER), b"short")


def test_credentials_and_tokens_are_never_shown_or_pickled() -> None:
    held = Credentials.of_cluster([CLUSTER], [CLIENT])
    token = mint(CLIENT, GRANT)
    for shown in (repr(held), str(held), f"{held}", repr(token), repr(Credentials(token=token)), repr(server(held))):
        assert "secret" not in shown
        assert token.key.hex() not in shown
        assert "orders" not in shown
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(held)


def test_a_client_learns_that_its_secret_is_being_replaced() -> None:
    new, newer = b"the clients' new secret", b"the cluster's new secret"
    changing = Credentials((newer, CLUSTER), (new, CLIENT))
    old: list[Credentials | Token | bytes] = [CLUSTER, CLIENT, mint(CLIENT, GRANT)]
    current: list[Credentials | Token | bytes] = [newer, new, mint(new, GRANT), Credentials(client=(new, CLIENT))]
    for secret in (*old, *current):
        connecting = client(secret)
        shake(server(changing), connecting)
        assert connecting.peer is not None
        assert connecting.peer.is_replaced == any(secret is each for each in old)
