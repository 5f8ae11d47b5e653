"""Keys have a hash tag of the client. With a secret the store contains digests of personal features only."""

import copy
import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import run
from hypothesis import example, given
from hypothesis import strategies as st
from tables import expect_error

from ratelimit_mw import Limiter, Rule, load_settings
from ratelimit_mw.keys.features import INVALID, UNMATCHED
from ratelimit_mw.keys.key import NO_SECRET, KeyMaker, Secret, parse_key
from ratelimit_mw.keys.parts import MAX_VALUE, part_of
from ratelimit_mw.testing import ManualClock

TEXT = "correct horse battery staple"
SECRET = Secret.from_text(TEXT)
PEOPLE = {"email": "ann@example.com", "user": "ann", "ip": "192.0.2.7"}


def limiter(key: Any, **settings: Any) -> Limiter:
    rule = {"name": "api", "limits": "2/minute", "key": key}
    return Limiter.from_settings({"rules": [rule], **settings}, clock=ManualClock(1_000_000.0))


def key_of(key: Any, features: dict[str, Any], **settings: Any) -> str:
    """Return the key in the store without the prefix of the limit."""
    return limiter(key, **settings).peek(features).decisions[0].hit[1].rpartition("|")[2]


# -- contents of the store ---------------------------------------------------------------------------------


def test_no_personal_value_reaches_the_store() -> None:
    """With a secret, each personal part of a key is a name and 32 hexadecimal digits."""
    for key in (["email"], ["user"], ["ip"], ["ip/24"], ["user|ip"], ["email", "ip"], ["path", "email", "user"]):
        stored = key_of(key, {**PEOPLE, "path": "/login"}, secret=TEXT)
        assert not any(value in stored for value in PEOPLE.values()), key
        assert re.fullmatch(r"(path=6:/login&)?(email#[0-9a-f]{32})?\{(email|user|ip(/24)?)#[0-9a-f]{32}\}", stored), (
            key
        )


def test_other_features_stay_readable() -> None:
    """Only personal features are keyed by default. ``keyed`` names others."""
    features = {**PEOPLE, "header:x-api-key": "k1", "path": "/a"}
    assert key_of(["path"], features, secret=TEXT) == f"{{{SECRET.digest('', 'path=/a')}}}&path=/a"
    assert key_of(["user"], features, secret=TEXT, keyed=[]).endswith("}&user=ann")
    assert key_of(["user"], features, secret=TEXT, keyed=["header:X-API-Key"]).endswith("}&user=ann")
    assert key_of(["header:x-api-key"], features, secret=TEXT, keyed=["header:X-API-Key"]).startswith(
        "{header:x-api-key#"
    )


def test_the_same_secret_makes_the_same_key_everywhere() -> None:
    """Workers with one store share its counts: the digest depends only on secret, name and value.

    So the store does not reveal that a user and an email are one person. Without a secret, keys stay readable.
    """
    assert key_of(["ip"], PEOPLE, secret=TEXT) == "{ip#7467ce9ae3160d08175a88807684ce9c}"
    assert key_of(["ip"], PEOPLE, secret=TEXT + "r") != key_of(["ip"], PEOPLE, secret=TEXT)
    assert Secret.from_text(TEXT) == SECRET != Secret.from_text(TEXT + "r")
    same = {"user": "ann@example.com", "email": "ann@example.com"}
    user, email = (key_of([name], same, secret=TEXT) for name in same)
    assert user.removeprefix("{user") != email.removeprefix("{email")
    assert key_of(["email", "ip"], PEOPLE) == "email=15:ann@example.com&{ip=192.0.2.7}"
    assert key_of(["user"], {"user": "x" * 65}) == "{user#ede3537ca3db143f2b5ecdf2ccbf6ac5}"


def test_a_long_value_is_digested_with_the_secret() -> None:
    """A reader of the store cannot guess the value of a digest, for any feature."""
    features = {"query:q": "x" * 65}
    keys = {key_of(["query:q"], features, **settings) for settings in ({}, {"secret": TEXT}, {"secret": TEXT * 2})}
    assert len(keys) == 3
    assert all(re.fullmatch(r"\{query:q#[0-9a-f]{32}\}", key) for key in keys)


names = ("user", "tenant", "ip")
values = st.one_of(st.none(), st.just(""), st.just(INVALID), st.text(max_size=3), st.integers(0, 3))
sets = st.lists(st.fixed_dictionaries(dict.fromkeys(names, values)), min_size=2, max_size=5)


