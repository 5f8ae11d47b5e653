"""The rate limit headers: right by the grammar of an independent parser, and right in what they say."""

from __future__ import annotations

import math
from typing import Any

import http_sf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw import ConfigError, Limiter, Rule, Verdict
from ratelimit_mw.http import headers as headers_module
from ratelimit_mw.http.headers import HeaderWriter
from ratelimit_mw.testing import ManualClock

FEATURES = {"ip": "192.0.2.7"}


class Scene:
    """Some rules, a clock and a writer; each request gives its headers by name."""

    def __init__(self, *rules: Rule, **options: Any) -> None:
        self.clock = ManualClock(1_000_000.0)
        self.limiter = Limiter(rules, clock=self.clock)
        self.writer = HeaderWriter(**options)

    def hit(self, features: dict[str, str] | None = None, cost: int | None = None) -> dict[str, str]:
        return self.of(self.limiter.hit(FEATURES if features is None else features, cost))

    def of(self, verdict: Verdict) -> dict[str, str]:
        found = self.writer.headers(verdict)
        assert len({name for name, _ in found}) == len(found)
        assert all(name == name.lower() for name, _ in found)
        return {name.decode("ascii"): value.decode("ascii") for name, value in found}


def parsed(value: str) -> Any:
    """A field as an independent parser of structured fields reads it; it must be in its canonical spelling."""
    items = http_sf.parse(value.encode("ascii"), tltype="list")
    assert http_sf.ser(items) == value
    return items


def rule(limits: Any, name: str = "login", **options: Any) -> Rule:
    return Rule(name=name, limits=limits, **options)


# -- the draft's own examples ------------------------------------------------------------------------------

DRAFT = [
    '"burst";q=100;w=60,"daily";q=1000;w=86400',
    '"default";q=100;w=10',
    '"permin";q=50;w=60,"perhr";q=1000;w=3600',
    '"peruser";q=100;w=60;pk=:cHsdsRa894==:',
    '"peruser";q=65535;qu="content-bytes";w=10;pk=:sdfjLJUOUH==:',
    '"default";r=50;t=30',
    '"default";r=999;pk=:dHJpYWwxMjEzMjM=:',
    '"default";r=300000000;t=60;pk=:QXBwLTk5OQ==:',
    '"problemPolicy";r=0;t=10',
    '"default";r=1;t=7',
    '"daily";r=1;t=86400',
    '"somepolicy";q=10000;w=1000',
    '"somepolicy";r=10000;t=10',
    '"default";r=0;t=50',
    '"default";r=0;t=48',
    '"dayLimit";r=100;t=36000',
    '"basic";q=100;w=60',
    '"basic";r=60;t=58',
    '"default";r=0;t=5',
    '"fixedwindow";r=99;t=50',
    '"dynamic";q=15;w=20',
    '"dynamic";r=15;t=40',
    '"hour";q=1000;w=3600, "day";q=5000;w=86400',
    '"sliding";q=100;w=60;burst=1000',
    '"fixed";q=5000;w=3600;burst=0',
    '"sliding";q=12;r=6;t=1',
]


@pytest.mark.parametrize("value", DRAFT)
def test_the_parser_reads_the_drafts_examples(value: str) -> None:
    """The parser that judges our headers accepts every value printed in the draft, and spells it canonically."""
    items = http_sf.parse(value.encode(), tltype="list")
    canonical = value.replace(',"', ', "').replace("Ra894==", "Ra89w==").replace("UOUH==", "UOUA==")
    assert http_sf.ser(items) == canonical


@pytest.mark.parametrize(
    "value", ['"a";q=1,', '"a";Q=1', '"a";q=1234567890123456', '"\u00e9";q=1', '"a\r\n";q=1', '"a"q=1']
)
def test_the_parser_refuses_what_is_malformed(value: str) -> None:
    """The parser that judges our headers is strict."""
    with pytest.raises(http_sf.StructuredFieldError):
        http_sf.parse(value.encode("utf-8"), tltype="list")


