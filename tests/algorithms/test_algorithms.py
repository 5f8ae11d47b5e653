"""Properties of every algorithm, against its slow twin and against what its answers promise."""

import itertools
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import examples
from traces import BUCKETS, SPECS, Shape, result_of, shapes, starts, steps

from ratelimit_mw import ConfigError, Quota, Rule, algorithms
from ratelimit_mw.algorithms import Algorithm, build, names, register
from ratelimit_mw.algorithms.window_log import Series
from ratelimit_mw.decision import Charge

KINDS = pytest.mark.parametrize("kind", SPECS)
EXAMPLES = examples(40)


@pytest.mark.slow
@KINDS
@EXAMPLES
@given(data=st.data())
def test_every_step_agrees_with_the_definition(kind: str, data: st.DataObject) -> None:
    """On any traffic, every answer is the one that the slow twin finds by searching for what it means.

    After a change of amount or burst, it is that of the new limit about what was consumed under the old. As long as
    the clock does not go back, a decision holds the time that it was asked at, allowed or not.
    """
    shape = data.draw(shapes(kind))
    twin, state, now = shape.reference(), None, data.draw(starts(shape))
    latest = now
    for _ in range(data.draw(st.integers(1, 4))):
        algorithm = shape.build()
        for pause, cost in data.draw(steps(shape, most=12)):
            now += pause
            state, decision = algorithm.decide(state, now, cost)
            assert result_of(decision) == twin.hit(now, cost)[0]
            assert decision.at_us == now or now < latest
            latest = max(latest, now)
        shape = data.draw(changed(shape))
        twin.change(shape.amount, shape.burst)


def test_a_lifetime_is_no_longer_than_twice_what_is_needed() -> None:
    """It bounds how long a store keeps a key that nobody asks for: a used-up key needs at least half of it."""
    for kind, amount in itertools.product(SPECS, (1, 7, 1000)):
        algorithm = Shape(kind, amount, 60_000_000).build()
        needed = algorithm.decide(None, 0, amount)[1].reset_us
        assert needed <= algorithm.lifetime <= 2 * needed, (kind, amount)


def changed(shape: Shape) -> st.SearchStrategy[Shape]:
    amounts = st.integers(1, min(2 * shape.amount, 10_000))
    bursts = st.one_of(st.none(), st.integers(1, 20)) if shape.kind in BUCKETS else st.none()
    return st.builds(Shape, st.just(shape.kind), amounts, st.just(shape.period), bursts, st.just(shape.precision))


def test_a_full_log_goes_on_in_arrays_of_its_own() -> None:
    """Once in a thousand hits and not with each: what is out of sight is let go of, and no answer changes."""
    log = build("sliding-window-log", Quota.parse("1000/second"))
    state: Any = None
    columns = []
    for hit in range(20_000):
        state, decision = log.decide(state, hit * 1000, 1)
        if not columns or columns[-1] is not state.buckets:
            columns.append(state.buckets)
        assert decision.allowed, hit
        assert not log.decide(state, hit * 1000, 1)[1].allowed or hit < 999
    assert len(state.buckets) < 3 * 1000
    assert len(columns) < 30
    assert len(state.entries()) <= 1001


def test_running_totals_start_over_before_they_overflow() -> None:
    """Those of a log that is never empty grow without end. A store keeps them in 8 bytes."""
    log = build("sliding-window-log", Quota.parse("1000/second"))
    large = (1 << 62) + 1
    state = Series(array("q", (1, 2)), array("q", (large, large + 1)), 1, 2, large, 3, large + 4)
    kept = log.load(log.dump(state))
    assert (kept.base, kept.entries()) == (0, [(2, 1), (3, 3)])


def test_what_no_state_looks_like_is_not_read() -> None:
    """Bytes that ``dump`` never wrote, or that another version wrote, are a ValueError of every algorithm."""
    for kind in SPECS:
        numbers = () if kind in ("sliding-window-log", "sliding-window-log-count-rejected", "tiered-window") else (2, 6)
        short = (b":".join([b"1"] * fields) for fields in numbers)
        for data in (b"x", b"1:", b"1:two:3:4", bytes(8), bytes(16), *short):
            with pytest.raises(ValueError, match=r".*"):
                pytest.fail(f"{kind} read {Shape(kind, 5, 60_000_000).build().load(data)} from {data!r}")


@pytest.mark.parametrize("kind", ["fixed-window", "token-bucket-interval"])
def test_a_hit_of_a_clock_that_is_behind_can_be_refunded(kind: str) -> None:
    """The clocks of machines differ, so the first hit of a window may arrive second. Both can be refunded."""
    window = Shape(kind, 5, 60_000_000).build()
    first, _ = window.decide(None, 30, 2)
    state, decision = window.decide(first, 20, 2)
    assert window.refund(state, 30, Charge(decision.at_us, 2), 2) in ((60_000_000, 2, 20), first)
    charged = window.charge(first, 20, 2)
    assert window.refund(charged, 30, Charge(max(20, charged[0] - 60_000_000), 2), 2)[1] == 2
    assert window.refund(window.decide(None, 30, 2)[0], 30, Charge(29, 2), 2)[1] == 2


# -- building --------------------------------------------------------------------------------------------------


