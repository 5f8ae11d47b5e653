"""The number of Hypothesis examples in one test, which depends on the profile (tests/conftest.py)."""

from hypothesis import settings

MOST = {"quick": 10, "usual": 30, "full": 1_000_000}


def examples(full: int) -> settings:
    """Try this many examples in the profile `full`, and at most 30 or 10 in the profiles `usual` and `quick`."""
    return settings(max_examples=min(full, MOST[settings.get_current_profile_name()]))
