"""The folders that tests read from."""

from pathlib import Path

SUPPORT = Path(__file__).parent
ROOT = SUPPORT.parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


def page_of(name: str) -> Path:
    """The page of docs/ with this name, in whatever folder it is."""
    (path,) = (each for each in PAGES if each.stem == name)
    return path
