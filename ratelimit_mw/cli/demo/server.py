"""Serves the application of the demo, in a thread of this process."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import uvicorn

from ..output import Failure
from .app import app


@contextmanager
def serve(port: int) -> Iterator[str]:
    """Listen on this port of 127.0.0.1, or on a free port when it is 0, and yield the URL."""
    try:
        listening = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise Failure(f"cannot listen on 127.0.0.1:{port}: {error.strerror}") from None
    # Without proxy_headers=False uvicorn would replace the IP address before the middleware reads it.
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", proxy_headers=False, timeout_graceful_shutdown=2))
    thread = Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