@given(st.sampled_from([["user"], ["user|ip"], ["user", "tenant"], ["tenant", "user"], ["user", "tenant|ip"]]), sets)
def test_keyed_keys_are_equal_exactly_when_plain_keys_are(key: list[str], feature_sets: list[dict[str, Any]]) -> None:
    """A secret changes the stored text but not the counts, on the fast path too."""
    entries = parse_key(key)
    keyed, plain = KeyMaker(entries, secret=SECRET), KeyMaker(entries)
    pairs = [(keyed.build(features), plain.build(features)) for features in feature_sets]
    for one, open_one in pairs:
        for other, open_other in pairs:
            assert (one == other) == (open_one == open_other)
    fast = keyed.with_prefix("p|")
    assert [fast(features) for features in feature_sets] == [None if one is None else f"p|{one}" for one, _ in pairs]


def test_a_value_that_looks_like_a_digest_is_not_one() -> None:
    """A client cannot reach the count of another client by sending a digest."""
    digest = key_of(["user"], PEOPLE, secret=TEXT)
    for forged in (digest, digest.strip("{}"), digest.strip("{}").removeprefix("user#")):
        assert key_of(["user"], {"user": forged}, secret=TEXT) != digest


def test_other_functions_work_with_a_secret() -> None:
    """Limits by client, invalid and missing values, numbers, and reset of a key work."""
    rule = {"limits": "1/minute", "key": "user", "per_key": {"ann": "9/minute"}}
    rate = Limiter.from_settings({"rules": [rule], "secret": TEXT}, clock=ManualClock(1.0))
    assert [d.limit for d in rate.peek({"user": "ann"}).decisions] == [9]
    assert rate.peek({}).decisions == ()
    assert [bool(rate.hit({"user": user})) for user in (7, "7", INVALID, INVALID, "!")] == [1, 0, 1, 0, 1]
    rate.reset("rule-1", {"user": "7"})
    assert rate.hit({"user": 7}).allowed
    with pytest.raises(TypeError, match="no stable text"):
        rate.hit({"user": object()})
    assert rate.hit({"user": "<b> at 0x7f"}).allowed


# -- sources of the secret ---------------------------------------------------------------------------------


def test_an_invalid_secret_is_an_error_that_does_not_show_it() -> None:
    """A secret that is too short, given twice, missing or unused raises an error with its place."""
    for settings, message in (
        ({"secret": "only 15 letters"}, "secret: expected a secret of at least 16 characters; got 15"),
        ({"secret": ""}, "secret: expected a secret of at least 16 characters; got 0"),
        ({"secret": 1234567890123456}, "secret: expected text$"),
        ({"keyed": ["user"]}, "keyed: keyed needs a secret"),
        ({"secret": TEXT, "keyed": ["user-agent"]}, "keyed\\[0\\]: expected a feature"),
    ):
        error = expect_error(message, load_settings, settings)
        assert str(settings.get("secret") or TEXT) not in error


@pytest.mark.parametrize("broken", [f'secret: "{TEXT}', f"secret: {TEXT}: x", f"secret: {TEXT}\n bad: ["])
@pytest.mark.parametrize("with_libyaml", [True, False])
def test_an_error_in_a_settings_file_shows_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, with_libyaml: bool
) -> None:
    """PyYAML quotes a broken line in its own errors. This error shows only the line number."""
    if not with_libyaml:
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    for name in ("r.yaml", "r.toml", "r.json"):
        (tmp_path / name).write_text(broken)
        error = expect_error("cannot parse the file: ", load_settings, tmp_path / name)
        assert "horse" not in error


def test_no_output_shows_the_secret() -> None:
    """Neither settings nor a limiter keep the secret, and their repr does not show the derived key."""
    settings = load_settings({"secret": TEXT})
    texts = [repr(settings), str(settings), repr(settings.secret), repr(Limiter.from_settings(settings).__dict__)]
    for text in texts:
        assert TEXT not in text
        assert repr(settings.secret.key)[2:-1] not in text
        assert settings.secret.key.hex() not in text
    assert TEXT.encode() not in pickle.dumps(settings.secret)
    assert (repr(settings.secret), repr(NO_SECRET)) == ("Secret(...)", "Secret()")
    assert copy.deepcopy(settings.secret) == settings.secret
    assert load_settings({}) != settings


# -- commands ----------------------------------------------------------------------------------------------


