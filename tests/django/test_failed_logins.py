"""The login rules of the pages count what a failed login of Django is, and nothing that another site can forge."""

import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth import signals
from django.core.management import call_command
from django.test import Client
from django.urls import path
from django_calls import SESSIONS, project, still
from folders import ROOT, page_of
from tables import each

from ratelimit_mw import Limiter

# The import of django_calls configures Django, and the model needs that.
from django.contrib.auth.models import User  # isort: skip
from django.contrib.auth.views import LoginView  # isort: skip

PAGES = {"README": ROOT / "README.md", "django": page_of("django")}
PAGE = page_of("django").read_text()
FORM = "<form method=post>{% csrf_token %}{{ form }}</form>"
SITE: dict[str, Any] = {
    "middleware": ["ratelimit_mw.django.RateLimitMiddleware", *SESSIONS, "django.middleware.csrf.CsrfViewMiddleware"],
    "LOGIN_REDIRECT_URL": "/",
    "PASSWORD_HASHERS": ["django.contrib.auth.hashers.MD5PasswordHasher"],
    "TEMPLATES": [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "OPTIONS": {"loaders": [("django.template.loaders.locmem.Loader", {"registration/login.html": FORM})]},
        }
    ],
}


@pytest.fixture(autouse=True)
def _users() -> Iterator[None]:
    call_command("migrate", verbosity=0)
    with project(**SITE):
        User.objects.create_user("ann", password="secret")
    yield
    User.objects.all().delete()


@pytest.fixture
def _signals() -> Iterator[None]:
    """Connect the receivers of the page."""
    block = re.search(r"```python\n# logins\.py\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    module: dict[str, Any] = {}
    exec(block[1], module)
    yield
    signals.user_login_failed.disconnect(module["count_failure"])
    signals.user_logged_in.disconnect(module["forget_failures"])


def rule_of(page: str, name: str = "login") -> dict[str, Any]:
    """Return a login rule of a page for the login view of this project, which has no admin."""
    blocks = re.findall(r"```toml\n(.*?)```", PAGES[page].read_text(), re.DOTALL)
    rules = [rule for block in blocks if '"login"' in block for rule in tomllib.loads(block).get("rules", [])]
    rule = next(rule for rule in rules if rule["name"] == name and "count_when" in rule)
    return {**rule, "limits": "5/minute", "match": {"view": "login", "methods": ["POST"]}}


def site(*rules: dict[str, Any]) -> Any:
    limiter: Limiter = still({"rules": list(rules)})
    return project(limiter, path("", LoginView.as_view(), name="login"), **SITE)


def send_form(client: Client, password: str, name: str = "ann", has_token: bool = True) -> Any:
    """Send the form of the login view. Without the token, it is a post that another site forges."""
    token = client.get("/").cookies["csrftoken"].value if has_token else "x"
    return client.post("/", {"username": name, "password": password, "csrfmiddlewaretoken": token})


def log_in(client: Client, password: str, name: str = "ann", has_token: bool = True) -> int:
    return int(send_form(client, password, name, has_token).status_code)


def left_in(response: Any) -> str:
    return str(response["ratelimit"]).partition('"login";r=')[2].partition(";")[0]


@each("page", PAGES)
def test_only_failed_logins_count(page: str) -> None:
    """Five wrong passwords are tried. Forged posts and successes leave them as they are, and the headers show it."""
    with site(rule_of(page)):
        client = Client(enforce_csrf_checks=True)
        assert [log_in(client, "secret", has_token=False) for _ in range(6)] == [403] * 6
        assert [log_in(client, "secret") for _ in range(6)] == [302] * 6
        assert left_in(send_form(client, "secret")) == "5"
        failed = [send_form(client, "guess") for _ in range(7)]
        assert [response.status_code for response in failed] == [200] * 5 + [429] * 2
        assert [left_in(response) for response in failed] == ["4", "3", "2", "1", "0", "0", "0"]


SPACES = [" " * before + "ann" + "\u3000" * after for before in range(3) for after in range(3)]
WIDE = [
    "".join(chr(ord(letter) + 0xFEE0 * (number >> i & 1)) for i, letter in enumerate("ann")) for number in range(1, 8)
]


def test_all_spellings_of_a_name_are_one_account() -> None:
    """Django strips and normalizes the name, so each spelling tries the password of one user: 5 are allowed."""
    rule = rule_of("django", "login-by-name")
    with site(rule):
        client = Client(enforce_csrf_checks=True)
        spellings = SPACES + WIDE
        assert [log_in(client, "guess", name) for name in spellings] == [200] * 5 + [429] * (len(spellings) - 5)
    with site({**rule, "limits": "99/minute"}):
        assert {log_in(Client(), "secret", name) for name in (SPACES[-1], WIDE[-1])} == {302}


BY_IP, BY_NAME = ({**rule_of("django", name), "count_when": {"marked": True}} for name in ("login", "login-by-name"))


@pytest.mark.usefixtures("_signals")
def test_the_signals_count_failures_and_forget_them_after_a_success() -> None:
    """An account starts again at zero when its user logs in. Another account has its own count."""
    with site({**BY_IP, "limits": "99/minute"}, BY_NAME):
        client = Client(enforce_csrf_checks=True)
        assert [log_in(client, "secret", has_token=False) for _ in range(6)] == [403] * 6
        assert [log_in(client, "guess") for _ in range(4)] == [200] * 4
        assert log_in(client, "secret") == 302
        assert [log_in(client, "guess") for _ in range(7)] == [200] * 5 + [429] * 2
        assert log_in(client, "guess", "bob") == 200


@pytest.mark.usefixtures("_signals")
def test_the_signals_of_code_without_a_request_are_ignored() -> None:
    """Tests and commands log in without the middleware."""
    with site(BY_IP, BY_NAME):
        client = Client()
        client.force_login(User.objects.get())
        assert not client.login(username="ann", password="guess")
        assert log_in(client, "secret") == 302
