"""``ratelimit-mw explain`` shows the decision of a limiter about a request, with reasons."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import RULES, Write, answer_of, rows_of, run
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw import load_settings
from ratelimit_mw.decision import Verdict
from ratelimit_mw.rules.ruleset import RuleSet


def explained(path: Path, *args: object, found_wrong: bool = False) -> dict[str, dict[str, Any]]:
    answer = answer_of("explain", path, *args)
    assert answer.found_wrong == found_wrong
    return {rule["rule"]: rule for rule in answer.json["rules"]}


def test_explain_shows_keys_and_limits(settings: Write) -> None:
    """The table shows the key, limits, algorithm and cost of each rule that applies."""
    words = ("--feature", "ip=192.0.2.7", "--feature", "email=a@b.c")
    assert rows_of(answer_of("explain", settings(RULES), "POST", "/login", *words)) == [
        {
            "rule": "login",
            "key": ["email=a@b.c", "ip=192.0.2.7"],
            "limits": ["5/minute", "20/hour"],
            "algorithm": ["sliding-window"],
            "mode": ["enforce", 'count_when = {"status": [401, 403]}'],
            "cost": ["1"],
        },
        {"rule": "api", "reason": "path: not /api/** or /v2/**"},
        {"rule": "rule-3", "reason": "method: not GET or HEAD"},
    ]
    assert rows_of(answer_of("explain", settings(RULES), "GET", "/"))[0]["key"] == "all clients"


def test_the_json_has_an_entry_for_each_rule(settings: Write) -> None:
    """The JSON contains the features, and an entry for each rule in the order of the file."""
    answer = answer_of("explain", settings(RULES), "get", "/x%20y?a=1", "--feature", "ip=::ffff:192.0.2.7").json
    assert answer["features"] == {"query:a": "1", "ip": "192.0.2.7", "method": "GET", "path": "/x y", "host": ""}
    assert [rule["rule"] for rule in answer["rules"]] == ["login", "api", "rule-3"]
    assert answer["rules"][2] == {
        "rule": "rule-3",
        "applies": True,
        "mode": "enforce",
        "key": "",
        "rejects": None,
        "algorithm": "sliding-window",
        "limits": [{"limit": "1000/second", "policy": "rule-3", "cost": 1}],
    }


READING = """
[[rules]]
name = "api"
key = ["user|ip"]
match = { "header:x-api-key" = "key-7" }
limits = "5/minute"
ban = { after = 3, within = "1m", for = "1h" }

