"""The admin page of limited clients: who may see it, what it shows, and how it unlocks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.http import HttpResponse
from django.test import Client, override_settings
from django.urls import path
from django_calls import SESSIONS, urls
from shared_store import SharedStore

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.django.models import LimitedClient
from ratelimit_mw.stores import Store
from ratelimit_mw.testing import ManualClock

# isort: split
from django.contrib.auth.models import Permission, User  # after the settings of django_calls

PAGE = "/admin/ratelimit_mw/limitedclient/"
APPS = [f"django.contrib.{name}" for name in ("auth", "contenttypes", "messages", "admin")]
ADMIN = {
    "INSTALLED_APPS": [*APPS, "ratelimit_mw.django"],
    "STATIC_URL": "/static/",
    "MIDDLEWARE": [
        *SESSIONS,
        "django.contrib.messages.middleware.MessageMiddleware",
        "ratelimit_mw.django.RateLimitMiddleware",
    ],
    "TEMPLATES": [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ],
    "PASSWORD_HASHERS": ["django.contrib.auth.hashers.MD5PasswordHasher"],
}
RULES = [
    Rule(name="login", limits=["2/minute", "9/hour"], match={"path": "/login"}),
    Rule(name="mail", limits="1/minute", key=["email"], match={"view": ""}),
    Rule(name="plan", limits="1/minute", key=["user.id"], match={"view": ""}, per={"plan": {"pro": "5/minute"}}),
    Rule(name="try", limits="1/minute", match={"path": "/login"}, mode="shadow"),
]


@pytest.fixture(scope="module", autouse=True)
def _project() -> Iterator[None]:
    """A project with Django's admin, and its tables."""
    with override_settings(**ADMIN):
        from django.contrib import admin

        from ratelimit_mw.django.admin import LimitedClientAdmin

        if not admin.site.is_registered(LimitedClient):  # where another test has imported the module
            admin.site.register(LimitedClient, LimitedClientAdmin)
        call_command("migrate", verbosity=0)
        User.objects.create_superuser("root")
        for name, permissions in {"viewer": ["view"], "operator": ["view", "change"], "clerk": []}.items():
            user = User.objects.create_user(name, is_staff=True)
            user.user_permissions.set(Permission.objects.get(codename=f"{each}_limitedclient") for each in permissions)
        yield
        # Other files share the database, and do not know the tables of the admin.
        admin.models.LogEntry.objects.all().delete()
        User.objects.all().delete()


def site(store: Any = None, *rules: Rule) -> Any:
    """Return the settings of a project whose limiter has this store."""
    from django.contrib import admin

    limiter = Limiter(rules or RULES, store or "memory://", clock=ManualClock(1_000_000.0))
    patterns = [path("admin/", admin.site.urls), path("login", lambda request: HttpResponse("hello"))]
    return override_settings(ROOT_URLCONF=urls(*patterns), RATELIMIT_MW=limiter)


@pytest.fixture
def limiter() -> Iterator[Limiter]:
    from ratelimit_mw.django import limiter

    with site():
        yield limiter()


def signed_in(name: str = "root", **given: Any) -> Client:
    client = Client(**given)
    client.force_login(User.objects.get(username=name))
    return client


def log_in(address: str = "192.0.2.7", times: int = 1) -> list[int]:
    return [Client(REMOTE_ADDR=address).get("/login").status_code for _ in range(times)]


class Page(HTMLParser):
    """The cells of the table, the forms, and the links of a page."""

    def __init__(self, response: Any) -> None:
        super().__init__()
        assert response.status_code == 200, response.status_code
        self.rows: list[list[str]] = []
        self.forms: list[dict[str, str]] = []
        self.links: dict[str, str] = {}
        self._open = ""
        self._link = ""
        self.text = response.content.decode()
        self.feed(self.text.partition('id="changelist"')[2])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self._open = tag
            self.rows[-1].append("")
        elif tag == "form":
            self.forms.append({})
        elif tag == "input" and self.forms:
            self.forms[-1][found.get("name", "")] = found.get("value", "")
        self._link = found.get("href", "") if tag == "a" else ""

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open:
            self.rows[-1][-1] += data
        if self._link:
            self.links[data.strip()] = self._link

    @property
    def table(self) -> list[list[str]]:
        return [[" ".join(cell.split()) for cell in row] for row in self.rows[1:]]

    def unlock_forms(self) -> list[dict[str, str]]:
        return [form for form in self.forms if "key" in form]


def opened(query: str = "", name: str = "root") -> Page:
    return Page(signed_in(name).get(PAGE + query))


