"""``Finding``: one result of the command, with the way to repair what is wrong."""

from typing import Any, Final, NamedTuple

OK: Final = "ok"
NOTE: Final = "note"
WARNING: Final = "warning"
PROBLEM: Final = "problem"


class Finding(NamedTuple):
    """A fact about one subject.

    Args:
        subject: The part that was examined, such as "round trip".
        text: The fact.
        level: "ok"; "note" for a fact to know; "warning" for a risk; "problem" for an effect on limits, now or soon.
        fix: The way to repair it.
        data: The measured values, for programs.
    """

    subject: str
    text: str
    level: str = OK
    fix: str = ""
    data: dict[str, Any] = {}