@pytest.mark.parametrize(
    "name", ["", "a b", "a\r\nb", "a\n", "\u00e9", "caf\u00e9", "a\x7f", "a\tb", "\x00", "x" * 201]
)
def test_a_name_that_no_header_can_hold_is_refused_when_built(name: str) -> None:
    """A rule's name becomes a policy's name: what could split or break a header is an error at start."""
    with pytest.raises(ConfigError, match="name"):
        Rule(name=name, limits="1/minute")


# -- what is written ---------------------------------------------------------------------------------------


def test_the_fields_of_an_allowed_request() -> None:
    """Worked by hand: "5/minute; 20/hour" at 40 s into a minute and 2800 s into an hour, first hit."""
    scene = Scene(rule("5/minute; 20/hour", algorithm="fixed-window"))
    assert scene.hit() == {
        "x-ratelimit-limit": "5",
        "x-ratelimit-remaining": "4",
        "x-ratelimit-reset": "20",
        "ratelimit-policy": '"login";q=5;w=60, "login-2";q=20;w=3600',
        "ratelimit": '"login";r=4;t=20',
    }


def test_the_fields_of_a_refused_request() -> None:
    """Worked by hand: the minute is full, so the hour does not show in ``RateLimit``, and ``t`` is Retry-After."""
    scene = Scene(rule("1/minute; 20/hour", algorithm="fixed-window"))
    scene.hit()
    scene.clock.advance(0.5)
    assert scene.hit() == {
        "x-ratelimit-limit": "1",
        "x-ratelimit-remaining": "0",
        "x-ratelimit-reset": "20",
        "ratelimit-policy": '"login";q=1;w=60, "login-2";q=20;w=3600',
        "ratelimit": '"login";r=0;t=20',
        "retry-after": "20",
    }


def test_when_several_refuse_the_longest_wait_counts() -> None:
    """Every refusing limit is listed with its own wait; the limit with the longest is the one in the other fields."""
    scene = Scene(rule("1/minute; 1/hour; 9/day", algorithm="fixed-window"))
    scene.hit()
    refused = scene.hit()
    assert refused["ratelimit"] == '"login";r=0;t=20, "login-2";r=0;t=800'
    assert refused["retry-after"] == refused["x-ratelimit-reset"] == "800"
    assert len(parsed(refused["ratelimit-policy"])) == 3


def test_when_all_allow_the_smallest_rest_is_shown() -> None:
    """An allowed response shows the limit that is nearest to its end."""
    scene = Scene(rule("9/minute", "wide"), rule("5/minute", "narrow"), rule("7/minute", "middle"))
    shown = scene.hit()
    assert shown["x-ratelimit-limit"] == "5"
    assert [name for name, _ in parsed(shown["ratelimit"])] == ["narrow"]
    assert [name for name, _ in parsed(shown["ratelimit-policy"])] == ["wide", "narrow", "middle"]


def test_a_cost_that_never_fits_has_no_time_to_wait() -> None:
    """Neither Retry-After nor ``t`` promises what cannot come, also when another limit has a time."""
    scene = Scene(rule("5/minute", "small"), rule("50/minute", "large", algorithm="fixed-window"))
    scene.hit(cost=5)
    refused = scene.hit(cost=46)
    assert "retry-after" not in refused
    assert refused["x-ratelimit-limit"] == "5"
    assert refused["ratelimit"] == '"small";r=0, "large";r=45;t=20'


def test_an_unknown_key_that_is_refused_has_no_time_to_wait() -> None:
    """Waiting does not help who is not signed in."""
    scene = Scene(rule("5/minute", key=["user"], when_unknown="refuse"))
    refused = scene.hit({})
    assert refused["ratelimit"] == '"login";r=0'
    assert "retry-after" not in refused


