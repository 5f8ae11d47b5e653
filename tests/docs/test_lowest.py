"""The lowest versions that are tested are those that pyproject.toml allows and that the documentation names."""

import re
import tomllib

from folders import ROOT, page_of
from lowest import lowest

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_everything_that_is_needed_has_a_lowest_version() -> None:
    """Of each requirement of the package, of its extras and of the frameworks the lowest version is installed."""
    project = PYPROJECT["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    lines = [*project["dependencies"], *extras, *PYPROJECT["dependency-groups"]["frameworks"]]
    needed = {re.split(r"[\[>=<]", line)[0] for line in lines} - {"ratelimit-mw"}
    assert lowest(PYPROJECT, []).keys() == needed


def test_a_version_may_be_given() -> None:
    """An argument overrides pyproject.toml: FastAPI is tested with two versions."""
    assert lowest(PYPROJECT, ["fastapi==0.137.0"])["fastapi"] == "0.137.0"


def test_the_documentation_names_the_lowest_versions() -> None:
    """The page about versions and support lists each lowest version."""
    page = page_of("support").read_text()
    listed = re.findall(r"\d+(?:\.\d+)+", page.partition("## Supported versions")[2].partition("\n## ")[0])
    for name, version in lowest(PYPROJECT, []).items():
        assert version in listed or f"{version}.0" in listed, name
