"""The operations of an operator: what each takes and returns, and the mistakes that it names."""

import asyncio
import re
from typing import Any

import pytest
from command_line import rows_of
from override_stores import Recording
from tables import each, expect_error

from ratelimit_mw import ConfigError, Limiter, Rule, StoreError
from ratelimit_mw.keys.features import INVALID
from ratelimit_mw.operations import OPERATIONS, Answer, arun, read_features, run
from ratelimit_mw.operations.answer import words_of
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.stores import MemoryStore
from ratelimit_mw.testing import ManualClock

LOGIN = {"name": "login", "match": {"path": "/login"}, "key": ["email", "ip"], "limits": ["2/hour", "20/day"]}
PAGES = {"name": "pages", "match": {"path": "/pages"}, "key": ["user|ip"], "limits": "3/hour", "per_key": {"b": "9/h"}}
PLANS = {**PAGES, "name": "plans", "match": {"path": "/plans"}, "per": {"plan": {"free": "1/hour", "pro": "9/hour"}}}
EVERYBODY = {"name": "everybody", "match": {"path": "/all"}, "key": [], "limits": "5/hour"}
BAN: Any = {"after": 2, "within": "10m", "for": "1h", "growth": 2}
BANNING = {"name": "banning", "limits": "1/hour", "ban": BAN}
MAIL = {**BANNING, "name": "mail", "key": ["email"]}
SECRET = "correct horse battery staple"
ANN = {"ip": "192.0.2.7", "email": "Ann@Example.com"}
WHO = {"ip": "192.0.2.7"}


