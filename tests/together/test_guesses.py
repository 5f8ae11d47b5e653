"""Passwords tried against real servers: before the limiter by authentication, and with OPTIONS."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from servers import Server, running

pytestmark = pytest.mark.slow

TWO_STAGES = """
import base64
from starlette.applications import Starlette
from starlette.authentication import AuthenticationBackend, AuthenticationError
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from ratelimit_mw.starlette import RateLimitMiddleware

tried = []

class Passwords(AuthenticationBackend):
    async def authenticate(self, conn):
        if header := conn.headers.get("authorization"):
            tried.append(header)
            raise AuthenticationError("wrong password")

async def count(request):
    return PlainTextResponse(str(len(tried)))

SETTINGS = {
    "rules": [
        {"name": "attempts", "limits": "5/hour", "match": {"methods": "POST"}},
        {"name": "users", "limits": "5/hour", "key": ["user"]},
    ]
}
app = Starlette(routes=[Route("/", count, methods=["GET", "POST"])])
app.add_middleware(RateLimitMiddleware, settings=SETTINGS)
app.add_middleware(AuthenticationMiddleware, backend=Passwords())
app.add_middleware(RateLimitMiddleware, settings=SETTINGS)
"""

REST = """
from django.conf import settings

settings.configure(
    ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="x", INSTALLED_APPS=["ratelimit_mw.django"],
    MIDDLEWARE=["ratelimit_mw.django.RateLimitMiddleware"],
    REST_FRAMEWORK={"UNAUTHENTICATED_USER": None},
    RATELIMIT_MW={"rules": [{"name": "login", "limits": "5/hour", "match": {"path": "/login"}}]},
)
import django
django.setup()
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path
from rest_framework.authentication import BasicAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.views import APIView

tried = []

class Passwords(BasicAuthentication):
    def authenticate_credentials(self, userid, password, request=None):
        tried.append(password)
        raise AuthenticationFailed

class Login(APIView):
    authentication_classes = [Passwords]
    permission_classes = []

urlpatterns = [path("login", Login.as_view()), path("", lambda request: HttpResponse(str(len(tried))))]
app = get_wsgi_application()
"""


def guess(server: Server, method: str, where: str, times: int) -> int:
    """Try many passwords over several connections. Return how many of them the application has seen."""
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=180, trust_env=False) as client:

        def attempt(number: int) -> int:
            password = base64.b64encode(b"ann:%d" % number).decode()
            return client.request(method, where, headers={"authorization": f"Basic {password}"}).status_code

        with ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(attempt, range(times)))
        tried = int(client.get("/").text)
    assert statuses.count(429) == times - tried
    return tried


@pytest.mark.parametrize(
    ("program", "command", "request_line", "times"),
    [
        (TWO_STAGES, ("uvicorn", "--log-level", "critical", "--port", "{}"), ("POST", "/"), 500),
        (
            REST,
            ("gunicorn", "--log-level", "critical", "--threads", "8", "--bind", "127.0.0.1:{}"),
            ("OPTIONS", "/login"),
            50,
        ),
    ],
    ids=["failed logins before the limiter", "OPTIONS of REST framework"],
)
def test_five_passwords_are_tried_at_five_an_hour(
    program: str, command: Sequence[str], request_line: tuple[str, str], times: int, tmp_path: Path
) -> None:
    """All attempts after the fifth are rejected before a password is checked."""
    (tmp_path / "guessed.py").write_text(program)

    def start(port: int) -> list[str]:
        return [sys.executable, "-m", *(word.format(port) for word in command), "guessed:app"]

    with running(start, tmp_path) as server:
        assert guess(server, *request_line, times) == 5