def test_shadow_rules_never_show() -> None:
    """A rule that only watches is in no header, whether it would have refused or not."""
    scene = Scene(rule("1/minute", "shadow", mode="shadow"), rule("2/minute", "real"))
    for _ in range(3):
        shown = scene.hit()
        assert shown["ratelimit-policy"] == '"real";q=2;w=60'
        assert "shadow" not in shown["ratelimit"]
    assert "retry-after" in shown
    assert Scene(rule("1/minute", mode="shadow")).hit() == {}


def test_a_request_that_no_rule_looked_at_gets_nothing() -> None:
    """No decision, no header."""
    assert Scene(rule("1/minute", key=["user"])).hit() == {}
    assert Scene().hit() == {}


@pytest.mark.parametrize(
    ("families", "names"),
    [
        (["x-ratelimit"], ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"]),
        (["ratelimit"], ["ratelimit-policy", "ratelimit"]),
        ([], []),
    ],
)
def test_the_families_are_a_choice(families: list[str], names: list[str]) -> None:
    """Only the families asked for are written; Retry-After always is; ``names`` says which fields are ours."""
    scene = Scene(rule("1/minute"), families=families)
    assert list(scene.hit()) == names
    assert list(scene.hit()) == [*names, "retry-after"]
    assert scene.writer.names == {name.encode() for name in names}


def test_the_reset_may_be_an_epoch() -> None:
    """With ``reset="epoch"`` X-RateLimit-Reset is a moment, rounded up; the draft's ``t`` stays a delta."""
    scene = Scene(rule("1/minute", algorithm="fixed-window"), reset="epoch")
    scene.clock.advance(0.25)
    allowed, refused = scene.hit(), scene.hit()
    assert allowed["x-ratelimit-reset"] == refused["x-ratelimit-reset"] == "1000020"
    assert allowed["ratelimit"] == refused["ratelimit"] == '"login";r=0;t=20'
    assert refused["retry-after"] == "20"


def test_times_are_rounded_up_and_at_least_one() -> None:
    """No time is 0: a client that takes it literally must not come back too early."""
    scene = Scene(rule("1/s", algorithm="fixed-window"))
    scene.hit()
    for moment in (0.0, 0.001, 0.5, 0.999999):
        scene.clock.set(1_000_000.0 + moment)
        refused = scene.hit()
        assert refused["retry-after"] == refused["x-ratelimit-reset"] == "1"
        assert refused["ratelimit"] == '"login";r=0;t=1'
    assert Scene(rule("1/s")).hit(cost=0)["x-ratelimit-reset"] == "1"


@pytest.mark.parametrize("limits", ["5/500ms", "5/1500ms"])
def test_a_window_that_is_no_whole_number_of_seconds_is_left_out(limits: str) -> None:
    """The draft has whole seconds only; a policy whose window has parts of one says its quota alone."""
    assert Scene(rule(limits)).hit()["ratelimit-policy"] == '"login";q=5'


def test_a_burst_is_the_limit_and_the_amount_is_the_quota() -> None:
    """``X-RateLimit-Limit`` is what can pass at once, the policy says what passes in its window."""
    shown = Scene(rule("100/minute burst 20", algorithm="token-bucket")).hit()
    assert shown["x-ratelimit-limit"] == "20"
    assert shown["ratelimit-policy"] == '"login";q=100;w=60'
    assert shown["x-ratelimit-remaining"] == "19"


@pytest.mark.parametrize("jitter_us", [0, 1, 999_999])
def test_a_jitter_below_a_second_changes_nothing(jitter_us: int) -> None:
    """Retry-After has whole seconds, and so has its jitter."""
    scene = Scene(rule("1/minute"), jitter_us=jitter_us)
    scene.hit()
    assert {scene.hit()["retry-after"] for _ in range(20)} == {"20"}


def test_jitter_only_adds() -> None:
    """With a jitter of 3 s clients are told 20 to 23 s, never less, while ``t`` stays what it is."""
    scene = Scene(rule("1/minute"), jitter_us=3_000_000)
    scene.hit()
    refused = [scene.hit() for _ in range(200)]
    assert {answer["retry-after"] for answer in refused} == {"20", "21", "22", "23"}
    assert {answer["ratelimit"] for answer in refused} == {'"login";r=0;t=20'}


def test_limits_by_client_show_their_own_numbers() -> None:
    """A client with limits of his own sees those, under the policy's name."""
    scene = Scene(rule("2/minute", per_key={"192.0.2.7": ["7/minute", "9/hour"]}))
    assert scene.hit()["ratelimit-policy"] == '"login";q=7;w=60, "login-2";q=9;w=3600'
    assert scene.hit({"ip": "192.0.2.8"})["ratelimit-policy"] == '"login";q=2;w=60'


def test_what_is_remembered_of_limits_is_bounded() -> None:
    """Limits come and go with their settings; what is encoded for them does not pile up."""
    clients = [str(i) for i in range(headers_module._KEPT + 10)]
    scene = Scene(rule("1/minute", key=["user"], per_key=dict.fromkeys(clients, "1/minute; 2/hour")))
    for client in clients:
        scene.hit({"user": client})
    assert 0 < len(scene.writer._fixed) <= headers_module._KEPT
    assert 0 < len(scene.writer._policies) <= headers_module._KEPT


# -- properties --------------------------------------------------------------------------------------------

names = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=30)
amounts = st.one_of(st.integers(1, 20), st.integers(1, 10**12))
periods = st.sampled_from(["500ms", "1s", "7s", "minute", "90m", "day", "366 days"])
algorithms = st.sampled_from(["fixed-window", "sliding-window-counter", "tiered-window", "token-bucket", "gcra"])


