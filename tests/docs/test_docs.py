"""The documentation is right: blocks run, generated parts are current, links have targets."""

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from folders import DOCS, PAGES, ROOT, page_of
from tables import each

from ratelimit_mw import ConfigError, Rule, algorithms, load_settings
from ratelimit_mw.cli.group import ratelimit_mw
from ratelimit_mw.errors import PAGES as PAGES_OF_ERRORS

ALL_PAGES = [*sorted(ROOT.glob("*.md")), *PAGES]
_LINK = re.compile(r"\]\(\s*([^)\s]+)\s*\)")
_PICTURE = re.compile(r"""[("](?:\.\./)*(images/[^)"\s]+)""")
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def script(name: str) -> ModuleType:
    """A script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


run_blocks = script("run_blocks")


def played(*pages: Path) -> subprocess.CompletedProcess[str]:
    """Pages played by the script, whose exit code is the number of pages that failed."""
    command = [sys.executable, "-W", "error", str(DOCS / "run_blocks.py"), *map(str, pages)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


FORECASTS = [path for path in ALL_PAGES if path.name == "forecasts.md"]
OTHERS = [path for path in ALL_PAGES if path not in FORECASTS]


@pytest.mark.slow
@pytest.mark.parametrize("pages", [pytest.param(FORECASTS, marks=pytest.mark.thorough), OTHERS[::2], OTHERS[1::2]])
def test_every_block_runs_as_printed(pages: list[Path]) -> None:
    """A reader who types in a page from top to bottom gets what the page shows.

    Each program of the first page lets five requests pass and rejects the sixth.
    """
    result = played(*pages)
    assert result.returncode == 0, result.stdout + result.stderr
    readings = [reading for page in pages for reading in run_blocks.readings(page.read_text())]
    assert len(result.stdout.splitlines()) == sum(len(run_blocks.blocks_of(reading)) for reading in readings)
    if page_of("index") in pages:
        statuses = re.findall(r"^index\.md:\d+ python: app (.*)", result.stdout, re.MULTILINE)
        assert len(statuses) == 6
        assert {line.replace("404", "200") for line in statuses} == {"200 200 200 200 200 429"}


def test_every_first_program_is_ten_lines_at_most() -> None:
    """The programs of the first page, and the first programs of the framework pages, have ten lines at most."""
    blocks = run_blocks.blocks_of(page_of("index").read_text())
    programs = [block.text.splitlines()[1:] for block in blocks if block.language == "python"]
    for page in ("flask", "django"):
        first = next(block for block in run_blocks.blocks_of(page_of(page).read_text()) if block.language == "python")
        programs.append(first.text.splitlines()[1:])
    assert max(sum(bool(line.strip()) for line in program) for program in programs) <= 10


WRONG = {
    "another output": "```python\nprint(1)\n```\n\n```text\n2\n```\n",
    "an output cut short": "```python\nprint('a')\nprint('b')\n```\n\n```text\na\n```\n",
    "no output to compare with": "```text\na\n```\n",
    "an error": "```python\n1 / 0\n```\n",
    "an application without a limit": "```python\ndef app(_, start):\n    start('200 OK', [])\n    return ()\n```",
    "settings that are rejected": '```toml\n[[rules]]\nlimits = "5/minit"\n```\n',
    "settings that are fine and called wrong": "```toml\n# wrong.toml\nheaders = []\n```\n",
    "a command that is not known": "```sh\nrm -r /nowhere\n```\n",
    "a command that fails": "```sh\nratelimit-mw check absent.toml\n```\n",
    "an extra that is not there": '```sh\npip install "ratelimit-mw[cheese]"\n```\n',
    "a target that is not there": "```sh\nmake cheese\n```\n",
}


@pytest.mark.slow
def test_a_block_that_does_not_do_what_it_says_is_found(tmp_path: Path) -> None:
    """The runner of blocks fails at each wrong page, so its silence means something."""
    pages = [tmp_path / f"{name}.md" for name in WRONG]
    for page, text in zip(pages, WRONG.values(), strict=True):
        page.write_text(text)
    assert played(*pages).returncode == len(WRONG)


def test_generated_parts_are_up_to_date() -> None:
    """Tables of settings and the help of commands in docs/ are what `make docs` would write now."""
    result = subprocess.run(
        [sys.executable, str(DOCS / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


@each("page", ALL_PAGES)
def test_every_link_leads_somewhere(page: Path) -> None:
    """Links to files and headings of the project are not broken."""
    for link in _LINK.findall(_FENCED.sub("", page.read_text())):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in _anchors(target), link


def _anchors(page: Path) -> set[str]:
    """The names under which a page's headings are linked to."""
    headings = re.findall(r"^#+ (.*)$", _FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_errors_lead_to_a_page() -> None:
    """The page about a setting exists, on the site that the package names."""
    for page in PAGES_OF_ERRORS.values():
        name, _, anchor = page.partition("#")
        assert not anchor or anchor in _anchors(DOCS / f"{name}.md"), page
        assert (DOCS / f"{name}.md").exists(), page
    site = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]["urls"]["Documentation"]
    with pytest.raises(ConfigError) as caught:
        Rule(limits="5/minute", match={"path": "login"})
    assert caught.value.__notes__ == [f"See {site}reference/settings.html#match"]
    for wrong in ({"enabeld": True}, {"enabled": 3}, "missing.toml"):
        with pytest.raises(ConfigError) as caught:
            load_settings(wrong)
        assert caught.value.__notes__ == [f"See {site}reference/settings.html"], wrong


