"""The secret files of a data directory: created, read, and re-read when they change.

`secret` is the cluster's, `client-secret` the clients'. Each holds 64 hexadecimal digits; two such lines during a
rotation, the new value first. Without `client-secret` the clients' secret is derived from the cluster's. Read by every
actor on its own node, so that no secret travels in Ray's actor specifications. May touch: these files.
"""

from __future__ import annotations

import logging
import os
import secrets
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from raylog.rpc.auth.credentials import MAX_VALUES, Credentials, check_secret, derived_client_secret

logger = logging.getLogger(__name__)

CLUSTER_FILE = "secret"
CLIENT_FILE = "client-secret"
NEW_SECRET_BYTES = 32
_State = tuple[tuple[int, int, int] | None, tuple[int, int, int] | None]


class SecretFileError(Exception):
    """A secret's file is missing, malformed, or readable by other users; the message names the remedy."""


def parse_values(text: str, path: Path) -> tuple[bytes, ...]:
    """The values in a file's text, newest first. Raises SecretFileError, which never contains them."""
    lines = text.split()
    try:
        values = tuple(check_secret(bytes.fromhex(line)) for line in lines)
    except ValueError:
        values = ()
    if not 1 <= len(values) <= MAX_VALUES:
        raise SecretFileError(
            f"{path} should hold a secret in hexadecimal digits, at least 32, or two of them on a line each while the "
            "secret is being changed. Restore it from where it was copied to."
        )
    return values


def read_values(path: Path) -> tuple[bytes, ...]:
    """The values in a file. Raises SecretFileError, also for one that other users may read, or that is another's."""
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            found = os.fstat(file.fileno())
            text = file.read(4096)
    except OSError as error:
        raise SecretFileError(f"The secret in {path} cannot be read: {error.strerror}.") from None
    if found.st_uid not in (0, os.geteuid()):
        raise SecretFileError(
            f"{path} belongs to another user, which knows the secret and may change it: run "
            f"`chown {os.geteuid()} {path}` if it is right."
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise SecretFileError(f"{path} may be read or changed by others than its owner: run `chmod 600 {path}`.")
    return parse_values(text, path)


def make_once(path: Path, text: str) -> None:
    """Create a file that only its owner may read, unless it exists; of several processes one wins. Raises OSError."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(fresh, path)  # unlike a rename, it never replaces another process's file
    finally:
        fresh.unlink(missing_ok=True)
    sync_names(path.parent)


def sync_names(folder: Path) -> None:
    """Make names added to a folder durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_secrets(folder: Path) -> None:
    """Create the missing ones of both files, durably. Raises OSError and SecretFileError.

    The clients' secret is derived from the cluster's, so that all nodes that have this one make the same.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / CLUSTER_FILE).exists():
        make_once(folder / CLUSTER_FILE, secrets.token_hex(NEW_SECRET_BYTES) + "\n")
    if not (folder / CLIENT_FILE).exists():
        values = read_values(folder / CLUSTER_FILE)
        make_once(folder / CLIENT_FILE, _lines([derived_client_secret(value) for value in values]))


def copy_secrets(folder: Path, credentials: Credentials) -> None:
    """Bring both files of another node's directory up to date. Raises OSError and SecretFileError.

    A file that has no value in common with the new ones is another cluster's, and is kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in ((CLUSTER_FILE, credentials.cluster), (CLIENT_FILE, credentials.client)):
        make_once(folder / name, _lines(values))
        known = read_values(folder / name)
        if known != values and set(known) & set(values):
            write_values(folder / name, values)


def write_values(path: Path, values: Sequence[bytes]) -> None:
    """Replace the values in a file, durably; a reader sees the old ones or the new ones. Raises OSError."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    make_once(fresh, _lines(values))
    fresh.replace(path)
    sync_names(path.parent)


def _lines(values: Sequence[bytes]) -> str:
    return "".join(value.hex() + "\n" for value in values)


@dataclass(slots=True, unsafe_hash=True)
class SecretFiles:
    """The credentials of a data directory, as a source that servers and connections read each time.

    A pickle of it holds no secret, only the files' location.
    """

    folder: Path
    _seen: _State | None = field(default=None, init=False, repr=False, compare=False)
    _last: Credentials | None = field(default=None, init=False, repr=False, compare=False)

    def __call__(self) -> Credentials:
        """The current credentials; those read last, with a warning in the log, if the files became unreadable.

        Raises SecretFileError when they could never be read.
        """
        state = (_state(self.folder / CLUSTER_FILE), _state(self.folder / CLIENT_FILE))
        if self._last is None or state != self._seen:
            try:
                self._last = self._read(state[1] is not None)
            except SecretFileError as error:
                if self._last is None:
                    raise
                logger.error("The changed secret cannot be used, the one from before still holds: %s", error)
            self._seen = state
        return self._last

    @property
    def exists(self) -> bool:
        """Whether there is a secret in this directory."""
        return (self.folder / CLUSTER_FILE).exists()

    def _read(self, has_client_file: bool) -> Credentials:
        client = read_values(self.folder / CLIENT_FILE) if has_client_file else ()
        return Credentials.of_cluster(read_values(self.folder / CLUSTER_FILE), client)

    def __reduce__(self) -> tuple[type[SecretFiles], tuple[Path]]:
        return (SecretFiles, (self.folder,))


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
