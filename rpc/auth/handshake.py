"""The handshake by which both ends prove that they know a secret of the cluster, without sending it.

    server -> client   "RAYLOG" | highest version u8 | server nonce (32) | length u16 | body
                       body: lowest version u8
    client -> server   version u8 | length u16 | number of proofs u8 | body | proofs (32 each)
                       body: lowest version u8 | highest u8 | kind u8 | client nonce (32) | feature level u16
                             | software (u8 length) | dialled address (u8 length) | claims of a token (u16 length)
    server -> client   accepted u8 | length u16 | body | proof (32), the proof only when accepted
                       body: role u8 | feature level u16 | software (u8 length) | is replaced u8
                       of a refusal: reason u8

A proof is an HMAC-SHA256 of all bytes sent before it in both directions, under a label of the direction and the hash
of the server's certificate where there is TLS. So no message can be changed, replayed or used on another connection,
and a process in between that relays them is refused: the client's address of the server is not the server's own
(`addresses.py`), or the certificate differs. A client sends one proof for each value that its secret has. Bytes that
follow the known fields of a body are ignored, so that later versions can add some; the first 39 bytes of a hello and
the first byte of the other messages are the same in every version. No message is longer than `MAX_MESSAGE_BYTES`.

Pure: nonces, addresses and time are arguments, bytes come in and go out; `Connection` does the I/O.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

from raylog.base.access import Role
from raylog.base.errors import AuthenticationFailed
from raylog.rpc.auth.credentials import MAX_VALUES, Credentials
from raylog.rpc.auth.tokens import Form, Grant, TokenError, key_of, read_claims

FEATURE_LEVEL = 1
"""Raised by one when this software gains an ability that peers have to know of before it is used."""
SOFTWARE = "raylog 0.2.0"
"""Name and version of this software; a test compares it with the package's."""

LOWEST_VERSION, HIGHEST_VERSION = 2, 2
"""Versions of the handshake that this software speaks. Version 1 bound neither address nor certificate."""
NONCE_BYTES = 32
MAX_MESSAGE_BYTES = 1024
MAX_SOFTWARE_BYTES = 64
_MAGIC = b"RAYLOG"
_PROOF_BYTES = 32
_SECRET = 1  # kind of proof; the others are the forms of a token's claims
_FORMS = {int(form): form for form in Form}
_LENGTH = struct.Struct(">H")
_ANSWER_HEAD = struct.Struct(">BHB")
_VERDICT_HEAD = struct.Struct(">BH")
_PREFIX_BYTES = len(_MAGIC) + 1 + NONCE_BYTES


class Refusal(IntEnum):
    """Why the server refuses, as sent to the client. Unless the peer has proved a secret, always the first."""

    UNKNOWN_SECRET = 0
    OTHER_VERSION = 1
    OTHER_ADDRESS = 2
    TOKEN_EXPIRED = 3
    MALFORMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """What each end observes of the connection. Invariant: equal at both ends, or the connection is relayed."""

    address: str = ""
    """The address that the client's socket is connected to; at the server, its own end of the connection."""
    certificate: bytes = b""
    """SHA-256 of the server's certificate; empty without TLS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """What one end reports about itself."""

    feature_level: int = FEATURE_LEVEL
    name: str = SOFTWARE
    versions: tuple[int, int] = (LOWEST_VERSION, HIGHEST_VERSION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The authenticated properties of the other end."""

    role: Role
    """The client's role, as granted by the server."""
    feature_level: int
    software: str
    grant: Grant | None = field(default=None, repr=False)
    """The grant of a token; None for the other roles."""
    is_replaced: bool = False
    """At the client: whether a newer secret replaces the one that it has proved, or that its token was made with."""


