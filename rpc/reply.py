"""The answer to a call, as returned to callers. Pure."""

from __future__ import annotations

from typing import Any

import msgspec


class Reply(msgspec.Struct, gc=False):
    """The answer to a call: its arguments, and its payload in its own memory."""

    args: Any
    payload: memoryview
