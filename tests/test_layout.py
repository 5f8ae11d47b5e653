"""The tree and the public names of the package, and the documentation of both."""

import ast
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import django_calls  # noqa: F401 - importing ratelimit_mw.django needs settings
import grimp
import pytest
from folders import ROOT, page_of
from tables import each

import ratelimit_mw
from ratelimit_mw.limiter.clients import Clients

PACKAGE = ROOT / "ratelimit_mw"
ROOT_ENTRIES = 27

WEB = ("http", "asgi", "wsgi", "starlette", "fastapi", "flask", "django", "operations", "dashboard", "cli")
PARTS = ("quota", "decision", "algorithms", "stores", "keys", "rules", "settings", "limiter", "metrics", *WEB)
ACYCLIC = tuple(f"ratelimit_mw.{part}" for part in PARTS)

# One name in every framework: users import it from the module of theirs.
IN_SEVERAL_FILES = {"RateLimitMiddleware"}


def files_by_class() -> dict[str, set[Path]]:
    """The files of the package that define a class of each name."""
    files: dict[str, set[Path]] = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                files[node.name].add(path.relative_to(PACKAGE))
    return files


def test_no_modules_import_each_other() -> None:
    """A part that is free of circles can be read from the bottom up. Imports for type checkers count, too."""
    graph = grimp.build_graph("ratelimit_mw", exclude_type_checking_imports=False, cache_dir=None)
    modules = {each for each in graph.modules if each.startswith(ACYCLIC)}
    imported = {each: graph.find_modules_directly_imported_by(each) & modules for each in modules}
    try:
        tuple(TopologicalSorter(imported).static_order())
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


@pytest.mark.slow
def test_a_class_name_is_in_one_file() -> None:
    """One name means one thing: no two files define a class of the same name."""
    repeated = {name: sorted(map(str, files)) for name, files in files_by_class().items() if len(files) > 1}
    assert repeated.keys() == IN_SEVERAL_FILES, f"rename one of the classes: {repeated}"


@pytest.mark.slow
def test_the_files_of_the_package_are_found_in_a_zip(tmp_path: Path) -> None:
    """An application may be one archive. Pages, templates, Lua and SQL are read from it, too."""
    archive = shutil.make_archive(str(tmp_path / "application"), "zip", ROOT, "ratelimit_mw")
    code = """
        import ratelimit_mw.dashboard.page as page
        from ratelimit_mw.cli.init import starter
        from ratelimit_mw.stores import PostgresStore
        from ratelimit_mw.stores.redis.script import build_script

        print(page.__file__, "[[rules]]" in starter(), all(map(page.read_asset, page.ASSETS)))
        print(b"a title" in page.message_page("a title"), len(build_script(frozenset())) > 0)
        print(PostgresStore("postgresql://db/shop"))
    """
    environment = {**os.environ, "PYTHONPATH": archive}
    command = [sys.executable, "-c", inspect.cleandoc(code)]
    printed = subprocess.check_output(command, env=environment, cwd=tmp_path, text=True)
    page = f"{archive}/ratelimit_mw/dashboard/page.py"
    assert printed == f"{page} True True\nTrue True\n<PostgresStore postgresql://db/shop>\n"


def test_the_package_is_imported_where_bytes_and_text_may_not_meet() -> None:
    """With the option -bb, Python raises BytesWarning for a comparison of both."""
    subprocess.run([sys.executable, "-bb", "-c", "import ratelimit_mw.asgi, ratelimit_mw.wsgi"], check=True)


def test_the_root_has_few_entries() -> None:
    """The root shows the path of a request: a new module goes into the folder of its step."""
    entries = {path.name for path in PACKAGE.iterdir()} - {"py.typed", "__pycache__"}
    assert len(entries) <= ROOT_ENTRIES, sorted(entries)


