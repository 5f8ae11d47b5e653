"""Find the calls of another package inside of views, which no decorator shows. Reads the source, and runs nothing."""

import ast
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

_CHECK: Final = 'name a rule with match = { view = "" }, and write check(%s"rule") in its place'
_RESET: Final = "reset(rule, key) of the limiter forgets one key"
_NUMBERS: Final = "the decisions of the verdict have limit, remaining and reset_after"
CALLS: Final[Mapping[str, Mapping[str, str]]] = {
    "flask-limiter": {
        "limiter.current_limit": _NUMBERS,
        "limiter.current_limits": _NUMBERS,
        "limiter.check": _CHECK % "",
        "with limiter.limit": _CHECK % "",
        "limiter.reset": _RESET,
    },
    "slowapi": {"limiter.reset": _RESET},
    "django-ratelimit": {
        "is_ratelimited": _CHECK % "request, ",
        "get_usage": 'write usage(request, "rule")',
        "request.limited": "write any(not decision.allowed for decision in request.ratelimit.decisions)",
    },
}
"""The replacement of each call, by package."""


def find_calls(package: str) -> Iterator[str]:
    """Yield the place and the replacement of each call in the imported modules below the current folder."""
    replacements = CALLS[package]
    for file, tree in _modules():
        for line, name in _names_in(tree):
            if name in replacements:
                yield f"{file}:{line}: {name}: {replacements[name]}"


def find_arguments(function: str) -> Iterator[dict[str, Any]]:
    """Yield the arguments by name of each call of a function that are constants, and ``where`` the call is."""
    for file, tree in _modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function:
                given = {word.arg: word.value.value for word in node.keywords if isinstance(word.value, ast.Constant)}
                yield {**{name: value for name, value in given.items() if name}, "where": f"{file}:{node.lineno}"}


def _modules() -> Iterator[tuple[str, ast.AST]]:
    """Yield the path and the source of each imported module below the current folder."""
    for module in list(sys.modules.values()):
        file = Path(getattr(module, "__file__", None) or "/")
        is_own = file.is_relative_to(Path.cwd()) and "site-packages" not in file.parts
        if is_own and file.suffix == ".py" and file.is_file():
            yield os.path.relpath(file), ast.parse(file.read_bytes())


def _names_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.With | ast.AsyncWith):
            calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
            yield from ((node.lineno, f"with {_dotted(call.func)}") for call in calls)
        elif isinstance(node, ast.Attribute):
            yield node.lineno, _dotted(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.lineno, node.func.id
            if node.func.id == "getattr" and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
                yield node.lineno, f"{_dotted(node.args[0])}.{node.args[1].value!s}"


def _dotted(node: ast.AST) -> str:
    """Return "limiter.limit" for an attribute of any variable whose name contains limiter."""
    if isinstance(node, ast.Name):
        return "limiter" if "limiter" in node.id.lower() else node.id
    return f"{_dotted(node.value).rpartition('.')[2]}.{node.attr}" if isinstance(node, ast.Attribute) else ""
