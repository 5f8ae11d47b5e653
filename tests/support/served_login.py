"""Served by real servers in ``test_django_login.py``: Django's own login view behind the rules of the README.

The environment variable ``LOGIN_DATABASE`` has the path of the SQLite database.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any
from unittest.mock import patch

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.management import call_command
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path

README = Path(__file__).parents[2] / "README.md"
FORM = "<form method=post>{% csrf_token %}{{ form }}</form>"


def rules_of_the_readme() -> dict[str, Any]:
    """Return the settings of the README. Its login rule counts by the hour, so no minute ends on a slow machine."""
    block = re.search(r"```toml\n(# ratelimit\.toml\n.*?)```", README.read_text(), re.DOTALL)
    assert block is not None
    table = tomllib.loads(block[1])
    table["rules"][0]["limits"] = [table["rules"][0]["limits"][0].replace("minute", "hour")]
    return {**table, "trusted_proxies": ["127.0.0.1"]}


settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    SECRET_KEY="for tests only",
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["LOGIN_DATABASE"]}},
    DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
    SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
    LOGIN_REDIRECT_URL="/",
    MIDDLEWARE=[
        "ratelimit_mw.django.RateLimitMiddleware",
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
    ],
    TEMPLATES=[
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "OPTIONS": {"loaders": [("django.template.loaders.locmem.Loader", {"registration/login.html": FORM})]},
        }
    ],
    RATELIMIT_MW=rules_of_the_readme(),
)
django.setup()

from django.contrib.auth.models import User  # noqa: E402 - it needs the settings
from django.contrib.auth.views import LoginView  # noqa: E402

with patch.dict(os.environ, DJANGO_ALLOW_ASYNC_UNSAFE="yes"):  # old releases of uvicorn import it in their event loop
    call_command("migrate", verbosity=0)
    User.objects.create_user("ann", password="secret")
urlpatterns = [path("", lambda request: HttpResponse("home")), path("login/", LoginView.as_view())]
wsgi, asgi = get_wsgi_application(), get_asgi_application()