class _Fields:
    """Reads the fields of a body in order; bytes after the last field read are ignored."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._body):
            raise AuthenticationFailed("The peer sent a handshake message that ends too early.")
        found, self._at = self._body[self._at : end], end
        return found

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def text(self) -> str:
        return self.take(self.number(1)).decode("ascii", errors="replace")


def _text(text: str, most: int = 255) -> bytes:
    encoded = text.encode("ascii", errors="replace")[:most]
    return bytes([len(encoded)]) + encoded


def _proof(key: bytes, label: bytes, certificate: bytes, transcript: bytes) -> bytes:
    return hmac.digest(key, label + _LENGTH.pack(len(certificate)) + certificate + transcript, "sha256")


_CLIENT, _SERVER = b"raylog handshake, client\x00", b"raylog handshake, server\x00"


def _check_length(length: int) -> int:
    if length > MAX_MESSAGE_BYTES - _PREFIX_BYTES - MAX_VALUES * _PROOF_BYTES:
        raise AuthenticationFailed(f"The peer announced a handshake message of {length} bytes; it is no Raylog.")
    return length


def _check_nonce(nonce: bytes) -> None:
    if len(nonce) != NONCE_BYTES:
        raise ValueError(f"A nonce has {NONCE_BYTES} bytes, not {len(nonce)}.")


class ServerHandshake:
    """The accepting end. `bind` it, send `opening`, then pass each message of `wanted_bytes` bytes to `receive`."""

    def __init__(
        self,
        credentials: Credentials,
        nonce: bytes,
        *,
        now_s: Callable[[], float],
        accepts: Callable[[str, str], bool] = str.__eq__,
        software: Software | None = None,
    ) -> None:
        """`now_s` returns seconds since 1970; `accepts(dialled, own)` decides whether an address is this server's."""
        _check_nonce(nonce)
        if not credentials.accepted():
            raise ValueError("The cluster's secret is empty: any client could connect. Give at least 16 bytes.")
        self._credentials = credentials
        self._now_s = now_s
        self._accepts = accepts
        self._software = software or Software()
        self._ends = Endpoints()
        lowest, highest = self._software.versions
        body = bytes([lowest])
        self.opening = _MAGIC + bytes([highest]) + nonce + _LENGTH.pack(len(body)) + body
        self._head = b""
        self.wanted_bytes = _ANSWER_HEAD.size
        self.peer: Peer | None = None
        self.farewell = _refusal(Refusal.MALFORMED)
        """The bytes to send before closing when `receive` has raised."""

    @property
    def is_done(self) -> bool:
        """Whether the client has been accepted."""
        return self.peer is not None

    def bind(self, ends: Endpoints) -> None:
        """Bind to the connection's addresses and certificate; before the first message is received."""
        self._ends = ends

    def receive(self, message: bytes) -> bytes:
        """Process the next part of the client's answer; return the reply, if any. Raises AuthenticationFailed."""
        if not self._head:
            return self._take_head(message)
        transcript = self.opening + self._head + message
        count = self._head[-1]
        proofs = message[-count * _PROOF_BYTES :]
        fields = _Fields(message[: -count * _PROOF_BYTES])
        theirs = (fields.number(1), fields.number(1))
        kind, _ = fields.number(1), fields.take(NONCE_BYTES)
        level, software, address = fields.number(2), fields.text(), fields.text()
        claims = fields.take(fields.number(2))
        role, key, is_replaced = self._key_proved(kind, claims, proofs, transcript[: -len(proofs)])
        if not self._accepts(address, self._ends.address):
            self.farewell = _refusal(Refusal.OTHER_ADDRESS)
            raise AuthenticationFailed(
                f"The client meant to reach {address or 'an unknown address'} and has reached {self._ends.address}: "
                "something between forwards connections. If that is wanted, name its address in "
                "RAYLOG_ADVERTISED_ADDRESSES where this server runs."
            )
        grant = self._grant(claims, _FORMS[kind]) if role == Role.TOKEN else None
        if self._head[0] != min(theirs[1], self._software.versions[1]):
            raise AuthenticationFailed("The client chose a version of the handshake below the newest common one.")
        self.peer = Peer(role=role, feature_level=level, software=software, grant=grant)
        self.wanted_bytes = 0
        return self._verdict(role, key, transcript, is_replaced=is_replaced)

    def _take_head(self, message: bytes) -> bytes:
        version, length, count = _ANSWER_HEAD.unpack(message)
        lowest, highest = self._software.versions
        if not lowest <= version <= highest:
            self.farewell = _refusal(Refusal.OTHER_VERSION)
            raise AuthenticationFailed(
                f"The client speaks version {version} of the handshake, we speak {lowest} to {highest}: upgrade it."
            )
        if not 1 <= count <= MAX_VALUES:
            raise AuthenticationFailed(f"The client announced {count} proofs; it is no Raylog.")
        self.wanted_bytes = _check_length(length) + count * _PROOF_BYTES
        self._head = message
        return b""

    def _key_proved(self, kind: int, claims: bytes, proofs: bytes, proved: bytes) -> tuple[Role, bytes, bool]:
        """Compare every proof with every accepted key; the timing does not reveal which one was close.

        Returns the role, the key, and whether a newer secret replaces that one.
        """
        newest = (*self._credentials.cluster[:1], *self._credentials.client[:1])
        keys = [(role, value, value not in newest) for role, value in self._credentials.accepted()]
        if kind in _FORMS:
            keys = [(Role.TOKEN, key_of(value, claims, _FORMS[kind]), is_old) for _, value, is_old in keys]
        elif kind != _SECRET:
            raise AuthenticationFailed(f"The client proves something of kind {kind}, which this version does not know.")
        found: tuple[Role, bytes, bool] | None = None
        for role, key, is_old in keys:
            right = _proof(key, _CLIENT, self._ends.certificate, proved)
            for at in range(0, len(proofs), _PROOF_BYTES):
                if hmac.compare_digest(right, proofs[at : at + _PROOF_BYTES]) and found is None:
                    found = (role, key, is_old)
        if found is None:
            self.farewell = _refusal(Refusal.UNKNOWN_SECRET)
            raise AuthenticationFailed("The client does not know this cluster's secret.")
        return found

    def _grant(self, claims: bytes, form: Form) -> Grant:
        try:
            grant = read_claims(claims, form)
        except TokenError as error:
            raise AuthenticationFailed(str(error)) from None
        if self._now_s() >= grant.expires_s:
            self.farewell = _refusal(Refusal.TOKEN_EXPIRED)
            raise AuthenticationFailed("The client's token has expired.")
        return grant

    def _verdict(self, role: Role, key: bytes, transcript: bytes, *, is_replaced: bool) -> bytes:
        body = (
            bytes([role])
            + _LENGTH.pack(self._software.feature_level)
            + _text(self._software.name, MAX_SOFTWARE_BYTES)
            + bytes([is_replaced])
        )
        verdict = _VERDICT_HEAD.pack(1, len(body)) + body
        return verdict + _proof(key, _SERVER, self._ends.certificate, transcript + verdict)


