"""The number of Hypothesis examples in one test, which depends on the profile (tests/conftest.py)."""

from hypothesis import settings

QUICK = 10


def examples(full: int) -> settings:
    """Try this many examples in the profile `full`, and at most 10 in the profile `quick`."""
    quick = settings.get_current_profile_name() == "quick"
    return settings(max_examples=min(full, QUICK) if quick else full)