[lists]
deny = { tenant = ["acme"] }
"""
TYPOS = {
    "usr=ann": "usr. Did you mean user?",
    "tenat=acme": "tenat. Did you mean tenant?",
    "header:x-api-kye=1": "header:x-api-kye. Did you mean header:x-api-key?",
    "customer=7": "customer. The rules use header:x-api-key, ip, user",
}


def test_a_feature_that_no_rule_reads_is_refused(settings: Write) -> None:
    """A misspelt name would change nothing. The built-in features of any request may be named."""
    file = settings(READING)
    for typo, message in TYPOS.items():
        result = run("explain", file, "GET", "/", "--feature", typo)
        assert (result.exit_code, f"no rule uses {message}" in result.stderr) == (1, True), typo
    features = ("ip=192.0.2.7", "email=a@b.c", "tenant=x", "header:x-api-key=key-7")
    answer = answer_of("explain", file, "GET", "/", *(f"--feature={each}" for each in features))
    # Whether a client is banned is a question for `bans`, which asks the store.
    assert rows_of(answer)[0]["mode"] == ["enforce", 'ban = {"after": 3, "within": "1m", "for": "1h"}']
    assert answer.json["rules"][0]["ban"] == {"after": 3, "within": "1m", "for": "1h"}


def test_explain_shows_the_first_reason(settings: Write) -> None:
    """The order is path, method, host, feature and key."""
    path = settings(RULES)
    api = ("GET", "/api/x", "--feature", "host=www.example.com:8000")
    assert explained(path, "GET", "/")["login"]["reason"] == "path: not /login"
    assert explained(path, "GET", "/login")["login"]["reason"] == "method: not POST"
    assert explained(path, "GET", "/api/x")["api"]["reason"] == "host: not *.example.com"
    assert explained(path, *api)["api"]["reason"] == "feature: region is missing, not AT or DE"
    us = explained(path, *api, "--feature", "region=US")["api"]
    assert us["reason"] == "feature: region is US, not AT or DE"
    assert explained(path, *api, "--feature", "region=AT")["api"]["applies"]
    login = explained(path, "POST", "/login", found_wrong=True)["login"]
    assert login["reason"] == "key: email is missing"
    path = settings("[[rules]]\nname = 'a'\nlimits = '5/s'\nmatch = {ip = '10.0.0.0/8', 'user.id' = 8, region = 'DE'}")
    for ip, more, reason in (
        ("192.0.2.7", "user.id=8", "feature: ip is 192.0.2.7, not in 10.0.0.0/8"),
        ("10.1.2.3", "user.id=9", "feature: user.id is 9, not 8"),
        ("10.1.2.3", "region=DE", "feature: user.id is missing, not 8"),
        ("10.1.2.3", "region=AT --feature user.id=8", "feature: region is AT, not DE"),
        ("10.1.2.3", "region=de --feature user.id=8", None),
        ("10.1.2.3", "region=a --feature region=b --feature user.id=8", None),
    ):
        words = ("--feature", f"ip={ip}", "--feature", *more.split())
        assert explained(path, "GET", "/", *words, found_wrong=reason is not None)["a"].get("reason") == reason, more


def test_explain_shows_the_limits_of_this_client(settings: Write) -> None:
    request = ("GET", "https://www.example.com/v2/x", "--feature", "region=DE")
    for who, limit in (("user=alice", "1000/minute"), ("user=bob --feature plan=pro", "500/minute")):
        api = explained(settings(RULES), *request, "--feature", *who.split())["api"]
        assert [each["limit"] for each in api["limits"]] == [limit]


def test_explain_a_rule_that_rejects_missing_keys(settings: Write) -> None:
    """The rule applies, and the reason for the rejection is shown."""
    path = settings("[[rules]]\nname = 'a'\nkey = ['email', 'user']\nlimits = '5/s'\nwhen_missing = 'reject'")
    rule = explained(path, "GET", "/", "--feature", "user=bob")["a"]
    assert (rule["applies"], rule["key"], rule["rejects"]) == (True, None, "email is missing")
    (row,) = rows_of(answer_of("explain", path, "GET", "/"))
    assert row["key"] == "rejected: email and user is missing"


def test_explain_without_a_matching_rule(settings: Write) -> None:
    """A note says so, with exit code 1. The file does not contain the match of an override."""
    answer = answer_of("explain", settings(""), "GET", "/")
    assert (answer.found_wrong, answer.notes, rows_of(answer)) == (True, ["no rule limits this request"], [])
    answer = answer_of("explain", settings('[[rules]]\noverrides = "login"\nlimits = "1/s"'), "GET", "/")
    assert (answer.found_wrong, rows_of(answer)) == (True, [])
    assert answer.notes == [
        "rules[0] is not shown: it changes the rule 'login' of a decorator. Use check --app",
        "no other rule limits this request",
    ]


def test_explain_notes_a_missing_ip_address(settings: Write) -> None:
    """The key contains ``ip=unknown``, and a note shows how to set the IP address."""
    answer = answer_of("explain", settings("limits = '5/s'"), "GET", "/")
    assert "ip=unknown" in answer.json["rules"][0]["key"]
    assert answer.notes == ["the IP address is missing. Add --feature ip=192.0.2.7 to see the key"]
    assert answer_of("explain", settings("limits = '5/s'"), "GET", "/", "--feature", "ip=192.0.2.7").notes == []


MISUSED = [
    *(("GET", "/", "--feature", feature) for feature in ("ip", "ip=nonsense", "x y=1", "path=/x", "method=GET")),
    ("GET", "/", "--feature", "host=a.example", "--feature", "host=b.example"),
    *(("GET", path) for path in ("http://[::1/", "login")),
    ("GET",),
]


def test_invalid_arguments_give_exit_code_2(settings: Write) -> None:
    """Invalid arguments give exit code 2 and a message."""
    for args in MISUSED:
        result = run("explain", settings(RULES), *args)
        assert (result.exit_code, result.stdout, "Error: " in result.stderr) == (2, "", True), args


MATCHING = """
[[rules]]
match = { user = ["Ann"] }
limits = "7/second"

[[rules]]
match = { "account.id as int" = [8] }
limits = "8/second"

[[rules]]
match = { path = "/v2/{id}", "path:id" = ["X"] }
limits = "9/second"

