"""The answer to a call, as callers get it. Made by the calls that wait for it; touches nothing."""

from __future__ import annotations

from typing import Any

import msgspec


class Reply(msgspec.Struct, gc=False):
    """The answer to a call: its arguments, and its payload in memory of its own."""

    args: Any
    payload: memoryview
