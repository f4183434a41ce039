"""The exceptions that user code may raise on the loop that all clients of a process share.

That is anything: SystemExit, or another library's subclass of BaseException. Code that awaits user code has to let
CancelledError through first, since that may be the cancellation of its own task.
"""

from __future__ import annotations

from typing import Final

USER_ERRORS: Final = BaseException
"""What calls of user code have to catch: on the clients' loop it would otherwise end the loop, and all clients."""
EXITS: Final = (SystemExit, KeyboardInterrupt)
"""Exceptions that are meant to end the program."""