def test_commands_show_the_key_in_the_store_and_no_secret(tmp_path: Path) -> None:
    """An operator can look up the count of a person by any spelling of the email address."""
    rule = {"name": "api", "key": "email", "limits": "5/minute"}
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"rules": [rule], "secret": TEXT}))
    result = run("explain", str(path), "GET", "/", "--feature", "email= Ann@Example.com", "--json")
    assert json.loads(result.stdout)["rules"][0]["key"] == key_of(["email"], PEOPLE, secret=TEXT)
    long = run("explain", str(path), "GET", "/", "--feature", f"email={'a' * 321}")
    assert (long.exit_code, "email has more than 320 characters" in long.stderr) == (2, True)
    checked = [run("check", str(path), *options) for options in ([], ["--json"])]
    assert [(each.exit_code, "horse" in each.output) for each in checked] == [(0, False)] * 2


WHO = {"ip": "192.0.2.7", "user": "ann", "email": "ann@example.com", "endpoint": "/login", "tenant": "t1"}


def keys_of(key: Any, features: dict[str, Any], name: str = "api", **settings: Any) -> list[str]:
    """Return the keys of a rule with two windows, as a store gets them."""
    rule = {"name": name, "limits": "5/minute; 20/hour", "key": key}
    limiter = Limiter.from_settings({"rules": [rule], **settings}, clock=ManualClock(1_000_000.0))
    return [decision.hit[1] for decision in limiter.peek(features).decisions]


def tag_of(key: str) -> str:
    """Return the text that a cluster hashes: all between the first brace and the next closing one, if that is any."""
    match = re.fullmatch(r"[^{]*\{([^}]+)\}.*", key, re.DOTALL)
    return match[1] if match else key


def test_the_tag_is_the_last_of_ip_user_and_email() -> None:
    """Without them, it is the whole part of the client. All windows have one tag."""
    for key, client in (
        (["ip"], "{ip=192.0.2.7}"),
        (["endpoint", "user|ip"], "endpoint=6:/login&{user=ann}"),
        (["email", "ip"], "email=15:ann@example.com&{ip=192.0.2.7}"),
        (["ip", "tenant"], "tenant=2:t1&{ip=192.0.2.7}"),
        (["ip/24", "endpoint"], "endpoint=6:/login&{ip/24=192.0.2.0/24}"),
        (["email", "tenant", "endpoint"], "tenant=2:t1&endpoint=6:/login&{email=ann@example.com}"),
        (["endpoint", "tenant"], "{endpoint=6:/login&tenant=t1}"),
        (["tenant"], "{tenant=t1}"),
    ):
        keys = keys_of(key, WHO)
        assert keys == [f"1|api|sliding-window-log|{period}|{client}" for period in ("1m", "1h")], key
        assert len(set(map(tag_of, keys))) == 1, key


def test_the_rules_of_one_client_share_a_tag() -> None:
    """A rule by IP address and one by endpoint and IP address are one slot, so one command."""
    tags = {tag_of(key) for by in (["ip"], ["endpoint", "ip"], ["ip", "tenant"]) for key in keys_of(by, WHO)}
    assert tags == {"ip=192.0.2.7"}


braces = st.text("a%{}7BD|&", min_size=1, max_size=8)


@given(braces, braces, braces)
@example("}", "{", "{}")
@example("{}", "%7D", "a{b}c")
def test_no_value_changes_a_tag(user: str, tenant: str, name: str) -> None:
    """Braces in a value or in the name of a rule neither begin nor end a tag, and no tag is empty."""
    plain = keys_of(["tenant", "user"], {"user": "ann", "tenant": tenant}, name)
    assert set(map(tag_of, plain)) == {"user=ann"}
    (first, _), (other, _) = (keys_of("user", {"user": each}, name) for each in (user, user + "}"))
    assert tag_of(first) != tag_of(other)
    for key in (*keys_of(["tenant", "user"], {"user": user, "tenant": tenant}, name), first, other):
        assert tag_of(key).startswith("user=")
        assert (key.count("{"), key.count("}")) == (1, 1)
    assert not set("{}") & set("".join(keys_of([], {}, name)))


def test_two_rules_of_which_one_has_braces_in_its_name_have_two_keys() -> None:
    """The escaped name is not the name of another rule."""
    names = ("a{b}", "a%7Bb%7D", "a%7Bb}", "{", "}", "{}")
    assert len({keys_of("ip", WHO, name)[0] for name in names}) == len(names)


