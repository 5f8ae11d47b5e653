"""Served by real servers in ``test_django_servers.py``: a Django project under WSGI and ASGI."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import FileResponse, StreamingHttpResponse
from django.urls import path

from ratelimit_mw.django import limit

CHUNKS = 600 if django.VERSION >= (5, 0) else 60  # Django 4.2 sends on after a disconnect

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    SECRET_KEY="for tests only",
    MIDDLEWARE=["ratelimit_mw.django.RateLimitMiddleware"],
    RATELIMIT_MW={},
)


@limit("1 concurrent", name="stream", key=["path"])
def stream(request: Any) -> StreamingHttpResponse:
    def chunks() -> Iterator[bytes]:
        for _ in range(CHUNKS):
            yield b"x" * 100_000
            time.sleep(0.05)

    return StreamingHttpResponse(chunks())


@limit("1 concurrent", name="astream", key=["path"])
async def astream(request: Any) -> StreamingHttpResponse:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(CHUNKS):
            yield b"x" * 100_000
            await asyncio.sleep(0.05)

    return StreamingHttpResponse(chunks())


@limit("1 concurrent", name="file", key=[])
def file(request: Any) -> FileResponse:
    return FileResponse(Path(__file__).open("rb"))


urlpatterns = [
    path("stream", stream),
    path("astream", astream),
    path("file", file),
]
wsgi = get_wsgi_application()
asgi = get_asgi_application()
