"""Find the calls of another package inside views, which no decorator shows. Reads the source, and runs nothing."""

import ast
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

from .names import own_modules

_COMPUTED: Final = object()

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


_ARGUMENTS: Final = ("request", "group", "fn", "key", "rate", "method", "increment")
"""The parameters of ``is_ratelimited``, in their order."""


def find_calls(package: str) -> Iterator[str]:
    """Yield the place and the replacement of each call in the imported modules below the current folder."""
    replacements = CALLS[package]
    for file, tree, names in _sources(package):
        for line, name in _names_in(tree, names):
            if name in replacements:
                yield f"{file}:{line}: {name}: {replacements[name]}"


def find_checks() -> Iterator[dict[str, Any]]:
    """Yield the arguments of each call of ``is_ratelimited``, ``where`` it is, and which arguments are ``computed``."""
    for file, tree, names in _sources("django-ratelimit"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _dotted(node.func, names).rpartition(".")[2] == "is_ratelimited":
                words = {word.arg: word.value for word in node.keywords if word.arg}
                given = {**dict(zip(_ARGUMENTS, node.args, strict=False)), **words}
                values = {name: _constant(value) for name, value in given.items() if name != "request"}
                computed = [name for name, value in values.items() if value is _COMPUTED]
                yield {**values, "where": f"{file}:{node.lineno}", "computed": computed}


def _constant(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return _COMPUTED


def _sources(package: str) -> Iterator[tuple[str, ast.AST, dict[str, str]]]:
    """Yield the path, the source and the names of the parts of a package in each module of the application."""
    package = package.replace("-", "_")
    for file, module in own_modules():
        tree = ast.parse(file.read_bytes())
        imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
        parts = (alias for node in imports if (node.module or "").startswith(package) for alias in node.names)
        limiters = {name for name, value in vars(module).items() if _is_limiter(value, package)}
        names = {alias.asname or alias.name: alias.name for alias in parts}
        yield os.path.relpath(file), tree, {**names, **dict.fromkeys(limiters, "limiter")}


def _is_limiter(value: Any, package: str) -> bool:
    return type(value).__name__ == "Limiter" and type(value).__module__.startswith(package)


def _names_in(tree: ast.AST, names: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.With | ast.AsyncWith):
            calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
            yield from ((node.lineno, f"with {_dotted(call.func, names)}") for call in calls)
        elif isinstance(node, ast.Attribute):
            yield node.lineno, _dotted(node, names)
            yield node.lineno, node.attr  # core.is_ratelimited
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.lineno, _dotted(node.func, names)
            if node.func.id == "getattr" and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
                yield node.lineno, f"{_dotted(node.args[0], names)}.{node.args[1].value!s}"


def _dotted(node: ast.AST, names: Mapping[str, str]) -> str:
    """Return "limiter.limit" for an attribute of a limiter, or of any variable whose name contains limiter."""
    if isinstance(node, ast.Name):
        return names.get(node.id) or ("limiter" if "limiter" in node.id.lower() else node.id)
    if not isinstance(node, ast.Attribute):
        return ""
    owner = _dotted(node.value, names).rpartition(".")[2]
    return f"{names.get(owner, owner)}.{node.attr}"