def test_with_a_secret_each_tag_has_a_keyed_digest() -> None:
    """A client that does not know the secret cannot compute its slot, whichever features are digested."""
    for key in (["ip"], ["tenant"], ["endpoint", "tenant"], ["tenant", "user"], ["header:x-key"]):
        for keyed in (None, [], ["tenant"]):
            features = {**WHO, "header:x-key": "k1"}
            tags = [
                tag_of(keys_of(key, features, secret=secret, keyed=keyed)[0]) for secret in (TEXT, TEXT, TEXT + "2")
            ]
            assert all(re.fullmatch(r"([a-z:-]+#)?[0-9a-f]{32}", tag) for tag in tags), (key, keyed)
            assert tags[0] == tags[1] != tags[2], (key, keyed)


def test_an_invalid_value_has_a_tag_of_its_own() -> None:
    """No text is equal to it, with or without a secret."""
    tags = {tag_of(keys_of("user", {"user": user})[0]) for user in (INVALID, "!", "!&", "user!&")}
    assert len(tags) == 4
    assert tag_of(keys_of("user", {"user": INVALID}, secret=TEXT)[0]) == "user!&"


_TEXTS = st.text(max_size=80) | st.just(INVALID) | st.from_regex(r"[0-9]{1,2}:[a&{}%=]{1,5}", fullmatch=True)


@given(
    entries=st.lists(st.sampled_from(["endpoint", "user|ip", "tenant", "email", "header:x"]), max_size=4, unique=True),
    values=st.fixed_dictionaries(
        {}, optional=dict.fromkeys(["user", "tenant", "email", "endpoint", "header:x"], _TEXTS)
    ),
    has_secret=st.booleans(),
)
@example(entries=["tenant", "header:x"], values={"tenant": "1:a&b=", "header:x": "2:{}&c"}, has_secret=False)
@example(entries=["header:x", "tenant"], values={"tenant": "%7B", "header:x": "a}&{b"}, has_secret=True)
@example(entries=["tenant"], values={"tenant": INVALID}, has_secret=False)
@example(entries=["user|ip"], values={}, has_secret=True)
@example(entries=["tenant"], values={"tenant": "a" * 80}, has_secret=True)
def test_a_key_is_parsed_into_its_values(entries: list[str], values: dict[str, Any], has_secret: bool) -> None:
    """No value of a client can look like another feature. Digests stay digests."""
    secret = SECRET if has_secret else NO_SECRET
    parsed = [f"{entry} as raw" if entry in ("tenant", "header:x") else entry for entry in entries]
    maker = KeyMaker(parse_key(parsed), secret=secret, warn=lambda: None)
    features = {"ip": "192.0.2.7", **values}
    key = maker.build(features)
    if key is None:
        return
    expected = {}
    for entry in parsed:
        parts = [part for part in map(part_of, entry.split("|")) if part.compared(features) is not None]
        if not parts:
            expected["endpoint"] = UNMATCHED
            continue
        name, text = parts[0].name, parts[0].compared(features)
        is_long = text is not INVALID and len(text.encode("utf-8", "surrogatepass")) > MAX_VALUE
        is_digest = text is not INVALID and (secret.covers(parts[0].feature) or is_long)
        expected[name] = secret.digest(name, text) if is_digest else "invalid" if text is INVALID else text
    assert maker.parse(key) == expected
    invalid = [part_of(name).compared(features) is INVALID for name in expected]
    assert maker.has_invalid(key) == any(invalid)
    assert maker.has_values(key, {})
    assert maker.has_values(key, features)
    if not expected.keys() <= {"endpoint"}:
        assert not maker.has_values(key, dict.fromkeys(features, "another value"))


def test_a_key_with_other_entries_has_no_values() -> None:
    """The key of a rule has changed, but its old keys are still in the store."""
    for key in ("{user=ann}", "{user!&}", "tenant=9:x&{ip=1}", "tenant=(:x&{ip=1}", f"tenant={'9' * 30}:x&{{ip=1}}"):
        maker = KeyMaker(parse_key(["tenant", "ip"]))
        assert maker.parse(key) == {}
        assert not maker.has_values(key, {"ip": "1"})
        assert not maker.has_invalid(key)


def test_the_captures_of_a_path_are_values_of_a_key() -> None:
    """You name the path, or the parameter itself."""
    rule = Limiter(
        [Rule(name="users", limits="1/minute", key=["path:user"], match={"path": "/users/{user}"})]
    ).rules.named("users")
    key = rule.key_of({"path": "/users/ann"}) or ""
    assert rule.key.has_values(key, rule.captures.add({"path": "/users/Ann"}))
    assert rule.key.has_values(key, {"path:user": "ann"})
    assert not rule.key.has_values(key, {"path:user": "bob"})
    assert rule.key.parse(key) == {"path:user": "ann"}
    assert rule.key_of({}) is None
    assert rule.client_key({"path": "/users/Ann"}, is_exact=True) == key
