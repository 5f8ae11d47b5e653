"""The type hints of the public names: mypy accepts right uses, all examples of the docs, and rejects mistakes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from folders import PAGES

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
EXAMPLES = ROOT / "examples"
_BLOCK = re.compile(r"^```py(?:thon)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ACCEPTED = ("accepted.py", "handlers.py")
# The functions of most applications are untyped, and Django has no types. All calls of this package are checked.
_UNTYPED = "# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-subclassing-any\n"

pytestmark = pytest.mark.thorough  # mypy takes 20 s for all frameworks, and `make check` runs it on the package


def write_examples(folder: Path) -> None:
    """Write each Python block of README and docs to a file named by its page and line, and each example."""
    for page in (ROOT / "README.md", *PAGES):
        text = page.read_text()
        for block in _BLOCK.finditer(text):
            line = text.count("\n", 0, block.start()) + 1
            (folder / f"{page.stem.replace('-', '_')}_{line}.py").write_text(_UNTYPED + block[1])
    for path in (*EXAMPLES.glob("*.py"), *EXAMPLES.glob("migrating/*_after.py")):
        text = path.read_text().replace("from users import", "from example_users import")
        (folder / f"example_{path.name}").write_text(_UNTYPED + text)


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The errors of one run of mypy --strict over all files."""
    folder = tmp_path_factory.mktemp("typing")
    write_examples(folder)
    for name in (*_ACCEPTED, "rejected.py"):
        (folder / name).write_text((HERE / name).read_text())
    options = ["--strict", "--ignore-missing-imports", "--follow-imports=silent", "--disable-error-code=import-untyped"]
    command = [sys.executable, "-m", "mypy", "--config-file=", "--no-error-summary", *options]
    names = sorted(path.name for path in folder.glob("*.py"))
    environment = {"MYPYPATH": str(ROOT), "MYPY_CACHE_DIR": str(folder / "cache")}
    result = subprocess.run(
        [*command, *names], cwd=folder, capture_output=True, text=True, check=False, env=environment
    )
    assert not result.stderr
    return [line for line in result.stdout.splitlines() if ": error:" in line]


def test_right_uses_are_accepted(errors: list[str]) -> None:
    """Decorators, dependencies, rules, settings and middlewares with right options, and handlers, have no errors."""
    assert [error for error in errors if error.startswith(_ACCEPTED)] == []


def test_the_examples_are_accepted(errors: list[str]) -> None:
    """The blocks of README and docs, and the examples, which a reader copies, have no errors of types."""
    assert [error for error in errors if not error.startswith((*_ACCEPTED, "rejected.py"))] == []


def test_each_mistake_is_rejected(errors: list[str]) -> None:
    """Unknown options, wrong words and values of wrong types are errors, each in its line."""
    lines = (HERE / "rejected.py").read_text().splitlines()
    first = lines.index("# each line below is rejected") + 1
    wrong = {int(error.split(":")[1]) for error in errors if error.startswith("rejected.py")}
    accepted = [line for number, line in enumerate(lines[first:], first + 1) if number not in wrong]
    assert accepted == []
    assert min(wrong) > first