WRONG: list[tuple[object, str, str]] = [
    ("drip", "5/minute", "unknown algorithm 'drip'. Expected one of sliding-window, "),
    ("sliding", "5/minute", "Did you mean 'sliding-window' or 'sliding-window-log' or 'sliding-window-counter'?"),
    (5, "5/minute", 'expected a name such as "gcra" or a table such as {name = "token-bucket"}; got 5'),
    ({"refill": "interval"}, "5/minute", "expected a name"),
    ({"name": "gcra", "refill": "interval"}, "5/minute", "gcra has no option 'refill'. There is none"),
    (
        {"name": "token-bucket", "mode": "queue"},
        "5/minute",
        "token-bucket has no option 'mode'. Expected one of refill",
    ),
    ({"name": "token-bucket", "refill": "weekly"}, "5/minute", "refill: expected 'continuous' or 'interval'"),
    ({"name": "token-bucket", "refill": ["interval"]}, "5/minute", r"got ['interval']"),
    (
        {"name": "token-bucket", "refill": "interval", "x": 1},
        "5/minute",
        "token-bucket has no option 'x'. Expected one of refill",
    ),
    ({"name": "leaky-bucket", "mode": "fifo"}, "5/minute", "mode: expected 'meter' or 'queue'; got 'fifo'"),
    ({"name": "sliding-window-log", "count_rejected": "yes"}, "5/minute", "count_rejected: expected true or false"),
    ({"name": "tiered-window", "precision": "0s"}, "5/minute", "precision: expected a precision above 0; got '0s'"),
    ({"name": "tiered-window", "precision": "soon"}, "5/minute", "precision: expected a duration such as"),
    (
        {"name": "tiered-window", "precision": "7s"},
        "5/minute",
        "expected a precision that divides the period of '5/minute'; got 7s",
    ),
    ("tiered-window", "5/0.000007s", "expected a precision that divides the period 0.000007s"),
    ("sliding-window-log", "10001/day", "its amount is at most 10,000; got 10001. Use tiered-window"),
    ("fixed-window", "5/minute burst 3", "the algorithm has no burst; got '5/minute burst 3'"),
    ("sliding-window-counter", "5/minute burst 3", "the algorithm has no burst"),
    ("sliding-window-log", "5/minute burst 3", "or use token-bucket, leaky-bucket or gcra"),
]


def test_what_cannot_be_built_says_why() -> None:
    """An unknown name, option or value, a burst on a window, a precision or amount that cannot be: an error at once."""
    for spec, quota, said in WRONG:
        with pytest.raises(ConfigError) as error:
            pytest.fail(f"built {build(spec, Quota.parse(quota))}")
        assert said in str(error.value)


def test_states_that_do_not_fit_each_other_have_different_keys() -> None:
    """Name and variant tell every two algorithms apart; an option with the value it has anyway changes nothing."""
    quota = Quota.parse("5/minute")
    identities = {(built.name, built.variant) for built in (build(spec, quota) for spec in SPECS.values())}
    assert len(identities) == len(SPECS)
    for name, option in {
        "token-bucket": {"refill": "continuous"},
        "leaky-bucket": {"mode": "meter"},
        "sliding-window-log": {"count_rejected": False},
    }.items():
        plain, full = build(name, quota), build({"name": name, **option}, quota)
        assert (plain.name, plain.variant) == (full.name, full.variant)


def test_sliding_window_is_the_log_or_the_counter() -> None:
    """The amount decides. Keys and states are those of the algorithm that it becomes."""
    for spec in ("sliding-window", {"name": "sliding-window"}, algorithms.DEFAULT):
        for amount, name in ((1, "log"), (32, "log"), (33, "counter"), (10**12, "counter")):
            built = build(spec, Quota.parse(f"{amount}/hour"))
            assert (built.name, built.variant) == (f"sliding-window-{name}", ""), (spec, amount)


def test_an_algorithm_of_your_own_joins_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """After ``register`` a rule may name it; a name that is taken is an error."""
    monkeypatch.setattr(algorithms, "_BUILDERS", dict(algorithms._BUILDERS))

    @register
    class Mine(algorithms.FixedWindow):
        name = "mine"

    assert isinstance(build("mine", Quota.parse("5/minute")), Mine)
    assert "mine" in names()
    with pytest.raises(ConfigError, match="the algorithm name 'mine' is taken"):
        register(Mine)
    with pytest.raises(ConfigError, match=r"^the algorithm Gcra needs a name\. Write name"):
        register(type("Gcra", (Algorithm,), {}))


def test_what_would_break_keys_is_rejected_with_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name or variant that could not be told from the rest of a key is an error that names the algorithm."""
    for what, part in itertools.product(("name", "variant"), ("a|b", "a%7Cb", None)):
        own = type("Mine", (algorithms.FixedWindow,), {"name": "mine", what: part})
        monkeypatch.setattr(algorithms, "_BUILDERS", {"mine": own})
        with pytest.raises(ConfigError) as error:
            Rule(limits="5/minute", algorithm="mine")
        said = f"expected the {what} of algorithm {own.name!r} as text without | % {{ }}; got {part!r}"
        assert said in str(error.value)


def test_the_names_are_those_of_settings_files() -> None:
    """The eight names of the table, and nothing else."""
    own = {name for name in names() if algorithms._BUILDERS[name].__module__.startswith("ratelimit_mw.")}
    assert own == {"sliding-window"} | {spec if isinstance(spec, str) else spec["name"] for spec in SPECS.values()}
    assert issubclass(algorithms.Gcra, Algorithm)


@pytest.mark.parametrize("name", ["fixed-window", "sliding-window-counter"])
def test_the_clients_of_a_window_share_its_number(name: str) -> None:
    """A number of its own would take 32 bytes for each client, even after the next window has begun."""
    algorithm, minute, start = build(name, Quota.parse("5/minute")), 60_000_000, 1_767_268_820_500_000
    states: list[Any] = [algorithm.decide(None, start + i, 1)[0] for i in range(2)]
    assert states[0][0] is states[1][0]
    later = [algorithm.decide(state, start + minute + i, 1)[0] for i, state in enumerate(states)]
    assert later[0][0] is later[1][0]
    assert later[0][0] == states[0][0] + minute
