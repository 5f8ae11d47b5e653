"""A table in one test reports each wrong case, and gives the test its other fixtures."""

from pathlib import Path

import pytest
from tables import each


@each(("number", "double"), [(1, 2), (2, 5), (3, 7)])
@each("text", ["a"])
def wrong(number: int, double: int, text: str, tmp_path: Path) -> None:
    assert text == "a"
    assert 2 * number == double


def test_a_failure_names_all_wrong_cases(tmp_path: Path) -> None:
    with pytest.raises(BaseExceptionGroup, match="2 of 3 cases") as raised:
        wrong(tmp_path=tmp_path)
    notes = [note for error in raised.value.exceptions for note in error.__notes__]
    assert notes == ["in the case {'number': 2, 'double': 5}", "in the case {'number': 3, 'double': 7}"]
