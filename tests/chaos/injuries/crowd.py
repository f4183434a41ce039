"""A crowd of connections that never authenticate, kept up for as long as the fault lasts. Used by the faults."""

import selectors
import socket
import threading
import time
from typing import Final

from raylog.rpc.host import raise_descriptor_limit

CROWD: Final = 1000
LOOK_S: Final = 0.05
END_WITHIN_S: Final = 10.0


class Crowd:
    """Keeps `size` silent connections to one address, from a thread of its own."""

    def __init__(self, host: str, port: int, size: int = CROWD) -> None:
        self._address = (host, port)
        self._size = size
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_up, name=f"crowd-{port}", daemon=True)
        self.opened = 0

    def start(self) -> None:
        """Begin to connect."""
        raise_descriptor_limit()
        self._thread.start()

    def end(self) -> None:
        """Close all of them."""
        self._over.set()
        self._thread.join(END_WITHIN_S)

    def _keep_up(self) -> None:
        with selectors.DefaultSelector() as selector:
            try:
                while not self._over.is_set():
                    while len(selector.get_map()) < self._size and not self._over.is_set():
                        if not self._open(selector):
                            time.sleep(LOOK_S)  # the server is down, or this process has no descriptor left
                            break
                    for key, _ in selector.select(LOOK_S):
                        self._read(selector, key.fileobj)  # type: ignore[arg-type]  # only sockets are registered
            finally:
                for key in list(selector.get_map().values()):
                    key.fileobj.close()  # type: ignore[union-attr]

    def _open(self, selector: selectors.BaseSelector) -> bool:
        try:
            connection = socket.create_connection(self._address, timeout=1.0)
        except OSError:
            return False
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ)
        self.opened += 1
        return True

    def _read(self, selector: selectors.BaseSelector, connection: socket.socket) -> None:
        """Ignore incoming data; drop the connection when the server has closed it."""
        try:
            closed = not connection.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            closed = True
        if closed:
            selector.unregister(connection)
            connection.close()
