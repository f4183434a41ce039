"""Consent to listen without TLS on a network. Used by `raylog.launch.cluster` and the command line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Final

from raylog.base.errors import InvalidConfig, StartFailed

ENV_ALLOW_PLAINTEXT: Final = "RAYLOG_ALLOW_PLAINTEXT"


def plaintext_is_allowed(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether ``RAYLOG_ALLOW_PLAINTEXT`` lets brokers listen without TLS. Raises :class:`InvalidConfig`."""
    text = environ.get(ENV_ALLOW_PLAINTEXT, "").strip().lower()
    if text in ("1", "true"):
        return True
    if text in ("", "0", "false"):
        return False
    raise InvalidConfig(f"{ENV_ALLOW_PLAINTEXT} must be 1 or 0, not {text!r}.")


def check_hosts(hosts: Iterable[str], allow_plaintext: bool) -> None:
    """Raise :class:`StartFailed`, before anything is started, when other nodes would be reached without TLS."""
    from raylog.actors.transport import check_plaintext

    for host in hosts:
        try:
            check_plaintext(host, allow_plaintext=allow_plaintext)
        except ValueError as error:  # RAY_USE_TLS is neither on nor off
            raise StartFailed(str(error)) from None
