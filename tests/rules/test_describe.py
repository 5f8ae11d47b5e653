"""The overview of a limiter's rules, as the commands print it."""

from ratelimit_mw import Limiter
from ratelimit_mw.rules.describe import Overview


def test_allow_and_deny_lists_are_shown_with_their_precedence() -> None:
    """Both lists have a line before the lines on precedence."""
    lists = {"allow": {"ip": ["10.0.0.0/8"]}, "deny": {"user": ["mallory"]}}
    limiter = Limiter.from_settings({"lists": lists})
    allow, deny, *_ = Overview(limiter.rules, {}, []).notes()
    assert allow.startswith("allow list: ip;")
    assert deny.startswith("deny list: user;")


def test_empty_lists_are_not_shown() -> None:
    """Without lists there are only the lines on precedence."""
    lines = list(Overview(Limiter([]).rules, {}, []).notes())
    assert not [line for line in lines if line.startswith(("allow list", "deny list"))]