"""
HOSTS = st.sampled_from(["", "www.example.com", "example.com"])
FEATURES = st.fixed_dictionaries(
    {},
    optional={
        "user": st.sampled_from(["alice", "bob", "Ann", "ann "]),
        "account.id": st.sampled_from(["8", "08", "9"]),
        "email": st.just("a@b.c"),
        "region": st.sampled_from(["DE", "de", "US"]),
        "plan": st.sampled_from(["pro", "other"]),
        "ip": st.sampled_from(["192.0.2.7", "2001:db8::1"]),
    },
)


@pytest.mark.slow
@given(
    method=st.sampled_from(["GET", "HEAD", "POST", "OPTIONS", "PURGE"]),
    path=st.sampled_from(["/", "/login", "/login/", "//login", "/api", "/api/a/b", "/v2/x", "/Login"]),
    host=HOSTS,
    features=FEATURES,
)
def test_explain_agrees_with_the_limiter(
    tmp_path_factory: pytest.TempPathFactory, method: str, path: str, host: str, features: dict[str, str]
) -> None:
    """A limiter with these rules applies the same rules, keys and limits."""
    file = tmp_path_factory.getbasetemp() / "agrees.toml"
    file.write_text(
        RULES + MATCHING + "[[rules]]\nname = 'strict'\nkey = 'email'\nwhen_missing = 'reject'\nlimits = '9/s'\n"
    )
    given_features = [part for name, value in features.items() for part in ("--feature", f"{name}={value}")]
    answer = answer_of("explain", file, method, path, f"--feature=host={host}", *given_features).json
    plan = RuleSet(load_settings(file).rules).plan(method, path, host)
    looking = [rule for rule in answer["rules"] if rule["applies"]]
    rejecting = [rule["rule"] for rule in looking if rule["rejects"]]
    shown = [
        (limit["policy"], limit["limit"], rule["key"], limit["cost"]) for rule in looking for limit in rule["limits"]
    ]
    hits = plan.hits(answer["features"])
    if isinstance(hits, Verdict):
        rejected_by = [hits.decisions[0].rule]
    else:
        rejected_by = []
        done = [(limit.policy, str(limit.quota), key.removeprefix(limit.prefix), cost) for limit, key, cost, *_ in hits]
        assert shown == done
    assert rejecting == rejected_by


LISTED = RULES + '\n[lists.allow]\nip = ["10.0.0.0/8"]\n\n[lists.deny]\nip = ["203.0.113.0/24"]\n'


def test_explain_shows_the_decision_of_the_lists(settings: Write) -> None:
    """The rules do not decide the request of a listed client."""
    path = settings(LISTED)
    for client, listed, is_unlimited in (
        ("10.1.2.3", "allow", True),
        ("203.0.113.9", "deny", False),
        ("192.0.2.7", None, False),
    ):
        answer = answer_of("explain", path, "POST", "/login", f"--feature=ip={client}", "--feature=email=a@b.c")
        assert (answer.json["list"], answer.found_wrong) == (listed, is_unlimited)
        assert (f"the {listed} list decides this request before any rule" in answer.notes) == (listed is not None)


def test_a_field_with_several_values_is_invalid(settings: Write) -> None:
    """The command shows the key that the middleware uses. Frameworks read several equal values as one."""
    file = settings('[[rules]]\nname = "r"\nkey = ["query:q"]\nlimits = ["1/m"]\n')
    for path, *words in (
        ("/?q=a&q=b",),
        ("/?" + "&".join(["x=1"] * 1001),),
        ("/", "--feature", "query:q=a", "--feature", "query:q=b"),
    ):
        answer = json.loads(run("explain", file, "GET", path, *words, "--json").stdout)
        assert answer["features"]["query:q"] == "(invalid)"
        assert answer["rules"][0]["key"] == "{query:q!&}"
        assert "query:q=invalid" in rows_of(answer_of("explain", file, "GET", path, *words))[0]["key"]
    assert "query:q=a" in explained(file, "GET", "/?q=a&q=a")["r"]["key"]


def test_a_feature_in_its_comparison_form(settings: Write) -> None:
    """Attributes are given by their place in the key, and types as in the key."""
    file = settings('[[rules]]\nname = "r"\nkey = ["user.id", "path:id as int"]\nlimits = ["1/m"]\n')
    features = ["--feature", "user.id= Ann", "--feature", "path:id=007"]
    answer = answer_of("explain", file, "GET", "/", *features).json
    assert answer["rules"][0]["key"] == "path:id=1:7&{user.id=ann}"
    assert answer["features"]["user"] == {"id": " Ann"}
    result = run("explain", file, "GET", "/", *features, "--feature", "user=ann")
    assert result.exit_code == 2
    assert "set either user or user.id" in result.stderr
