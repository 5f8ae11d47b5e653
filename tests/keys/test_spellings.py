"""Every spelling of an email address, a path, a host or a region has one form, and no text raises an error."""

import unicodedata
from typing import Any

import idna
from hypothesis import given
from hypothesis import strategies as st
from tables import expect_error

from ratelimit_mw import Limiter, Rule, normalized_email
from ratelimit_mw.keys.features import INVALID
from ratelimit_mw.keys.forms import normalize_host
from ratelimit_mw.testing import ManualClock

ANN = "ann@xn--bcher-kva.example"


def test_every_spelling_of_an_email_address_is_one() -> None:
    """Case, width, composition, A-labels, other dots, outer spaces and invisible characters do not matter."""
    for text in (
        *("ann@b\u00fccher.example", " Ann@B\u00dcCHER.Example \r\n", "ANN@bu\u0308cher.example"),
        *("ann@XN--BCHER-KVA.EXAMPLE", "ann@b\u00fccher.example.", "ann@b\u00fccher.example . "),
        *("ann@b\u00fccher\u3002example", "ann@b\u00fccher\uff0eexample\uff61"),
        *("\uff41\uff4e\uff4e@b\u00fccher.example", "ann\uff20b\u00fccher.example"),
        *("ann@b\u00fc\u00adch\u200ber.exam\u2060ple", "ann@b\u00fccher.ex\U000e0100ample"),
        *("a\ufeffnn@b\u00fccher.example", "\u00a0ann@b\u00fccher.example\u3000"),
    ):
        assert normalized_email(text) == ANN


def test_look_alikes_have_one_spelling() -> None:
    """Texts that are equal under compatibility and case rules share a spelling, even as A-labels."""
    for one, other in (
        ("\u212aelvin@example.com", "kelvin@example.com"),
        ("\ufb01@example.com", "fi@example.com"),
        ("stra\u00dfe@example.com", "strasse@example.com"),
        ("caf\u00e9@example.com", "cafe\u0301@example.com"),
        ("a\u03c3@example.com", "a\u03c2@example.com"),
        ("a@fa\u00df.example", "a@xn--fa-hia.example"),
        ("m\u0131ke@example.com", "mike@example.com"),  # dotless i: equal in capitals, as databases compare
        ("m\u0130ke@gma\u0131l.example", "mike@gmail.example"),
        ("a@\u03b2\u03cc\u03bb\u03bf\u03c2.example", "a@xn--nxasmm1c.example"),
    ):
        assert normalized_email(one) == normalized_email(other)


def test_different_mailboxes_stay_different() -> None:
    """Only spellings are merged. Addresses that some providers deliver to one mailbox stay separate."""
    for one, other in (
        ("ann+1@example.com", "ann@example.com"),
        ("a.nn@example.com", "ann@example.com"),
        ("ann@example.com", "ann@example.org"),
        ("ann@@example.com", "ann@example.com"),
        ("p\u0430ypal@example.com", "paypal@example.com"),  # another script
    ):
        assert normalized_email(one) != normalized_email(other)


def test_text_that_is_no_email_address_has_a_spelling_too() -> None:
    """The application validates forms, so normalization rejects no text."""
    for text, spelling in (
        ("", ""),
        (" \t", ""),
        ("Ann", "ann"),
        ("@", "@"),
        ("ann@", "ann@"),
        ("@Example.com", "@example.com"),
        ("A@B@Example.com.", "a@b@example.com"),
        ("ann@[192.0.2.1]", "ann@[192.0.2.1]"),
        ("ann@a_b.example", "ann@a_b.example"),
        ("a@xn--", "a@xn--"),
        ("a@xn--a-", "a@xn--a-"),
        ("a@xn--\ud800", "a@xn--\ud800"),
        ("a@xn--99999999", "a@xn--99999999"),
        ("a@xn--x-dha0426q", "a@xn--x-dha0426q"),  # a letter, a dot of full width and x
        ("a@\U0001f600.example", "a@xn--e28h.example"),
    ):
        assert normalized_email(text) == spelling


def test_the_length_is_bounded() -> None:
    """Up to 320 characters are accepted, before and after normalization. Outer spaces do not count."""
    domain = "@example.com"
    longest = "a" * (320 - len(domain)) + domain
    assert normalized_email(f"  {longest}  ") == longest
    assert normalized_email("a" + longest) is INVALID
    assert normalized_email("\ufdfa" * 300) is INVALID
    assert normalized_email("\u200b" * 1_000_000 + longest) is INVALID


# Dotless i counts as i, which IDNA keeps apart.
labels = st.text(
    st.characters(categories=["Ll", "Lo", "Nd"], max_codepoint=0x2FFF, exclude_characters="\u0131\u0307"),
    min_size=1,
    max_size=20,
)