class ClientHandshake:
    """The connecting end. `bind` it, then pass each message of `wanted_bytes` bytes to `receive`."""

    opening = b""
    farewell = b""

    def __init__(self, credentials: Credentials, nonce: bytes, *, software: Software | None = None) -> None:
        _check_nonce(nonce)
        token = credentials.token
        self._keys = credentials.offered if token is None else (token.key,)
        self._claims = b"" if token is None else token.claims
        if not self._keys:
            raise ValueError("The cluster's secret is empty; give the secret of the cluster to connect to.")
        self._kind: int = _SECRET if token is None else token.form
        self._nonce = nonce
        self._software = software or Software()
        self._ends = Endpoints()
        self._transcript = b""
        self._verdict = b""
        self._is_answered = False
        self.wanted_bytes = _PREFIX_BYTES
        self.peer: Peer | None = None

    @property
    def is_done(self) -> bool:
        """Whether both ends have accepted each other."""
        return self.peer is not None

    def bind(self, ends: Endpoints) -> None:
        """Bind to the connection's addresses and certificate; before the first message is received."""
        self._ends = ends

    def receive(self, message: bytes) -> bytes:
        """Process the next part of the hello or the verdict; return the reply. Raises AuthenticationFailed."""
        if self._is_answered:
            self._take_verdict(message)
            return b""
        at, self._transcript = len(self._transcript), self._transcript + message
        if at == 0:
            self._check_prefix(message)
            self.wanted_bytes = _LENGTH.size
            return b""
        if at == _PREFIX_BYTES:
            self.wanted_bytes = _check_length(_LENGTH.unpack(message)[0])
            if not self.wanted_bytes:
                raise AuthenticationFailed("The server sent a hello without its lowest version; it is no Raylog.")
            return b""
        return self._answer(lowest=_Fields(message).number(1))

    def _check_prefix(self, prefix: bytes) -> None:
        if prefix[: len(_MAGIC)] != _MAGIC:
            raise AuthenticationFailed("What listens there is no Raylog server: check host and port.")
        lowest, highest = self._software.versions
        if prefix[len(_MAGIC)] < lowest:
            raise AuthenticationFailed(
                f"The server speaks version {prefix[len(_MAGIC)]} of the handshake at most, we speak {lowest} to "
                f"{highest}: upgrade the server."
            )

    def _answer(self, lowest: int) -> bytes:
        own_lowest, own_highest = self._software.versions
        if lowest > own_highest:
            raise AuthenticationFailed(
                f"The server speaks version {lowest} of the handshake or newer, we speak {own_lowest} to "
                f"{own_highest}: upgrade this client."
            )
        body = (
            bytes([own_lowest, own_highest, self._kind])
            + self._nonce
            + _LENGTH.pack(self._software.feature_level)
            + _text(self._software.name, MAX_SOFTWARE_BYTES)
            + _text(self._ends.address)
            + _LENGTH.pack(len(self._claims))
            + self._claims
        )
        version = min(self._transcript[len(_MAGIC)], own_highest)
        head = _ANSWER_HEAD.pack(version, len(body), len(self._keys))
        proved = self._transcript + head + body
        proofs = b"".join(_proof(key, _CLIENT, self._ends.certificate, proved) for key in self._keys)
        self._transcript = proved + proofs
        self._is_answered = True
        self.wanted_bytes = _VERDICT_HEAD.size
        return head + body + proofs

    def _take_verdict(self, message: bytes) -> None:
        if not self._verdict:
            accepted, length = _VERDICT_HEAD.unpack(message)
            if accepted not in (0, 1) or not length:
                raise AuthenticationFailed("The server sent no verdict on our answer; it is no Raylog.")
            self._verdict = message
            self.wanted_bytes = _check_length(length) + accepted * _PROOF_BYTES
            return
        if not self._verdict[0]:
            raise AuthenticationFailed(_sentence(message[0], self._ends.address, self._kind))
        verdict, proof = self._verdict + message[:-_PROOF_BYTES], message[-_PROOF_BYTES:]
        rights = [_proof(key, _SERVER, self._ends.certificate, self._transcript + verdict) for key in self._keys]
        if not any(hmac.compare_digest(right, proof) for right in rights):
            raise AuthenticationFailed("The server does not know the cluster's secret; do not trust it.")
        fields = _Fields(message[:-_PROOF_BYTES])
        role, level, software = fields.number(1), fields.number(2), fields.text()
        # A role that a later version may add has no use in this version.
        known = Role(role) if role in Role._value2member_map_ else Role.TOKEN
        is_replaced = bool(fields.number(1))
        self.peer = Peer(role=known, feature_level=level, software=software, is_replaced=is_replaced)
        self.wanted_bytes = 0


