"""Laws of the handshake: only the honest run ends well, and nothing that a stranger sends does more than end it."""

from hypothesis import given
from hypothesis import strategies as st

from raylog.base.errors import AuthenticationFailed
from raylog.rpc.auth.credentials import Credentials, to_dial
from raylog.rpc.auth.handshake import MAX_MESSAGE_BYTES, ClientHandshake, Endpoints, ServerHandshake

secrets = st.binary(min_size=16, max_size=40)
nonces = st.binary(min_size=32, max_size=32)
ends = st.builds(
    Endpoints, address=st.sampled_from(["", "10.0.0.1:1", "10.0.0.2:1"]), certificate=st.binary(max_size=2)
)


def run(server: ServerHandshake, client: ClientHandshake, meddle: tuple[int, int, int] | None = None) -> bool:
    """Pass the messages on until both are done; `meddle` changes (message, position, bits). False = it was refused."""
    turn, place, bits = meddle or (-1, 0, 0)
    try:
        message = server.opening
        turns: list[ClientHandshake | ServerHandshake] = [client, server, client]
        for number, end in enumerate(turns):
            if number == turn:
                changed = bytearray(message)
                changed[place % len(changed)] ^= bits
                message = bytes(changed)
            sent = b""
            while message and end.wanted_bytes:
                assert end.wanted_bytes <= MAX_MESSAGE_BYTES
                part, message = message[: end.wanted_bytes], message[end.wanted_bytes :]
                if len(part) < end.wanted_bytes:
                    return False  # the deadline ends it
                sent += end.receive(part)
            message = sent
    except AuthenticationFailed:
        return False
    return server.is_done and client.is_done


def made(
    credentials: Credentials, nonce: bytes, offered: bytes, other: bytes, here: Endpoints, there: Endpoints
) -> tuple[ServerHandshake, ClientHandshake]:
    server = ServerHandshake(credentials, nonce, now_s=lambda: 0.0)
    server.bind(here)
    client = ClientHandshake(to_dial(offered), other)
    client.bind(there)
    return server, client


@given(
    st.lists(secrets, min_size=1, max_size=2, unique=True),
    st.lists(secrets, max_size=2, unique=True),
    secrets,
    st.integers(0, 4),
    nonces,
    nonces,
    ends,
    ends,
)
def test_a_handshake_succeeds_exactly_when_secret_and_certificate_agree(
    cluster: list[bytes],
    clients: list[bytes],
    guess: bytes,
    choice: int,
    one_nonce: bytes,
    other_nonce: bytes,
    here: Endpoints,
    there: Endpoints,
) -> None:
    credentials = Credentials.of_cluster(cluster, clients)
    known = [*cluster, *credentials.client]
    offered = [*known, guess][min(choice, len(known))]
    server, client = made(credentials, one_nonce, offered, other_nonce, here, there)
    assert run(server, client) == (offered in known and here == there)


@given(secrets, nonces, nonces, st.integers(0, 2), st.integers(0, MAX_MESSAGE_BYTES), st.integers(1, 255))
def test_no_changed_byte_gets_through(
    secret: bytes, one: bytes, other: bytes, turn: int, place: int, bits: int
) -> None:
    here = Endpoints(address="10.0.0.1:1")
    server, client = made(Credentials.of_cluster([secret]), one, secret, other, here, here)
    assert not run(server, client, (turn, place, bits))


@given(st.binary(max_size=2000), st.booleans())
def test_whatever_a_stranger_sends_only_ends_the_handshake(garbage: bytes, is_begun: bool) -> None:
    server, client = made(
        Credentials.of_cluster([b"s" * 16]), bytes(32), b"s" * 16, bytes(32), Endpoints(), Endpoints()
    )
    for end in (server, client):
        message = (b"\x02" if end is server else b"RAYLOG\x02") * is_begun + garbage
        try:
            while message and end.wanted_bytes:
                assert 0 < end.wanted_bytes <= MAX_MESSAGE_BYTES
                part, message = message[: end.wanted_bytes], message[end.wanted_bytes :]
                if len(part) < end.wanted_bytes:
                    break
                end.receive(part)
        except AuthenticationFailed:
            pass
        assert not end.is_done