@given(names, amounts, periods, algorithms, st.integers(0, 10**12), st.integers(0, 3))
def test_every_header_is_a_structured_field(
    name: str, amount: int, period: str, algorithm: str, cost: int, advance: int
) -> None:
    """Whatever rule and cost, both fields parse, in canonical spelling, with whole numbers of the right kind."""
    scene = Scene(rule([f"{amount}/{period}", "10/hour"], name, algorithm=algorithm))
    for _ in range(2):
        found = scene.hit(cost=cost)
        scene.clock.advance(advance)
        for policy, parameters in parsed(found["ratelimit-policy"]):
            assert policy in (name, f"{name}-2")
            assert type(parameters["q"]) is int
            assert parameters.get("w", 1) >= 1
        for policy, parameters in parsed(found["ratelimit"]):
            assert policy in (name, f"{name}-2")
            assert 0 <= parameters["r"] <= 10**12
            assert parameters.get("t", 1) >= 1
        if "retry-after" in found:
            assert int(found["retry-after"]) == max(p["t"] for _, p in parsed(found["ratelimit"]))


@pytest.mark.parametrize("algorithm", ["token-bucket", "gcra", "leaky-bucket"])
def test_no_number_outgrows_the_structured_field(algorithm: str) -> None:
    """A bucket that takes a million years to drain says so in 15 digits, the most that a field can hold."""
    scene = Scene(rule("1/366 days burst 1000000000000", algorithm=algorithm))
    for cost in (10**12, 10**12):
        found = scene.hit(cost=cost)
        assert parsed(found["ratelimit"])[0][1]["t"] == 999_999_999_999_999


@given(st.integers(1, 5), st.sampled_from(["1s", "7s", "minute"]), algorithms, st.lists(st.floats(0, 9), max_size=12))
def test_a_retry_after_the_time_told_succeeds(amount: int, period: str, algorithm: str, pauses: list[float]) -> None:
    """Retry-After is never too early: who comes back then is let in, and a whole second earlier nobody need wait."""
    scene = Scene(rule(f"{amount}/{period}", algorithm=algorithm))
    for pause in pauses:
        scene.clock.advance(pause)
        verdict = scene.limiter.hit(FEATURES)
        if verdict.allowed:
            continue
        told = int(scene.of(verdict)["retry-after"])
        assert verdict.retry_after is not None
        assert told == max(1, math.ceil(verdict.retry_after))
        scene.clock.advance(told)
        assert scene.limiter.hit(FEATURES).allowed