def test_a_test_file_has_its_own_name() -> None:
    """Folders of tests are no packages, so pytest imports two files of one name as one."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_the_tests_that_the_makefile_names_exist() -> None:
    """The list of `make test-oldest` names no file that is gone."""
    lists = re.findall(r"\(addprefix tests/,([^)]+)\)", (ROOT / "Makefile").read_text())
    named = [path for each in lists for path in each.replace("\\", " ").split()]
    assert named
    assert [path for path in named if not (ROOT / "tests" / path).exists()] == []


def documented() -> dict[str, list[str]]:
    """The import paths and names that docs/index.md lists, by import path."""
    section = page_of("index").read_text().partition("## Public names")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(ratelimit_mw[\w.]*)` \| (.*) \|$", section, re.MULTILINE)
    return {path: re.findall(r"`(\w+)`", names) for path, names in rows}


def public_objects() -> list[Any]:
    """The public classes and functions, and the class of `limiter.clients`."""
    modules = {path: importlib.import_module(path) for path in documented()}
    values = [getattr(modules[path], name) for path, names in documented().items() for name in names]
    return [Clients, *(value for value in values if callable(value))]


IMPORT_PATHS = [
    "ratelimit_mw",
    *("ratelimit_mw." + name for name in ("asgi", "wsgi", "starlette", "fastapi", "flask", "django")),
    "ratelimit_mw.django.drf",
    *("ratelimit_mw.metrics." + name for name in ("prometheus", "opentelemetry")),
    *("ratelimit_mw." + name for name in ("dashboard", "stores", "traffic", "algorithms", "testing")),
]


def test_the_documentation_lists_the_public_import_paths() -> None:
    """These paths are promised, and no other is."""
    assert list(documented()) == IMPORT_PATHS


@each("path", IMPORT_PATHS)
def test_the_documentation_lists_the_public_names(path: str) -> None:
    """The names of `__all__` are those of the table in docs/index.md."""
    exported = sorted(importlib.import_module(path).__all__)
    row = ", ".join(f"`{name}`" for name in exported)
    assert documented()[path] == exported, f"write into docs/index.md: | `{path}` | {row} |"


@each("path", IMPORT_PATHS)
def test_the_reference_shows_the_public_names(path: str) -> None:
    """Sphinx finds the classes and functions that a module has. The page lists what is imported later, and all else."""
    module, page = importlib.import_module(path), page_of("api").read_text()
    assert f".. automodule:: {path}\n" in page
    found = {name for name, value in vars(module).items() if inspect.isclass(value) or inspect.isfunction(value)}
    listed = re.findall(rf"^\.\. (?!automodule)\w+:: {re.escape(path)}\.(\w+)$", page, re.MULTILINE)
    assert sorted(set(module.__all__) - found) == sorted(listed)


def test_all_errors_are_exported() -> None:
    """An application can catch every error of the package by a name from its root."""
    errors = {name for name, value in vars(ratelimit_mw.errors).items() if inspect.isclass(value)}
    own = {name for name in errors if getattr(ratelimit_mw.errors, name).__module__ == "ratelimit_mw.errors"}
    assert own <= set(ratelimit_mw.__all__), f"export from ratelimit_mw: {sorted(own - set(ratelimit_mw.__all__))}"


# Internal methods, and those that pytest or Django calls.
_HOOKS = ("_", "pytest_", "test_", "process_")


def documented_callables(value: Any) -> list[tuple[str, Any, str]]:
    """The name, the object and the docstring of a public object, and of the methods of a class."""
    entries = [(value.__name__, value, inspect.getdoc(value) or "")]
    for base in reversed(value.__mro__) if inspect.isclass(value) else ():
        if base.__module__.startswith("ratelimit_mw.") and not base.__name__.startswith("_"):
            for name, member in vars(base).items():
                function = getattr(member, "__func__", member)
                if not name.startswith(_HOOKS) and (inspect.isfunction(function) or isinstance(function, property)):
                    entries.append((f"{base.__name__}.{name}", function, inspect.getdoc(getattr(base, name)) or ""))
    return entries


def missing_sections(value: Any, text: str) -> set[str]:
    """The parameters that only the signature or only the docstring has, and the sections that the docstring needs."""
    if not text:
        return {"docstring"}
    if isinstance(value, property) or text.startswith("Async form of ``"):
        return set()
    try:
        signature = inspect.signature(value)
    except ValueError:  # an exception without its own parameters
        return set()
    section = re.search(r"^Args:\n(.*?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    described = set(re.findall(r"^ {4}\*{0,2}(\w+):", section[1] if section else "", re.MULTILINE))
    parameters = set(signature.parameters) - {"self", "cls"}
    options = {name for name, each in signature.parameters.items() if each.kind is each.VAR_KEYWORD}
    missing = parameters - options - described | (set() if options else described - parameters)
    returns = not inspect.isclass(value) and signature.return_annotation not in (None, "None", signature.empty)
    return missing | {"Returns:"} if returns and not re.search(r"^Returns?\b", text, re.MULTILINE) else missing


def test_every_public_name_has_a_docstring() -> None:
    """Editors and the reference show it: for classes, functions, methods and properties, with each parameter."""
    entries = [entry for value in public_objects() for entry in documented_callables(value)]
    missing = {name: missing_sections(value, text) for name, value, text in entries}
    assert not any(missing.values()), {name: sorted(sections) for name, sections in missing.items() if sections}
