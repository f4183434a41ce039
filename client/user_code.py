"""What code of the user's may raise on the loop that all clients of a process share."""

from __future__ import annotations

from typing import Final

USER_ERRORS: Final = (Exception, SystemExit, KeyboardInterrupt)
"""Errors, and what is to end the program: raised on the clients' loop that would end the loop, and each client."""
EXITS: Final = (SystemExit, KeyboardInterrupt)
"""What is to end the program."""
