"""Print the lowest versions that pyproject.toml allows, for pip: `python tests/support/lowest.py [NAME==VERSION ...]`.

This covers the package, its extras and the frameworks. Libraries for tests have no lowest version. An argument
overrides a version.
"""

import re
import sys
import tomllib
from pathlib import Path

_REQUIREMENT = re.compile(r"([\w-]+)(?:\[[\w,]+\])?>=([\w.]+)")


def lowest(pyproject: dict, given: list[str]) -> dict[str, str]:
    """Return the versions by name."""
    project = pyproject["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    lines = [*project["dependencies"], *extras, *pyproject["dependency-groups"]["frameworks"]]
    found = dict(match.groups() for line in lines if (match := _REQUIREMENT.fullmatch(line)))
    return found | dict(line.split("==") for line in given)


if __name__ == "__main__":
    settings = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    for name, version in lowest(settings, sys.argv[1:]).items():
        print(f"{name}=={version}")