class Shop:
    """A limiter of these rules, whose counts are in memory."""

    def __init__(self, *rules: dict[str, Any], store: MemoryStore | None = None, **settings: Any) -> None:
        self.clock = ManualClock(1_000_000.0)
        options: Any = {"rules": list(rules), **settings}
        self.limiter = Limiter.from_settings(options, clock=self.clock, store=store)

    def hit(self, path: str, times: int = 1, **features: Any) -> None:
        for _ in range(times):
            self.limiter.hit({"path": path, "method": "GET", **features})

    def run(self, name: str, **fields: Any) -> Answer:
        return run(self.limiter, name, {field.rstrip("_"): value for field, value in fields.items()})

    def keys(self, **fields: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.run("inspect", **fields).json["keys"]
        return found


def test_an_adaptive_limit_is_shown_with_the_reason_of_its_last_change() -> None:
    """A command in another process does not know it, and says where it is."""
    shop = Shop({"name": "load", "key": [], "limits": "adaptive 2..9 concurrent", "target": "1s"})
    answer = shop.run("inspect", limit=10)
    (note,) = [note for note in answer.notes if "adaptive" in note]
    assert note.startswith("the current adaptive limits of load are not known here: each process")
    shop.hit("/", 20)
    answer = shop.run("inspect", limit=10)
    (key,) = answer.json["keys"]
    assert (key["quota"], key["limit"], key["reason"]) == ("adaptive 2..9 concurrent", 9, "start")
    (row,) = rows_of(answer)
    assert row["limit"] == "adaptive 2..9 concurrent (start)"
    assert [*answer.notes] == []


def test_the_keys_of_one_client_are_shown_for_all_rules() -> None:
    """You know the IP address only. The keys of a rule that counts by more are listed. Rejected keys come first."""
    shop = Shop(LOGIN, PAGES, EVERYBODY)
    shop.hit("/login", 3, **ANN)
    shop.hit("/login", 1, ip="192.0.2.8", email="bob@example.com")
    shop.hit("/pages", 1, ip="192.0.2.7")
    shop.hit("/pages", 1, ip="192.0.2.8")
    shop.hit("/all", 1, ip="192.0.2.8")
    answer = shop.run("inspect", features=WHO, limit=10)
    assert [(key["rule"], key["client"], key["remaining"], key["allowed"]) for key in answer.json["keys"]] == [
        ("login", "email=ann@example.com ip=192.0.2.7", 0, False),
        ("everybody", "", 4, True),
        ("login", "email=ann@example.com ip=192.0.2.7", 18, True),
        ("pages", "ip=192.0.2.7", 2, True),
    ]
    login, everybody, *_ = rows_of(answer)
    assert login == {
        "rule": "login",
        "client": "email=ann@example.com ip=192.0.2.7",
        "limit": "2/hour",
        "remaining": "0 of 2",
        "next request": "rejected for 1 h",
        "full again": "1 h",
    }
    assert (everybody["client"], everybody["next request"]) == ("all clients", "allowed")
    assert not answer.found_wrong
    assert [key["rule"] for key in shop.keys(rejected=True)] == ["login"]
    assert [key["rule"] for key in shop.keys(rule="login", features=WHO)] == ["login", "login"]


def test_keys_are_found_by_rule_and_by_the_start_of_a_value() -> None:
    shop = Shop(LOGIN, PAGES)
    shop.hit("/login", 1, **ANN)
    for host in (7, 8, 99):
        shop.hit("/pages", 1, ip=f"192.0.2.{host}")
    found = {key["client"] for key in shop.keys(rule="pages")}
    assert found == {"ip=192.0.2.7", "ip=192.0.2.8", "ip=192.0.2.99"}
    assert {key["rule"] for key in shop.keys(prefix="ip=192.0.2.7")} == {"login", "pages"}
    assert {key["client"] for key in shop.keys(prefix="email=ann")} == {"email=ann@example.com ip=192.0.2.7"}
    assert {key["rule"] for key in shop.keys(prefix="email=ANN", features=WHO)} == {"login"}
    nothing = shop.run("inspect", prefix="ip=10.")
    assert (nothing.notes, nothing.found_wrong) == (["no client matches now"], True)


def test_many_keys_end_at_the_limit() -> None:
    shop = Shop(PAGES)
    for host in range(250):
        shop.hit("/pages", 1, ip=f"192.0.2.{host}")
    answer = shop.run("inspect", limit=10)
    assert (len(answer.json["keys"]), answer.json["has_more"], len(rows_of(answer))) == (10, True, 10)
    assert answer.notes == ["there are more than 10 keys. Raise --limit, or use --rule, --feature or --prefix"]
    assert len(shop.keys()) == 100
    assert shop.run("inspect", limit=250).json["has_more"] is False


def test_the_notes_name_what_is_not_shown() -> None:
    """Nothing stays silent: a list, the rule of another feature, the limits of a plan, and other rules."""
    keys = {**PAGES, "name": "keys", "key": ["header:x-api-key"]}
    store = MemoryStore()
    Shop(PAGES, store=store).hit("/pages", 1, ip="192.0.2.7")
    shop = Shop(PLANS, keys, lists={"deny": {"ip": ["192.0.2.7"]}}, store=store, enabled=False)
    Shop(PLANS, store=store).hit("/plans", 1, ip="192.0.2.7")
    assert shop.run("inspect", features=WHO).notes == [
        "enabled = false: no request is limited",
        "this client is on the deny list, so its requests are rejected with 403. A reset does not change this",
        "some rules have keys of other features, which you can name: keys (header:x-api-key)",
        "rule plans has limits by plan. The lowest decide, unless you name it",
    ]
    assert "other rules, such as those of decorators, have clients, too: pages" in shop.run("inspect").notes
    assert [key["quota"] for key in shop.keys(features=WHO)] == ["1/hour"]
    assert "this client is on the allow list" in Shop(PAGES, lists={"allow": WHO}).run("inspect", features=WHO).notes[0]
    [key] = shop.keys(features={**WHO, "plan": "pro"})
    assert (key["quota"], key["allowed"]) == ("9/hour", True)


def test_limits_from_a_function_need_the_features_of_a_key() -> None:
    """No list claims that such a rule rejects no client: a note names the rule, and the features of its key."""
    store = MemoryStore()

    def limiter() -> Limiter:  # each is of another process, which has called no function
        return Limiter(
            [
                Rule(name="plan", key=["user", "ip"], limits=lambda user, ip: "1/hour"),
                Rule(name="table", key=["user"], limits=lambda user: "1/hour"),
                Rule(name="fixed", key=["user"], limits="9/hour"),
            ],
            store,
            ManualClock(1_000_000.0),
        )

    def inspected(**fields: Any) -> tuple[list[str], list[str]]:
        answer = run(limiter(), "inspect", {"limit": 9, **fields})
        return [key["quota"] for key in answer.json["keys"]], list(answer.notes)

    application = limiter()
    for _ in range(2):
        application.hit({"user": "ann", "ip": "127.0.0.1"})
    needs = "some rules have limits from a function, so their keys are not listed. Name all features: plan ({})"
    several, whole = needs.format("user and ip), table (user"), {"user": "ann", "ip": "127.0.0.1"}
    assert inspected(rejected=True) == ([], [several, "no other client is rejected now"])
    assert inspected() == (["9/hour"], [several])
    assert inspected(features={"user": "ann"}) == (["1/hour", "9/hour"], [needs.format("ip")])
    assert inspected(rejected=True, features=whole) == (["1/hour", "1/hour"], [])
    assert inspected(rejected=True, features={**whole, "user": "bob"}) == ([], ["no client is rejected now"])


def test_a_client_is_reset_under_all_limits() -> None:
    """By its features, in any spelling."""
    shop, fields = Shop(LOGIN), {"rule": "login", "features": ANN}
    shop.hit("/login", 3, **ANN)
    answer = shop.run("reset", **fields)
    assert sorted((row["limit"], row["consumed"]) for row in rows_of(answer)) == [
        ("2/hour", "2 of 2"),
        ("20/day", "2 of 20"),
    ]
    assert answer.notes == ["your workers may repeat their last rejection for up to 1 s (rejection_cache)"]
    assert shop.keys() == []
    again = shop.run("reset", **fields)
    assert (again.json, again.found_wrong) == ({"reset": False, "keys": []}, True)
    assert "rule login has no counts of " in again.notes[0]
    shop = Shop(PLANS)
    shop.hit("/plans", 1, ip="192.0.2.7", plan="pro")
    assert shop.run("reset", rule="plans", features=WHO).json["reset"]  # of all plans
    assert shop.keys() == []


def test_a_reset_shows_what_the_next_request_would_be_and_what_workers_keep() -> None:
    """A command reads a file with which no application would start, too."""
    shop = Shop(PAGES, rejection_cache=0)
    shop.hit("/pages", 1, ip="192.0.2.7")
    shop.limiter.reloads.rules = RuleSet([Rule(**{**PAGES, "cost": 4, "consistency": "leased"})])
    answer = shop.run("reset", rule="pages", features=WHO)
    assert [row["before"] for row in rows_of(answer)] == ["rejected: its cost never fits"]
    assert answer.notes == ['rule pages has consistency = "leased": each worker still has counts of its own']


def test_a_client_is_reset_under_the_limits_that_a_function_chooses() -> None:
    """By what the function is passed, too: another process has not called it."""
    store, features = MemoryStore(), {"ip": "192.0.2.7", "plan": "pro"}

    def limiter() -> Limiter:
        rule = Rule(name="plans", limits={"plan": {"pro": "5/hour", "free": "5/minute"}.get})
        return Limiter([rule], store, ManualClock(1_000_000.0))

    limiter().hit(features)
    assert run(limiter(), "reset", {"rule": "plans", "features": features}).json["reset"]
    assert limiter().peek(features, cost=0).decisions[0].remaining == 5
    unlimited = {"rule": "plans", "features": {**WHO, "plan": "staff"}}
    expect_error("the function of rule 'plans' returns no limits for this client", run, limiter(), "reset", unlimited)


def test_a_digest_is_found_with_the_secret() -> None:
    """You write the address. A wrong secret finds nothing, and the message names the secret."""
    store = MemoryStore()
    shop = Shop(PAGES, secret=SECRET, store=store)
    shop.hit("/pages", 4, ip="192.0.2.7")
    [listed] = shop.keys(rejected=True)
    assert "192.0.2.7" not in str(listed)
    assert shop.keys(features=WHO) == [listed]
    with pytest.raises(ConfigError, match="prefix: the keys have digests of ip"):
        shop.run("inspect", prefix=listed["client"][:4])
    other = Shop(PAGES, secret=SECRET.replace("staple", "stable"), store=store)
    hint = "The keys have digests of user and ip. The secret must be that of the application"
    assert other.run("reset", rule="pages", features=WHO).notes[0].endswith(f"the spelling of the values. {hint}")
    assert other.run("inspect", features=WHO).notes == [f"no client matches now. {hint}"]


class Far(Recording):
    """A store to which no connection is made within the time budget of a call."""

    def count_call(self) -> None:
        if not self.starts:
            raise StoreError("it does not answer")


@each(
    ("name", "fields"),
    [
        *((name, {"rule": "banning", "features": WHO}) for name in ("reset", "ban", "unban", "override remove")),
        *((name, {"features": WHO}) for name in ("inspect", "ban", "unban")),
        ("override set", {"rule": "banning", "features": WHO, "limits": "9/hour"}),
        ("override list", {}),
        ("override clear", {}),
    ],
)
def test_an_operation_connects_outside_the_time_budget(name: str, fields: dict[str, Any]) -> None:
    run(Limiter([Rule(**BANNING)], Far()), name, fields)


def test_a_program_lifts_a_ban_without_a_start() -> None:
    assert not Limiter([Rule(**BANNING)], Far()).clients.unban("banning", WHO)


def test_a_ban_by_hand_rejects_and_is_lifted() -> None:
    """The counts of the client stay. A client that is not banned is a mistake."""
    shop = Shop(BANNING)
    answer = shop.run("ban", rule="banning", features={"ip": "2001:db8::7"}, for_="2h")
    network = {"rule": "banning", "client": "ip=2001:db8::/64"}
    assert answer.json == {**network, "until": "1970-01-12T15:46:40+00:00"}
    assert answer.shown == ["ip=2001:db8::/64 is banned from rule banning until 1970-01-12 15:46:40 UTC"]
    assert shop.limiter.hit({"ip": "2001:db8::/64"}).retry_after == 7_200
    lifted = shop.run("unban", rule="banning", features={"ip": "2001:db8::1"})
    assert (lifted.json, lifted.found_wrong) == ({**network, "was_banned": True}, False)
    again = shop.run("unban", rule="banning", features={"ip": "2001:db8::1"})
    assert (again.json, again.found_wrong) == ({**network, "was_banned": False}, True)
    assert "was not banned from rule banning" in again.notes[0]
    assert [shop.limiter.hit({"ip": "2001:db8::/64"}).allowed for _ in range(2)] == [True, False]


def test_bans_are_listed_with_their_ends() -> None:
    """Those by rejections and those by hand, of all rules or of one. Other clients are not."""
    shop = Shop(BANNING, MAIL, {"name": "site", "limits": "100/hour"})
    shop.hit("/", 1, ip="192.0.2.8")
    assert shop.run("bans").notes == ["no client is banned now"]
    shop.hit("/", 4, ip="192.0.2.7")
    shop.run("ban", rule="mail", features={"email": "Ann@Example.com"}, for_="7d")
    answer = shop.run("bans", limit=5)
    assert [tuple(row.values()) for row in rows_of(answer)] == [
        ("banning", "ip=192.0.2.7", "1970-01-12 14:46:40 UTC", "1 h", "enforce"),
        ("mail", "email=ann@example.com", "1970-01-19 13:46:40 UTC", "7 d", "enforce"),
    ]
    assert answer.json["has_more"] is False
    assert [each["rule"] for each in shop.run("bans", rule="mail").json["bans"]] == ["mail"]
    answer = shop.run("bans", limit=1)
    assert (len(rows_of(answer)), answer.notes) == (1, ["there are more bans than --limit 1. Raise it, or use --rule"])
    assert [key["banned"] for key in shop.keys(rejected=True, features=WHO)] == [True]
    assert rows_of(shop.run("reset", rule="banning", features=WHO))[0]["consumed"] == ""  # a ban hides the counts
    assert shop.limiter.hit(WHO).allowed
    assert shop.run("ban", features={"ip": "192.0.2.9"}).json["rule"] is None
    assert [each["rule"] for each in shop.run("bans").json["bans"]] == [None, "mail"]


def test_a_ban_of_a_rule_with_limits_from_a_function_shows_the_function() -> None:
    """The limits of a client that has no counts are not known."""

    def limits_of(ip: str) -> str:
        return "9/minute"

    limiter = Limiter([Rule(name="home", limits=limits_of, ban=BAN)])
    run(limiter, "ban", {"rule": "home", "features": WHO})
    [key] = run(limiter, "bans", {}).json["bans"]
    assert (key["client"], key["quota"].endswith("limits_of()"), key["banned"]) == ("ip=192.0.2.7", True, True)


def test_an_override_is_set_listed_and_removed() -> None:
    shop, acme = Shop(PAGES, EVERYBODY), {"user": "Acme"}
    answer = shop.run("override set", rule="pages", features=acme, limits="1000/hour; 20000/day", for_="1h")
    override = {"rule": "pages", "client": "user=acme", "limits": "1000/hour; 20000/day", "key": "{user=acme}"}
    assert answer.json == {**override, "until": "1970-01-12T14:46:40+00:00"}
    assert answer.notes == ["your workers apply the change within 2 s (reload_interval)"]
    shop.run("override set", rule="everybody", features={}, limits="7/hour")
    assert [tuple(row.values()) for row in rows_of(shop.run("override list"))] == [
        ("pages", "user=acme", ["1000/hour", "20000/day"], "1970-01-12 14:46:40 UTC"),
        ("everybody", "all clients", ["7/hour"], "no end"),
    ]
    shop.hit("/pages", 4, user="acme")
    assert {key["limit"] for key in shop.keys(features=acme)} >= {1000, 20000}
    acme = {"user": "acme"}
    removed = shop.run("override remove", rule="pages", features=acme)
    assert removed.json == {"rule": "pages", "client": "user=acme", "removed": True}
    again = shop.run("override remove", rule="pages", features=acme)
    assert (again.json["removed"], again.found_wrong) == (False, True)
    assert "Check the spelling" in again.notes[0]
    assert shop.run("override clear").json == {"cleared": True}
    assert shop.run("override list").notes == ["there are no overrides"]


def test_notes_on_overrides() -> None:
    """They are on intervals, slots, and rules that are gone. A secret hides clients."""
    store = MemoryStore()
    shop = Shop(PAGES, secret=SECRET, reload_interval=0, store=store)
    set_note, interval = shop.run("override set", rule="pages", features={"user": "acme"}, limits="2 concurrent").notes
    assert "cannot decide concurrent limits" in set_note
    assert interval == "reload_interval = 0: your workers apply the change when they start"
    assert "acme" not in str(shop.run("override list").json)
    [row] = rows_of(Shop({**PAGES, "name": "web"}, store=store).run("override list"))
    assert row["rule"] == "pages (unknown)"


MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("inspect", {"rule": "page"}, "unknown rule 'page'. Did you mean 'pages'?"),
    ("inspect", {"prefix": "192.0.2."}, "expected NAME=VALUE; got '192.0.2.'"),
    ("inspect", {"prefix": "ipp=192."}, "no rule uses ipp"),
    ("inspect", {"features": {"usr": "ann"}}, "no rule uses usr. Did you mean user? The rules use email, ip, user"),
    ("inspect", {"features": {"ip": "192.0.2"}}, "features.ip: expected an IP address or a network"),
    ("inspect", {"limit": 0}, "limit: expected a whole number from 1 to 100000; got 0"),
    ("inspect", {"ruel": "pages"}, "ruel: unknown field. Did you mean 'rule'?"),
    ("reset", {}, "rule: is missing"),
    ("reset", {"rule": "login"}, "features: is missing"),
    ("reset", {"rule": "login", "features": WHO}, "features: the key of rule 'login' needs email"),
    ("reset", {"rule": "login", "features": {**ANN, "usr": "ann"}}, "rule 'login' does not use usr. Its key is: email"),
    ("ban", {"rule": "pages", "features": WHO}, "rule 'pages' has no ban option"),
    ("ban", {"rule": "banning", "features": {"ip": "192.0.2.0/24"}}, "because 192.0.2.0/24 has many clients"),
    ("ban", {"rule": "banning", "features": WHO, "for": "soon"}, "for: expected a duration such"),
    ("ban", {"rule": "banning", "features": WHO, "for": "0s"}, "for: expected more than 0"),
    ("unban", {"rule": "baning", "features": WHO}, "unknown rule 'baning'. Did you mean 'banning'"),
    ("bans", {"rule": "baning"}, "unknown rule 'baning'. Did you mean 'banning'"),
    ("override set", {"rule": "pages", "features": WHO}, "limits: is missing"),
    ("override set", {"rule": "pages", "features": WHO, "limits": "5/minut"}, "limits: cannot parse quota '5/minut'"),
    ("override set", {"rule": "pages", "features": {"plan": "pro"}, "limits": "5/minute"}, "does not use plan"),
    ("report", {"last": "0s"}, "last: expected more than 0"),
    ("report", {}, 'the application has no traffic log. Add traffic_log = "sqlite:///traffic.db"'),
    ("top", {"rule": "page"}, "unknown rule 'page'"),
]


