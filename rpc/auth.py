"""The handshake by which both ends prove that they know the cluster's secret, without sending it.

    server -> client   "RAYLOG" | version | server nonce (32)
    client -> server   version | client nonce (32) | HMAC-SHA256(secret, "client" | version | both nonces)
    server -> client   1 | HMAC-SHA256(secret, "server" | version | both nonces), or 33 zero bytes: refused

Every message has a fixed size, so nothing has to be parsed from a stranger. Pure: nonces are arguments, bytes come in
and go out; `Connection` does the rest. May touch: nothing.
"""

from __future__ import annotations

import hmac

from raylog.rpc.errors import AuthenticationFailed

VERSION = 1
NONCE_BYTES = 32
_MAGIC = b"RAYLOG"
_PROOF_BYTES = 32
_ACCEPTED = b"\x01"

HELLO_BYTES = len(_MAGIC) + 1 + NONCE_BYTES
ANSWER_BYTES = 1 + NONCE_BYTES + _PROOF_BYTES
VERDICT_BYTES = 1 + _PROOF_BYTES
REFUSAL = bytes(VERDICT_BYTES)


def _proof(secret: bytes, role: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    return hmac.digest(secret, role + bytes([VERSION]) + server_nonce + client_nonce, "sha256")


def _check(secret: bytes, nonce: bytes) -> None:
    if not secret:
        raise ValueError("The cluster's secret is empty: anybody could connect. Give at least one byte.")
    if len(nonce) != NONCE_BYTES:
        raise ValueError(f"A nonce has {NONCE_BYTES} bytes, not {len(nonce)}.")


class ServerHandshake:
    """The accepting end. Send `opening`, then give each message of `wanted_bytes` bytes to `receive`."""

    def __init__(self, secret: bytes, nonce: bytes) -> None:
        _check(secret, nonce)
        self._secret = secret
        self._nonce = nonce
        self.opening = _MAGIC + bytes([VERSION]) + nonce
        self.wanted_bytes = ANSWER_BYTES
        self.is_done = False
        self.peer_is_member = True
        """Whether the peer proved that it is a part of the cluster; with a single secret every peer is."""
        self.farewell = REFUSAL
        """What to send before closing when `receive` has raised."""

    def receive(self, message: bytes) -> bytes:
        """Check the client's answer; return our verdict to send. Raises AuthenticationFailed."""
        version, client_nonce, proof = message[0], message[1 : 1 + NONCE_BYTES], message[1 + NONCE_BYTES :]
        if version != VERSION:
            raise AuthenticationFailed(f"The client speaks version {version} of the handshake, we speak {VERSION}.")
        if not hmac.compare_digest(proof, _proof(self._secret, b"client", self._nonce, client_nonce)):
            raise AuthenticationFailed("The client does not know this cluster's secret.")
        self.is_done = True
        self.wanted_bytes = 0
        return _ACCEPTED + _proof(self._secret, b"server", self._nonce, client_nonce)


class ClientHandshake:
    """The connecting end. It says nothing first; give each message of `wanted_bytes` bytes to `receive`."""

    opening = b""
    farewell = b""

    def __init__(self, secret: bytes, nonce: bytes) -> None:
        _check(secret, nonce)
        self._secret = secret
        self._nonce = nonce
        self._server_nonce = b""
        self.wanted_bytes = HELLO_BYTES
        self.is_done = False

    def receive(self, message: bytes) -> bytes:
        """Take the hello (return our answer) or the verdict (return nothing). Raises AuthenticationFailed."""
        if not self._server_nonce:
            if message[: len(_MAGIC)] != _MAGIC:
                raise AuthenticationFailed("What listens there is no Raylog server: check host and port.")
            if message[len(_MAGIC)] != VERSION:
                raise AuthenticationFailed(
                    f"The server speaks version {message[len(_MAGIC)]} of the handshake, we speak {VERSION}."
                )
            self._server_nonce = message[len(_MAGIC) + 1 :]
            self.wanted_bytes = VERDICT_BYTES
            return bytes([VERSION]) + self._nonce + _proof(self._secret, b"client", self._server_nonce, self._nonce)
        if message == REFUSAL:
            raise AuthenticationFailed("The server refused our secret: use the secret of the cluster it belongs to.")
        if not hmac.compare_digest(
            message, _ACCEPTED + _proof(self._secret, b"server", self._server_nonce, self._nonce)
        ):
            raise AuthenticationFailed("The server does not know the cluster's secret; do not trust it.")
        self.is_done = True
        self.wanted_bytes = 0
        return b""