def test_an_operator_sees_who_is_limited_and_unlocks(limiter: Limiter) -> None:
    """The client passes again at once. The admin's log has the user, the client and the rule."""
    assert log_in(times=3) == [200, 200, 429]
    log_in("192.0.2.8")
    browser = signed_in("operator", enforce_csrf_checks=True)
    page = Page(browser.get(PAGE))
    assert page.table == [
        ["ip=192.0.2.7", "login", "2/minute", "limited for 0:01:00", ""],
        ["ip=192.0.2.7", "try (shadow)", "1/minute", "limited for 0:01:00", ""],
        ["ip=192.0.2.8", "try (shadow)", "1/minute", "limited for 0:01:00", ""],
    ]
    after = Page(browser.post(PAGE, page.unlock_forms()[0], follow=True))
    assert "Unlocked: login ip=192.0.2.7." in after.text
    assert [row[1] for row in after.table] == ["try (shadow)", "try (shadow)"]
    assert log_in() == [200]
    from django.contrib.admin.models import LogEntry

    entry = LogEntry.objects.latest("action_time")
    assert (entry.user.username, str(entry.object_repr), entry.change_message) == (
        "operator",
        "login ip=192.0.2.7",
        "Unlocked.",
    )


def test_all_counted_clients_are_shown_on_request(limiter: Limiter) -> None:
    """With what each limit has left, and when it is whole again."""
    log_in()
    assert opened("?all=1&rule=login").table == [
        ["ip=192.0.2.7", "login", "2/minute", "1 of 2 left, all of it in 0:01:00", ""],
        ["ip=192.0.2.7", "login", "9/hour", "8 of 9 left, all of it in 1:00:00", ""],
    ]
    assert "No client is limited here." in opened("?rule=login").text


def test_a_banned_client_is_shown_and_unlocked() -> None:
    """The button lifts the ban with the counts."""
    ban = {"after": 2, "within": "10m", "for": "1h"}
    with site(None, Rule(name="login", limits="1/minute", match={"path": "/login"}, ban=ban)):
        assert log_in(times=4) == [200, 429, 429, 429]
        browser = signed_in("operator")
        page = Page(browser.get(PAGE))
        assert page.table == [["ip=192.0.2.7", "login", "1/minute", "banned for 1:00:00", ""]]
        browser.post(PAGE, page.unlock_forms()[0])
        assert log_in() == [200]


def test_permissions_decide_who_sees_the_page_and_who_unlocks(limiter: Limiter) -> None:
    """Anonymous visitors sign in, staff needs a permission, and the view permission alone unlocks nothing."""
    log_in(times=3)
    [form, *_] = opened().unlock_forms()
    anonymous = Client().get(PAGE)
    assert (anonymous.status_code, anonymous["location"]) == (302, f"/admin/login/?next={PAGE}")
    assert signed_in("clerk").get(PAGE).status_code == 403
    assert signed_in("clerk").post(PAGE, form).status_code == 403
    assert opened(name="viewer").unlock_forms() == []
    assert len(opened(name="viewer").table) == 2
    assert signed_in("viewer").post(PAGE, form).status_code == 403
    assert log_in() == [429]
    assert PAGE in signed_in("viewer").get("/admin/").content.decode()
    assert PAGE not in signed_in("clerk").get("/admin/").content.decode()


def test_only_a_post_with_a_token_unlocks(limiter: Limiter) -> None:
    """Another site can neither link to an unlock nor post one."""
    log_in(times=3)
    browser = signed_in(enforce_csrf_checks=True)
    [form, *_] = Page(browser.get(PAGE)).unlock_forms()
    assert browser.get(PAGE, form).status_code == 200
    assert browser.post(PAGE, {"key": form["key"]}).status_code == 403
    assert log_in() == [429]
    assert browser.post(PAGE, form).status_code == 302
    assert log_in() == [200]


@pytest.mark.parametrize(
    ("rule", "features", "query", "client"),
    [
        ("login", {"ip": "2001:db8:1:2::/64"}, "f-ip=2001:db8:1:2:3::4", "ip=2001:db8:1:2::/64"),
        ("login", {"ip": "192.0.2.7"}, "f-ip= ::ffff:192.0.2.7 ", "ip=192.0.2.7"),
        ("mail", {"email": "ann@example.com"}, "f-email=Ann@Example.com", "email=ann@example.com"),
        ("plan", {"user": {"id": 7}}, "f-user.id=7", "user.id=7"),
        ("plan", {"user": {"id": 7}, "plan": "pro"}, "f-user.id=7&f-plan=pro", "user.id=7"),
    ],
)
def test_a_client_is_found_by_its_features(
    limiter: Limiter, rule: str, features: dict[str, Any], query: str, client: str
) -> None:
    """The values are compared as those of requests are."""
    for _ in range(2):
        limiter.decide(limiter.rules.plan_named(rule, None), features)
    page = opened(f"?rule={rule}&{query}")
    quota = "5/minute" if "plan" in features else {"login": "2/minute"}.get(rule, "1/minute")
    assert page.table[0][:3] == [client, rule, quota]
    Page(signed_in().post(PAGE, page.unlock_forms()[0], follow=True))
    assert "nothing is counted" in opened(f"?rule={rule}&{query}").table[0][3]


def test_a_listed_client_has_the_lowest_limit_of_its_rule(limiter: Limiter) -> None:
    """Its plan is not in the key, and the page shows that the limit may be higher."""
    limiter.decide(limiter.rules.plan_named("plan", None), {"user": {"id": 7}, "plan": "pro"})
    assert opened("?rule=plan").table[0][2] == "1/minute or more"


