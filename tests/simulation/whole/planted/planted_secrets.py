"""Bugs in how processes and clients take up a secret that is changed while they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from raylog.client.cluster.credentials import CredentialFile
from raylog.client.cluster.discovery import ClusterAddress
from raylog.rpc import Credentials
from raylog.rpc.auth.secret_files import SecretFiles
from tests.simulation.planted.bugs import Edit
from tests.simulation.whole.plan import EVERYTHING
from tests.simulation.whole.planted.bugs import Bug


def _bug(name: str, rules: tuple[str, ...], target: Any, attribute: str, patch: Callable[[Any], Any]) -> Bug:
    return Bug(name, target, attribute, patch, rules, 8, EVERYTHING, 1, ("changed-secrets",))


def _old_values_too(original: Callable[..., Credentials]) -> Callable[..., Credentials]:
    """A process goes on with the clients' value that was removed."""

    def read(self: SecretFiles, has_client_file: bool) -> Credentials:
        found, last = original(self, has_client_file), self._last
        if last is None or len(found.client) > 1 or found.client[0] not in last.client:
            return found
        return replace(found, client=last.client)

    return read


SECRET_BUGS: Final = (
    _bug(
        "a process reads its secrets at its start alone",
        ("W90", "W8", "W9", "W1"),
        SecretFiles,
        "__call__",
        Edit("or state != self._seen", "").of,
    ),
    _bug("a value that was removed is accepted", ("W90",), SecretFiles, "_read", _old_values_too),
    _bug(
        "a client looks at its file at its start alone",
        ("W90", "W8", "W9"),
        CredentialFile,
        "__call__",
        Edit("if seen == self._seen:", "if True:").of,
    ),
    _bug(
        "a client inside Ray proves the new value alone",
        ("W90",),
        ClusterAddress,
        "proved",
        lambda _: property(lambda self: self.proof),
    ),
    _bug(
        "a client that is refused gives up, although its secret may become another",
        ("W90", "W8"),
        ClusterAddress,
        "is_renewable",
        lambda _: property(lambda self: False),
    ),
)