def _refusal(reason: Refusal) -> bytes:
    return _VERDICT_HEAD.pack(0, 1) + bytes([reason])


def _sentence(reason: int, address: str, kind: int) -> str:
    """The message for a refusal, which is not authenticated: the texts are ours, and the server only chooses one."""
    match reason:
        case Refusal.UNKNOWN_SECRET if kind != _SECRET:
            return (
                "The server refused our token: it was made with a secret that this cluster does not have, or no longer "
                "has. Make a new one for this cluster (`raylog token create`)."
            )
        case Refusal.TOKEN_EXPIRED:
            return (
                "The server refused our token: it has expired. Make a new one (`raylog token create`) and give it to "
                "the client; a read by Ray Data or Spark makes one when it is planned again."
            )
        case Refusal.MALFORMED if kind == Form.TOPICS:
            return (
                "The server could not read our token: its release may be from before tokens for whole topics. Upgrade "
                "the server, or use a secret."
            )
        case Refusal.OTHER_VERSION:
            return "The server refused our version of the handshake: upgrade the older of the two."
        case Refusal.OTHER_ADDRESS:
            return (
                f"The server that answers at {address} does not know this address for its own: something between "
                "forwards connections. If that is a NAT or a tunnel that you want, name the address in "
                "RAYLOG_ADVERTISED_ADDRESSES where the server runs; otherwise do not trust it."
            )
        case Refusal.MALFORMED:
            return "The server could not read our part of the handshake: upgrade the older of the two."
        case _:
            return (
                "The server refused our secret: use the secret of the cluster it belongs to, and the new one if it was "
                "changed there."
            )


class Greeting:
    """The bytes of one handshake: collects the peer's messages, and never reads a byte after them.

    Owned by a `Connection` until the peer has authenticated.
    """

    def __init__(self, handshake: ClientHandshake | ServerHandshake, most_bytes: int) -> None:
        """`most_bytes` is the longest message accepted from an unauthenticated peer."""
        self._handshake = handshake
        self._buffer = memoryview(bytearray(most_bytes))
        self._collected_bytes = 0
        self.is_accepting = isinstance(handshake, ServerHandshake)
        """Whether the peer connected to this end."""
        self.has_received = False
        """Whether any byte of the peer has come."""

    @property
    def peer(self) -> Peer | None:
        """The peer, once it has authenticated."""
        return self._handshake.peer

    @property
    def farewell(self) -> bytes:
        """The bytes to send to a refused peer."""
        return self._handshake.farewell

    def open(self, ends: Endpoints) -> bytes:
        """Return the first message to send, over a connection with these ends."""
        self._handshake.bind(ends)
        return self._handshake.opening

    def get_buffer(self) -> memoryview:
        """The buffer for the socket's next bytes: at most the rest of the awaited message."""
        return self._buffer[self._collected_bytes : self._handshake.wanted_bytes or None]

    def take(self, count: int) -> bytes:
        """Process `count` bytes written to the buffer; return the bytes to send. Raises AuthenticationFailed."""
        self._collected_bytes += count
        self.has_received = True
        if self._collected_bytes < self._handshake.wanted_bytes:
            return b""
        message = bytes(self._buffer[: self._collected_bytes])
        self._collected_bytes = 0
        return self._handshake.receive(message)
