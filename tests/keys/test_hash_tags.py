"""The hash tag of a key: the limits of one client have one tag, and no value sent by a client changes another tag."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.keys.features import INVALID, UNMATCHED
from ratelimit_mw.keys.key import KeyMaker, parse_key
from ratelimit_mw.keys.parts import LONGEST, part_of
from ratelimit_mw.keys.secret import NO_SECRET, Secret
from ratelimit_mw.testing import ManualClock

SECRET = "correct horse battery staple"
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
                tag_of(keys_of(key, features, secret=secret, keyed=keyed)[0])
                for secret in (SECRET, SECRET, SECRET + "2")
            ]
            assert all(re.fullmatch(r"([a-z:-]+#)?[0-9a-f]{32}", tag) for tag in tags), (key, keyed)
            assert tags[0] == tags[1] != tags[2], (key, keyed)


def test_an_invalid_value_has_a_tag_of_its_own() -> None:
    """No text is equal to it, with or without a secret."""
    tags = {tag_of(keys_of("user", {"user": user})[0]) for user in (INVALID, "!", "!&", "user!&")}
    assert len(tags) == 4
    assert tag_of(keys_of("user", {"user": INVALID}, secret=SECRET)[0]) == "user!&"


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
def test_a_key_is_parsed_into_its_values(entries: list[str], values: dict[str, Any], has_secret: bool) -> None:
    """No value of a client can look like another feature. Digests stay digests."""
    secret = Secret.from_text(SECRET) if has_secret else NO_SECRET
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
        is_long = text is not INVALID and len(text.encode("utf-8", "surrogatepass")) > LONGEST
        is_digest = text is not INVALID and (secret.covers(parts[0].feature) or is_long)
        expected[name] = secret.digest(name, text) if is_digest else "invalid" if text is INVALID else text
    assert maker.parse(key) == maker.values_in(key) == expected
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
        assert maker.values_in(key) is None
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
    assert rule.key.values_in(key) == {"path:user": "ann"}