def test_a_mistake_is_named_and_changes_nothing() -> None:
    shop = Shop(LOGIN, PAGES, BANNING)
    for name, fields, message in MISTAKES:
        expect_error(re.escape(message), run, shop.limiter, name, fields)
    assert shop.keys() == []
    assert shop.run("override list").json == {"overrides": []}


def test_an_event_loop_gets_the_same_answers() -> None:
    """Each operation is written once, for threads and for event loops."""
    fields: dict[str, dict[str, Any]] = {
        "inspect": {"features": WHO},
        "reset": {"rule": "pages", "features": WHO},
        "ban": {"rule": "banning", "features": WHO},
        "unban": {"rule": "banning", "features": WHO},
        "bans": {"limit": 3},
        "override set": {"rule": "pages", "features": WHO, "limits": "9/minute"},
        "override list": {},
        "override remove": {"rule": "pages", "features": WHO},
        "override clear": {},
        "report": {},
        "top": {},
    }
    assert fields.keys() == OPERATIONS.keys()
    answers: list[list[Answer]] = [[], []]
    for index in (0, 1):
        shop = Shop(PAGES, BANNING, traffic_log="memory://", traffic_clients=True)
        shop.hit("/pages", 4, ip="192.0.2.7")
        for name, arguments in fields.items():
            if index:
                answers[index].append(asyncio.run(arun(shop.limiter, name, arguments)))
            else:
                answers[index].append(run(shop.limiter, name, arguments))
    assert answers[0] == answers[1]


