"""Served by real servers in ``test_django_logins.py``: Django's admin with two users, whose login is limited."""

from __future__ import annotations

import os
from unittest.mock import patch

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.management import call_command
from django.core.wsgi import get_wsgi_application
from django.urls import path

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    SECRET_KEY="for tests only",
    # All threads share one database in memory.
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "file:admin?mode=memory&cache=shared"}},
    INSTALLED_APPS=[f"django.contrib.{name}" for name in ("auth", "contenttypes", "messages", "admin")],
    SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
    PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
    STATIC_URL="/static/",
    TEMPLATES=[
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {"context_processors": ["django.contrib.auth.context_processors.auth"]},
        }
    ],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
        "ratelimit_mw.django.RateLimitMiddleware",
    ],
    RATELIMIT_MW={
        "rules": [
            {
                "name": "login",
                "match": {"path": "/admin/login", "methods": ["POST"]},
                "key": ["form:username"],
                "limits": "5/hour",
            }
        ]
    },
    LOGGING_CONFIG=None,
)
django.setup()

# Models can be imported after django.setup.
from django.contrib import admin  # noqa: E402
from django.contrib.auth.models import User  # noqa: E402

urlpatterns = [path("admin/", admin.site.urls)]
with patch.dict(os.environ, DJANGO_ALLOW_ASYNC_UNSAFE="yes"):  # old releases of uvicorn import it in their event loop
    call_command("migrate", verbosity=0)
    for name in ("alice", "bob"):
        User.objects.create_superuser(name, password="right")
wsgi, asgi = get_wsgi_application(), get_asgi_application()
