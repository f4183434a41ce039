"""A client's credentials (a secret or a token): a fixed value, or a file that is read again when it changes.

A file is looked at for each new connection, so a service keeps working when its secret is changed or its token
replaced. Nothing that a peer sends has an influence on this. May touch: these files, the log.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias

from raylog.base.errors import InvalidConfig
from raylog.rpc import Credentials, Token
from raylog.rpc.auth.credentials import MAX_VALUES, check_secret
from raylog.rpc.auth.token_text import PREFIX, parse_token, token_text
from raylog.rpc.auth.tokens import TokenError

logger = logging.getLogger(__name__)

ENV_SECRET = "RAYLOG_SECRET"  # the name of an environment variable, not a secret
ENV_TOKEN = "RAYLOG_TOKEN"  # the same
ENV_SECRET_FILE = "RAYLOG_SECRET_FILE"
ENV_TOKEN_FILE = "RAYLOG_TOKEN_FILE"
VARIABLES = {"secret": ENV_SECRET, "token": ENV_TOKEN, "secret_file": ENV_SECRET_FILE, "token_file": ENV_TOKEN_FILE}
"""The configuration keys for credentials, and the environment variables that replace them."""
MAX_FILE_BYTES = 4096
SECRET_DIGITS = 32
"""A path of at least so many hexadecimal digits, and nothing else, is taken for a secret."""
_State = tuple[int, int, int]


def parse_secret(secret: bytes | str) -> bytes:
    """The bytes of a secret; text is its hexadecimal form. Raises InvalidConfig, which does not show the secret."""
    if isinstance(secret, str):
        return _values(secret)[0]  # the text of a file may have two values: the first one is the newest
    if not secret:
        raise InvalidConfig("The secret is empty; give the cluster's.")
    try:
        return check_secret(bytes(secret))
    except ValueError as error:
        raise InvalidConfig(str(error)) from None


def _values(text: str) -> tuple[bytes, ...]:
    """The secrets in a text, newest first, separated by white space. Raises InvalidConfig."""
    if text.startswith(PREFIX):
        raise InvalidConfig("The secret is a token: give it as token, not as secret.")
    try:
        values = [bytes.fromhex(line) for line in text.split() or [""]]
    except ValueError:
        raise InvalidConfig("A secret given as text must be hexadecimal (secret.hex()); or give bytes.") from None
    return tuple(parse_secret(value) for value in values)


def read_token(token: str | Token) -> Token:
    """A token, from itself or from its text form. Raises InvalidConfig, which does not show the token."""
    try:
        return token if isinstance(token, Token) else parse_token(token)
    except TokenError as error:
        raise InvalidConfig(str(error)) from None


def token_line(token: Token) -> str:
    """The text form of a token: one line."""
    return token_text(token)


class CredentialFile:
    """The secret or the token in a file. Each new connection calls this object for the current value."""

    def __init__(self, path: str | os.PathLike[str], *, is_token: bool = False) -> None:
        """Read the file. Raises InvalidConfig if it cannot be used."""
        self.path = os.fspath(path)
        self.is_token = is_token
        if is_credential(self.path) and not os.path.exists(self.path):
            name, what = ("token_file", "token") if is_token else ("secret_file", "secret")
            raise InvalidConfig(
                f"{name} takes the path of a file that holds the {what}; it was given what looks like the {what} "
                f"itself, which is not shown here: give it as {what}, or its file's path."
            )
        self._seen = self._look()
        self._last = self._read()

    def __call__(self) -> Credentials:
        """What the file holds now. While it cannot be used: what it held last, and a warning in the log."""
        seen = self._look()
        if seen == self._seen:
            return self._last
        self._seen = seen
        try:
            found = self._read()
        except InvalidConfig as error:
            logger.warning("%s What it held before is used.", error.message)
            return self._last
        if found != self._last:
            self._last = found
            logger.warning("%s has changed: new connections prove what it holds now.", self.path)
        return self._last

    @property
    def newest(self) -> bytes | Token:
        """The token, or the newest value of the secret."""
        found = self()
        return found.token or found.client[0]

    def __repr__(self) -> str:
        return f"<{'Token' if self.is_token else 'Secret'} in {self.path}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("The secret in a file is never pickled: it would be kept, or shown, by what carries it.")

    def _look(self) -> _State | None:
        try:
            found = os.stat(self.path)  # follows links: Kubernetes replaces a mounted secret by changing a link
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _read(self) -> Credentials:
        name = "token_file" if self.is_token else "secret_file"
        try:
            with open(self.path, encoding="ascii", errors="replace") as file:
                mode = os.fstat(file.fileno()).st_mode
                text = file.read(MAX_FILE_BYTES)
        except OSError as error:
            raise InvalidConfig(f"The {name} {self.path} cannot be read: {error.strerror}.") from None
        if mode & stat.S_IWOTH:
            raise InvalidConfig(f"The {name} {self.path} may be changed by every user: run `chmod o-w {self.path}`.")
        try:
            if self.is_token:
                return Credentials(token=read_token(text))
            values = _values(text)
        except InvalidConfig as error:
            raise InvalidConfig(f"The {name} {self.path} cannot be used: {error.message}") from None
        if len(values) > MAX_VALUES:
            raise InvalidConfig(
                f"The {name} {self.path} holds {len(values)} values; it has one, or {MAX_VALUES} while the secret is "
                "being changed."
            )
        return Credentials(client=values)


def is_credential(path: str) -> bool:
    """Whether this text, given as a path, looks like a secret or a token."""
    is_hexadecimal = len(path) >= SECRET_DIGITS and all(each in "0123456789abcdefABCDEF" for each in path)
    return is_hexadecimal or path.startswith(PREFIX)


Proof: TypeAlias = bytes | Token | CredentialFile
"""What a client can authenticate with."""


def is_token(proof: object) -> bool:
    """Whether this is a token, or a file that holds one."""
    return proof.is_token if isinstance(proof, CredentialFile) else isinstance(proof, Token)


def newest(proof: Proof) -> bytes | Token:
    """The newest value of the secret, with which tokens are made; or the token."""
    return proof.newest if isinstance(proof, CredentialFile) else proof


def choose_credentials(given: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Proof | None:
    """The credentials to use: from the arguments (keys of `VARIABLES`), else from the environment; None = neither.

    Raises InvalidConfig when one of these places has several credentials, and for malformed ones.
    """
    named = {name: given[name] for name in VARIABLES if given.get(name)}
    shown = dict(zip(VARIABLES, VARIABLES, strict=True))
    if not named:
        named = {name: environ[variable] for name, variable in VARIABLES.items() if environ.get(variable)}
        shown = VARIABLES
    if len(named) > 1:
        one, other, *_ = (shown[name] for name in named)
        raise InvalidConfig(
            f"{one} and {other} are both given: leave one out, the token if this client may do everything."
        )
    for name, value in named.items():
        if name.endswith("_file"):
            return CredentialFile(value, is_token=name == "token_file")
        if name == "token":
            return read_token(value)
        return value if isinstance(value, (Token, CredentialFile)) else parse_secret(value)
    return None
