"""The ban of a rule, worked by hand: its state, its decisions, and what each rejection adds."""

import pytest

from ratelimit_mw.decision import Ban, BanTerms, Charge

# The third rejection in 10 us bans for 100 us, then 200 us, 400 us, and 500 us at most.
BAN = Ban(BanTerms(3, 10, 100, 2, 500))


def test_the_third_rejection_starts_a_ban() -> None:
    """The window is open at its start: the rejection at 1 has left it at 11."""
    state = None
    for now, expected in ((1, (0, 0, 1)), (10, (0, 0, 1, 10)), (11, (0, 0, 10, 11)), (12, (112, 1))):
        state = BAN.charge(state, now, 1)
        assert state == expected


@pytest.mark.parametrize(
    ("now", "cost", "expected"),
    [
        (12, 1, (False, 0, 100, 600)),
        (111, 9, (False, 0, 1, 501)),
        (111, 0, (True, 0, 0, 501)),
        (112, 1, (True, 10**12, 0, 500)),
        (611, 1, (True, 10**12, 0, 1)),
        (612, 1, (True, 10**12, 0, 0)),
        (10**9, 1, (True, 10**12, 0, 0)),
    ],
)
def test_a_ban_rejects_every_cost_until_its_end(now: int, cost: int, expected: tuple[bool, int, int, int]) -> None:
    """It is remembered for ``longest`` after its end, because the next one is longer."""
    kept, decision = BAN.decide((112, 1), now, cost)
    assert kept == (112, 1)
    assert (decision.allowed, decision.remaining, decision.retry_us, decision.reset_us) == expected


@pytest.mark.parametrize(
    ("state", "now", "expected"),
    [
        ((112, 1), 50, (112, 1)),  # during a ban
        ((112, 1), 112, (112, 1, 112)),  # at its end
        ((112, 1, 120, 121), 122, (322, 2)),
        ((322, 2, 330, 331), 332, (732, 3)),
        ((732, 3, 740, 741), 742, (1242, 4)),  # 500, not 800
        ((1242, 4, 1250, 1251), 1252, (1752, 5)),
        ((112, 1, 610, 611), 612, (712, 1)),  # forgotten at 612
        ((112, 1, 600, 601), 599, (801, 2)),  # a clock that went back counts at the last time
    ],
)
def test_a_rejection_after_a_ban(state: tuple[int, ...], now: int, expected: tuple[int, ...]) -> None:
    assert BAN.charge(state, now, 1) == expected


def test_bans_that_do_not_grow_are_forgotten_at_their_end() -> None:
    flat = Ban(BanTerms(1, 10, 100, 1, 500))
    assert flat.decide(flat.charge(None, 5, 1), 5, 1)[1].reset_us == 100


@pytest.mark.parametrize(
    ("state", "at", "expected"),
    [
        ((0, 0, 5), 5, None),
        ((0, 0, 5, 7), 5, (0, 0, 7)),
        ((112, 1, 120), 120, (112, 1)),
        ((0, 0, 5), 6, (0, 0, 5)),
        ((112, 1), 12, (112, 1)),  # it has started the ban
        (None, 5, None),
    ],
)
def test_a_rejection_is_taken_back(state: tuple[int, ...] | None, at: int, expected: tuple[int, ...] | None) -> None:
    assert BAN.refund(state, 130, Charge(at, 1), 1) == expected


def test_a_ban_by_hand_keeps_the_number_of_bans() -> None:
    by_hand = Ban(BanTerms(0, 10, 30, 2, 500))
    assert by_hand.charge((112, 1), 50, 1) == (80, 1)
    assert by_hand.charge(None, 50, 1) == (80, 0)
    assert by_hand.load(by_hand.dump((80, 0))) == (80, 0)
