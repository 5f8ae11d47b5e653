"""A fork without a second process."""

from ratelimit_mw import forksafe


def become_child() -> None:
    """Run the callbacks of a child in this process, as its first call does after a fork without Python's hooks."""
    forksafe.process = -1
    forksafe.check_process()
