"""A site with a dashboard, served by uvicorn in this process, so that a test can use its limiter."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from http_servers import free_port
from servers import wait_for
from starlette.applications import Starlette
from starlette.routing import Mount

from ratelimit_mw import Limiter
from ratelimit_mw.dashboard import dashboard


@contextmanager
def dashboard_site(limiter: Limiter, **options: Any) -> Iterator[str]:
    """Serve the dashboard of a limiter to everyone, and yield the URL of the page."""
    app = Starlette(routes=[Mount("/ratelimit", dashboard(limiter, **{"allow": lambda _: True, **options}))])
    with served(app) as site:
        yield f"{site}/ratelimit/"


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve an application, and yield its URL."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning", timeout_keep_alive=75))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        wait_for(lambda: server.started or not thread.is_alive(), "uvicorn")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
