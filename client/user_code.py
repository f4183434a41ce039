"""What code of the user's may raise on the loop that all clients of a process share.

That is anything: an exit, or a class of another library below BaseException. Where user code is awaited, the
cancellation of the task that awaits it has to be let through first.
"""

from __future__ import annotations

from typing import Final

USER_ERRORS: Final = BaseException
"""What ends only what has called the user's code: on the clients' loop it would end the loop, and each client."""
EXITS: Final = (SystemExit, KeyboardInterrupt)
"""What is to end the program."""