def test_a_service_looks_at_a_bounded_number_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """It decides requests at the same time. A command looks at all keys."""
    monkeypatch.setattr("ratelimit_mw.operations.clients._MAX_PAGES", 0)
    shop = Shop(BANNING)
    shop.hit("/", 4, ip="192.0.2.7")
    for name, fields, rows in (("bans", {}, "bans"), ("inspect", {"rejected": True}, "keys")):
        assert asyncio.run(arun(shop.limiter, name, fields)).json == {rows: [], "has_more": True}
        assert (len(found := shop.run(name, **fields).json[rows]), found[0]["banned"]) == (1, True)


def test_every_argument_has_a_meaning() -> None:
    """Help texts and forms show it."""
    for operation in OPERATIONS.values():
        for name, argument in operation.arguments.items():
            assert argument.meta.description, (operation.name, name)


def test_features_are_given_as_name_and_value() -> None:
    """Names have their canonical form. A name with two values is invalid, as in a request."""
    words = ["ip=192.0.2.7", "header:X-API-Key=a=b", "user.id=7", "user.name=ann", "query:a=1", "query:a=2"]
    features = read_features(words)
    assert features == {
        "ip": "192.0.2.7",
        "header:x-api-key": "a=b",
        "user": {"id": "7", "name": "ann"},
        "query:a": INVALID,
    }
    assert read_features(words_of({**features, "query:a": "1"})) == {**features, "query:a": "1"}


@each(
    ("words", "problem"),
    [
        (["alice"], "expected NAME=VALUE; got 'alice'"),
        (["IP=192.0.2.7"], "expected a feature"),
        (["ip/48=2001:db8::"], 'expected "ip"'),
        (["user=7", "user.id=7"], "set either user or user.id"),
        (["email=" + "a" * 330], "more than 320"),
    ],
)
def test_words_that_are_no_feature_are_errors(words: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read_features(words)
