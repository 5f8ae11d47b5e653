"""The login of Django's admin is limited by the name of the user, in whatever spelling a client sends it."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from django.core.management import call_command
from django.test import override_settings
from django.urls import path
from django_calls import MIDDLEWARE, SESSIONS, Project, project, still

# Models can be imported after django_calls has configured Django.
from django.contrib import admin  # isort: skip
from django.contrib.auth.models import User  # isort: skip

MESSAGES = "django.contrib.messages.middleware.MessageMiddleware"
NAME = "alice"
WIDE = {ord(letter): ord(letter) + 0xFEE0 for letter in NAME}
SPACES = [" " * before + NAME + "\u3000" * after for before in range(10) for after in range(5)]
LETTERS = [
    "".join(letter.translate(WIDE) if number >> i & 1 else letter for i, letter in enumerate(NAME))
    for number in range(1, 32)
]
ADMIN = {
    "INSTALLED_APPS": [
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.messages",
        "django.contrib.admin",
        "ratelimit_mw.django",
    ],
    "TEMPLATES": [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {"context_processors": ["django.contrib.auth.context_processors.auth"]},
        }
    ],
    "PASSWORD_HASHERS": ["django.contrib.auth.hashers.MD5PasswordHasher"],
    "STATIC_URL": "/static/",
}
RULE = {"name": "login", "match": {"path": "/admin/login"}, "key": ["form:username"], "limits": "5/hour"}


@pytest.fixture
def served() -> Iterator[Project]:
    """Open a project with the admin site, and a user in its database."""
    middleware = [*SESSIONS, MESSAGES, *MIDDLEWARE]
    with (
        override_settings(**ADMIN),
        project(still({"rules": [RULE]}), path("admin/", admin.site.urls), middleware=middleware) as served,
    ):
        call_command("migrate", verbosity=0)
        User.objects.create_superuser(NAME, password="right")
        yield served
        User.objects.all().delete()


@pytest.mark.parametrize("names", [SPACES, LETTERS], ids=["spaces", "letters"])
def test_the_admin_login_counts_all_spellings_of_a_name(served: Project, names: list[str]) -> None:
    """Each spelling tries the password of one user: 5 of them are allowed."""
    statuses = [sign_in(served, name, "wrong") for name in names]
    assert statuses == [200] * 5 + [429] * (len(names) - 5)


@pytest.mark.parametrize("name", [NAME, SPACES[7], LETTERS[30]])
def test_django_signs_in_a_user_under_every_spelling(served: Project, name: str) -> None:
    """Django strips and normalizes the name. A new version that does not would make the test above pointless."""
    assert sign_in(served, name, "right") == 302


def sign_in(served: Project, name: str, password: str) -> int:
    body = urlencode({"username": name, "password": password})
    sent = served.ask("/admin/login/", "POST", data=body, content_type="application/x-www-form-urlencoded")
    return int(sent.status_code)
