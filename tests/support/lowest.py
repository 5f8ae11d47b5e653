"""Prints the lowest versions that pyproject.toml allows, for pip: `python tests/lowest.py [NAME==VERSION ...]`.

Those of the package, of its extras and of the frameworks; what only tests need may be as new as it likes. A version
given as an argument goes first.
"""

import re
import sys
import tomllib
from pathlib import Path

_REQUIREMENT = re.compile(r"([\w-]+)(?:\[[\w,]+\])?>=([\w.]+)")


def lowest(pyproject: dict, given: list[str]) -> dict[str, str]:
    """The versions by name."""
    project = pyproject["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    lines = [*project["dependencies"], *extras, *pyproject["dependency-groups"]["frameworks"]]
    found = dict(match.groups() for line in lines if (match := _REQUIREMENT.fullmatch(line)))
    return found | dict(line.split("==") for line in given)


if __name__ == "__main__":
    settings = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    for name, version in lowest(settings, sys.argv[1:]).items():
        print(f"{name}=={version}")