def test_the_map_lists_every_page() -> None:
    """No page of docs/ is missing from its map, or from the navigation of the site."""
    text = page_of("index").read_text()
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in PAGES} - {"index"}
    assert {f"{page}.md" for page in pages} <= set(_LINK.findall(text))
    navigation = re.findall(r"^```{toctree}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert pages == {line for part in navigation for line in part.splitlines() if line and not line.startswith(":")}


def test_the_python_api_has_every_public_module() -> None:
    """The page that is made of docstrings names the modules of the map, and no others."""
    documented = re.findall(r"^\.\. automodule:: (\S+)$", page_of("api").read_text(), re.MULTILINE)
    assert documented == re.findall(r"^\| `(ratelimit_mw[\w.]*)` \|", page_of("index").read_text(), re.MULTILINE)


def test_every_picture_is_shown() -> None:
    """The page of algorithms shows each picture that is drawn, and every picture is on a page."""
    drawing = script("draw_algorithms")
    drawn = {f"images/{picture.file}.svg" for picture in drawing.PICTURES}
    drawn |= {"images/overview.svg", "images/counter-bound.svg"}
    of_pages = {page.name: set(_PICTURE.findall(page.read_text())) for page in PAGES}
    shown = set().union(*of_pages.values())
    assert drawn <= of_pages["algorithms.md"]
    assert shown == {f"images/{path.name}" for path in (DOCS / "images").iterdir()}
    assert [page for page in PAGES if "<img" in page.read_text()] == []  # Sphinx would not copy the picture


def test_the_picture_of_a_request_names_files_of_the_package() -> None:
    """It is what its script draws, which raises an error for a file that is gone."""
    drawing = script("draw_request")
    assert drawing.IMAGE.read_text() == drawing.picture()
    with pytest.raises(FileNotFoundError, match=r"'store' names stores/gone\.py"):
        drawing.box(drawing.STEPS[5]._replace(files=("stores/gone.py", "stores/base.py")))


def test_the_words_on_the_pictures_are_right() -> None:
    """The page of algorithms describes the traffic of its pictures correctly."""
    drawing = script("draw_algorithms")
    text = page_of("algorithms").read_text()
    assert f"the same {len(drawing.TRAFFIC)} requests" in text
    late = drawing.LATE_BURST
    assert late[-1] - late[0] < drawing.PERIOD
    for algorithm, passed in (("sliding-window-counter", 20), ("sliding-window-log", 10)):
        assert sum(outcome.allowed for outcome in drawing.Run(algorithm, late).outcomes) == passed


def test_every_algorithm_has_its_section() -> None:
    """An algorithm that a rule may name is described."""
    headings = " ".join(re.findall(r"^## (.*)$", page_of("algorithms").read_text(), re.MULTILINE))
    own = [name for name in algorithms.names() if algorithms._BUILDERS[name].__module__.startswith("ratelimit_mw.")]
    assert all(name in headings for name in own)


def test_every_command_has_its_section() -> None:
    """A command that can be run is described, beyond its own help."""
    text = page_of("commands").read_text().partition("## All options")[0]
    assert set(re.findall(r"ratelimit-mw (\w+)", text)) >= set(ratelimit_mw.commands)


def _logged_texts() -> set[str]:
    """The longest fixed part of each message that the package logs, from the source."""
    texts = set()
    for path in (ROOT / "ratelimit_mw").rglob("*.py"):
        tree = ast.parse(path.read_text())
        nodes = list(ast.walk(tree))
        named = {
            target.id: node.value.value
            for node in nodes
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant)
            for target in ([node.target] if isinstance(node, ast.AnnAssign) else node.targets)
            if isinstance(target, ast.Name)
        }
        for node in nodes:
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if isinstance(node, ast.Call) and (called.startswith("_log.") or called == "warn"):
                message = node.args[0]
                if isinstance(message, ast.JoinedStr):
                    text = "%s".join(str(part.value) for part in message.values if isinstance(part, ast.Constant))
                elif isinstance(message, ast.Constant):
                    text = message.value
                elif (name := ast.unparse(message)) in named or called != "warn":
                    text = named[name]
                else:
                    continue  # a text that another function made
                texts.add(max(re.split(r"%[-.\d]*\w", text), key=len).strip())
    return texts


def test_every_log_message_has_its_line() -> None:
    """An operator finds each message that the package logs on the page of log messages, and can link to it."""
    page = page_of("log-messages").read_text()
    texts = _logged_texts()
    assert len(texts) > 30
    assert not [text for text in texts if text.split(". ")[0].strip(" .;:,()") not in page]
    rows = re.findall(r"^\| (?!Message|---)(.*)", page, re.MULTILINE)
    anchors = {anchor[1] for row in rows if (anchor := re.match(r'<a id="([\w-]+)"></a>', row))}
    assert len(anchors) == len(rows) > 30
    source = "".join(path.read_text() for path in (ROOT / "ratelimit_mw").rglob("*.py"))
    named = re.findall(r'\bwarn\((?:[^()]|\([^()]*\))*"([\w-]+)",?\s*\)|log-messages#([\w-]+)"', source)
    assert len(named) > 10
    assert {first or second for first, second in named} <= anchors
