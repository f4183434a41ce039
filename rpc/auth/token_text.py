"""A token as one line of text, as people copy it: into a variable, a file, an option of Spark.

    raylog-token-<base64url of: version u8 | form u8 | key (32) | claims | CRC-32 of all that u32>

The checksum distinguishes a line that was cut or mistyped from a token that a server refuses. Used by clients, by
`Admin` and by the command line. Pure.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib

from raylog.rpc.auth.tokens import Form, Token, TokenError

PREFIX = "raylog-token-"
_VERSION = 1
_KEY_BYTES = 32
_HEAD = struct.Struct(f">BB{_KEY_BYTES}s")
_CHECKSUM = struct.Struct(">I")
_FORMS = {int(form): form for form in Form}


def token_text(token: Token) -> str:
    """The token in one line. It has all that is needed to use the token."""
    body = _HEAD.pack(_VERSION, token.form, token.key) + token.claims
    return PREFIX + base64.urlsafe_b64encode(body + _CHECKSUM.pack(zlib.crc32(body))).decode().rstrip("=")


def parse_token(text: str) -> Token:
    """Read the line; white space is ignored. Raises TokenError with what to do, and never with the text."""
    line = "".join(text.split())
    if not line.startswith(PREFIX):
        raise TokenError(
            f"A token begins with {PREFIX!r}, and this text does not: give the line that `raylog token create` prints. "
            "A secret is given as secret, not as token."
        )
    encoded = line[len(PREFIX) :]
    try:
        whole = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _damaged() from None
    body = whole[: -_CHECKSUM.size]
    if len(body) < _HEAD.size or whole[-_CHECKSUM.size :] != _CHECKSUM.pack(zlib.crc32(body)):
        raise _damaged()
    version, form, key = _HEAD.unpack_from(body)
    if version != _VERSION or form not in _FORMS:
        raise TokenError("The token was made by a newer release of Raylog than this one: upgrade this client.")
    token = Token(body[_HEAD.size :], key, _FORMS[form])
    _ = token.grant  # raises TokenError for claims that cannot be read
    return token


def _damaged() -> TokenError:
    return TokenError(
        "The token is incomplete, or was changed while it was copied: give the whole line that `raylog token create` "
        "printed."
    )