@given(labels)
def test_domains_become_the_a_labels_of_the_standard(label: str) -> None:
    """When IDNA (UTS 46, as in browsers) accepts a label, the normalized form is its A-label."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", label).casefold())
    try:
        expected = idna.encode(folded, uts46=True).decode()
    except idna.IDNAError:
        return
    assert normalized_email(f"a@{label}") == f"a@{expected}"
    assert normalized_email(f"a@{expected}") == f"a@{expected}"


@given(
    st.text(max_size=40), st.text(st.sampled_from("xn-abc09.@\u00fc\u00ad\uff0e\u3002\u0345\u1160\u0130"), max_size=40)
)
def test_normalization_is_idempotent(local: str, domain: str) -> None:
    """No text raises an error, and a second normalization changes nothing."""
    normalized = normalized_email(f"{local}@xn--{domain}")
    assert normalized is INVALID or normalized_email(normalized) == normalized


# -- settings ----------------------------------------------------------------------------------------------


def test_limits_by_email_match_any_spelling() -> None:
    """A table of limits matches emails from the middleware and from direct calls."""
    for key in (["email"], ["user|email"]):
        table = {
            "Ann@B\u00fccher.example": "9/minute",
            "bob@x.org": "8/minute",
            "BOB@x.org": "7/minute",
        }
        limiter = Limiter([Rule(limits="1/minute", key=key, per_key=table)], clock=ManualClock(1.0))
        limits = {text: limiter.peek({"email": text}).decisions[0].limit for text in (ANN, *table, "ann@x.org")}
        assert list(limits.values()) == [9, 9, 8, 7, 1], key


def test_matches_and_lists_accept_any_spelling() -> None:
    """This holds for emails and countries. An entry that never matches would disable its limit."""
    rule = {"limits": "1/minute", "key": [], "match": {"email": ["Ann@X.org"], "region": ["de", "AT"]}}
    rule["per"] = {"region": {"at": "5/minute"}, "email": {"ANN@x.org": "4/minute"}}
    limiter = Limiter.from_settings({"rules": [rule], "lists": {"deny": {"email": "Mallory@X.org", "region": ["fr"]}}})
    ann = {"email": "ann@x.org"}
    assert [d.limit for d in limiter.peek({**ann, "region": "DE"}).decisions] == [4]
    assert [d.limit for d in limiter.peek({**ann, "region": "AT"}).decisions] == [5]
    assert limiter.peek({"email": "bob@x.org", "region": "DE"}).decisions == ()
    assert not limiter.peek({"email": "mallory@x.org"}).allowed
    assert not limiter.peek({**ann, "region": "FR"}).allowed


def allowed(limiter: Limiter, *requests: dict[str, Any]) -> list[bool]:
    return [limiter.hit(features).allowed for features in requests]


def test_spellings_share_a_count() -> None:
    """Slashes of a path do not matter, nor case, port and final dot of a host. All invalid values have one count."""
    for key, spellings in (
        ("path", [["/login", "/login/", "//login", "login"], ["/login\n", "/x/../login"], ["/Login"]]),
        (
            "host",
            [
                ["a.example", "A.example.:80"],
                ["[::1]:80", "[0:0::1]"],
                ["a b", "a,b", "a" * 300, "[::1", "[::1::2]", "a:b"],
            ],
        ),
        ("region", [["AT", "at", b"at"], ["\u00e9" * 400, "\u00e8" * 500]]),
        ("region as raw", [["AT", "AT"], ["at"]]),
    ):
        limiter = Limiter([Rule(limits="1/minute", key=[key])])
        for same in spellings:
            requests = [{key.partition(" ")[0]: value} for value in same]
            assert allowed(limiter, *requests) == [True] + [False] * (len(same) - 1), same
    assert normalize_host(None) is normalize_host(7) is INVALID


def test_a_rule_matches_a_host_in_any_spelling() -> None:
    """A host that is invalid may be any host, so the rule applies."""
    for host, applies in (
        ("example.com", True),
        ("EXAMPLE.com.:8000", True),
        ("shop.example.com", False),
        ("[2001:DB8:0:0::1]:80", True),
        (INVALID, True),
        ("example.com, other", True),
        ("", False),
    ):
        limiter = Limiter([Rule(limits="1/minute", key=[], match={"host": ["Example.COM.", "[2001:db8::1]"]})])
        assert bool(limiter.match({"host": host}).rules) == applies


def test_a_pattern_that_is_no_host_is_an_error() -> None:
    """The error shows the expected form."""
    for host in ("example.com:80", "[::1]:80", "a b", "*.", "*", "[::g]", "é.example", "http://x", 7, None, ""):
        expect_error(r"match\.host: expected a host without port", Rule, limits="1/minute", match={"host": host})


REGIONS = {"AT": True, "at": True, b"at": True, " At": False, "\uff21\uff34": False}


def test_spellings_of_a_region_share_its_limits() -> None:
    """It holds in keys, ``match`` and deny lists; keys show capitals. Allow lists and tables take exact codes."""
    for region, is_exact in REGIONS.items():
        rules = [
            Rule(name="key", limits="9/minute", key=["region"]),
            Rule(name="match", limits="1/minute", key=[], match={"region": ["At"]}),
            Rule(name="table", limits="2/minute", key=[], per={"region": {"at": "5/minute"}}),
        ]
        by_rule = {each.rule: each for each in Limiter(rules).hit({"region": region}).decisions}
        assert (by_rule["key"].client, by_rule["table"].limit) == ("region=AT", 5 if is_exact else 2), region
        assert "match" in by_rule, region
        for kind, is_listed in (("allow", is_exact), ("deny", True)):
            lists = Limiter.from_settings({"rules": [{"limits": "9/minute"}], "lists": {kind: {"region": ["at"]}}})
            verdict = lists.hit({"region": region})
            assert (verdict.allowed, len(verdict.decisions)) == (kind == "allow", 0 if is_listed else 1), region