def test_a_store_that_cannot_list_still_finds_a_client() -> None:
    """As Memcached. The page says what to do."""
    with site(SharedStore()):
        log_in(times=3)
        page = opened()
        assert "the store SharedStore cannot list its keys. Inspect the key of one client instead" in page.text
        found = opened("?rule=login&f-ip=192.0.2.7")
        assert found.table[0][:4] == ["ip=192.0.2.7", "login", "2/minute", "limited for 0:01:00"]
        signed_in().post(PAGE, found.unlock_forms()[0])
        assert log_in() == [200]


def test_an_unreachable_store_is_a_message() -> None:
    """Neither the page nor an unlock fails."""
    store = SharedStore()
    with site(store):
        log_in(times=3)
        found = opened("?rule=login&f-ip=192.0.2.7")
        store.down = True
        assert "it does not answer" in opened("?rule=login&f-ip=192.0.2.7").text
        after = Page(signed_in().post(PAGE, found.unlock_forms()[0], follow=True))
        assert "The client was not unlocked: it does not answer" in after.text


ODD = "<script>alert(1)</script>\u202e\ud800\x00\n\u00e4'\""


def test_keys_of_clients_cannot_break_the_page() -> None:
    """Whatever a client sends as a value is shown as text, escaped, and can be unlocked."""
    rule = Rule(name="odd", limits="1/minute", key=["header:x as raw"], match={"view": ""})
    with site(None, rule):
        from ratelimit_mw.django import limiter

        limiter().decide(limiter().rules.plan_named("odd", None), {"header:x": ODD})
        page = opened()
        shown = "header:x=<script>alert(1)</script>\\u202e\\ud800\\x00\\n\u00e4'\""
        assert page.table[0][0] == shown
        assert "<script>alert" not in page.text
        signed_in().post(PAGE, page.unlock_forms()[0])
        assert opened().table == []


def test_many_clients_have_several_pages(limiter: Limiter) -> None:
    """A page never reads the whole store."""
    for number in range(1_100):
        limiter.decide(limiter.rules.plan_named("mail", None), {"email": f"user{number}@example.com"})
    first = opened("?rule=mail")
    second = opened(first.links["Next page"])
    assert (len(first.table), len(second.table)) == (1_000, 100)
    assert "Next page" not in second.links


@pytest.mark.parametrize(
    "query", ["?place=x", "?place=%22x%22", "?place=5", "?rule=nothing&place=%225%22", f"?place={'[' * 3_000}"]
)
def test_an_invalid_place_is_a_message(limiter: Limiter, query: str) -> None:
    assert 'class="errornote"' in opened(query).text


@pytest.mark.parametrize("key", ["", "x", "5", json.dumps("any text"), json.dumps("1|gone|fixed-window|1m|ip=1")])
def test_an_invalid_key_is_a_message(limiter: Limiter, key: str) -> None:
    assert "The client was not unlocked: " in Page(signed_in().post(PAGE, {"key": key}, follow=True)).text


def test_there_is_neither_a_table_nor_a_migration(capsys: pytest.CaptureFixture[str]) -> None:
    """A project needs no new migration, and makemigrations writes none into this package."""
    call_command("makemigrations", check=True, dry_run=True)
    assert "No changes detected" in capsys.readouterr().out
    assert not [name for name in connection.introspection.table_names() if "ratelimit" in name]


def test_dumpdata_finds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """It reads every model, whether it is managed or not."""
    for options in ({}, {"use_base_manager": True}):
        call_command("dumpdata", "ratelimit_mw", **options)
        assert capsys.readouterr().out.strip() == "[]"


def test_a_debt_of_centuries_is_shown() -> None:
    """A ``timedelta`` ends before such a wait does."""
    rule = Rule(name="odd", limits="1/30d", key=["ip"], algorithm="gcra", match={"view": ""})
    with site(None, rule):
        from ratelimit_mw.django import limiter

        verdict = limiter().decide(limiter().rules.plan_named("odd", None), {"ip": "192.0.2.7"})
        limiter().settle(verdict, 10**12)
        assert opened().table[0][3] == "limited for 115740 days, 17:46:40"


def test_the_model_has_no_mistakes(limiter: Limiter) -> None:
    """Django's checks of models, admin pages and templates pass."""
    call_command("check", fail_level="WARNING")


def test_nothing_can_be_added_deleted_or_opened(limiter: Limiter) -> None:
    """The page is the only one of its model."""
    for where in ("add/", "1/change/", "1/delete/", "1/history/"):
        assert signed_in().get(PAGE + where).status_code == 404


def test_the_page_names_its_store(limiter: Limiter) -> None:
    """Counts in the memory of a process are those of this process."""
    assert "Store: memory://, the memory of this process." in " ".join(opened().text.split())
    store: Store = SharedStore()
    with site(store):
        assert "Store: SharedStore" in opened().text
