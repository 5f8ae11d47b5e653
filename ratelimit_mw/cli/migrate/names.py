"""Names of the functions and other objects of an application in the printed code, and their places."""

import inspect
import keyword
import os
import re
import sys
from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any, Final

_PACKAGES: Final = ("flask_limiter", "slowapi", "django_ratelimit")
_WORD: Final = re.compile(r"\W+", re.ASCII)
_PRINTED: Final = ("limit", "exempt", "check", "usage")


class Code(str):
    """A text that is code in Python, and not a string."""

    __slots__ = ()


class CodeNames:
    """The names of objects in the printed code. No two objects have the same."""

    def __init__(self, module: str, problems: list[str]) -> None:
        self.imports: list[str] = []
        """The imports of the objects that are not in the module of the application."""
        self._module = module
        self._problems = problems
        self._made_up: dict[Any, tuple[str, Any]] = {}
        self._imported: dict[tuple[str, str], str] = {}
        self._taken: set[str] = set(_PRINTED)

    def local(self, thing: Any, where: str, description: str = "") -> str:
        """Return the name in the module that uses an object. One without a name gets one, with a problem."""
        if found := find_name(thing):
            return found[1]
        if identity(thing) not in self._made_up:
            name = self.unused(description or _description(thing))
            self._made_up[identity(thing)] = (name, thing)
            self._problems.append(
                f"{where}: {name_of_function(thing)} has no name to import it by. Assign it to {name} in its module"
            )
        return self._made_up[identity(thing)][0]

    def imported(self, thing: Any, where: str, description: str = "") -> str:
        """Return the name in the module of the application, and add its import."""
        module, name = find_name(thing) or (_module_of(thing) or self._module, self.local(thing, where, description))
        first, dot, rest = name.partition(".")
        if (module, first) not in self._imported:
            free = next(alias for alias in numbered(first) if alias not in self._imported.values())
            self._imported[module, first] = free
            if module != self._module:
                self.imports.append(f"from {module} import {first}" + f" as {free}" * (free != first))
            elif free != first:
                self._problems.append(f"{where}: another module has a {first}, too. Import that one by another name")
        return f"{self._imported[module, first]}{dot}{rest}"

    def unused(self, name: str) -> str:
        """Return a name for a new variable, which no module of the application has yet."""
        name = word(name) or "shared"
        if keyword.iskeyword(name) or not name.isidentifier():
            name = f"limit_{name}"
        modules = [module for _, module in own_modules()]
        taken = {each for module in modules for each, value in vars(module).items() if not _is_of_package(value)}
        found = next(each for each in numbered(name) if each not in taken | self._taken)
        self._taken.add(found)
        return found


def numbered(name: str, separator: str = "_") -> Iterator[str]:
    """Yield a name, and then the name with the numbers 2, 3 and so on."""
    return chain([name], (f"{name}{separator}{number}" for number in count(2)))


def word(text: str) -> str:
    return _WORD.sub("_", text).strip("_")


def identity(thing: Any) -> Any:
    """Return a value that is the same for one object. A method of an object is a new one each time it is read."""
    return (id(thing.__self__), id(thing.__func__)) if isinstance(thing, MethodType) else id(thing)


def find_name(thing: Any) -> tuple[str, str] | None:
    """Return the module of an object and its name there, such as ("shop", "Keys.client"); None without one."""
    own = (getattr(thing, "__module__", None), getattr(thing, "__qualname__", None))
    variables = (
        (name, module) for _, module in own_modules() for name, value in vars(module).items() if value is thing
    )
    places = chain([own], ((module.__name__, name) for name, module in variables))
    return next(((module, name) for module, name in places if module and name and _is_at(thing, module, name)), None)


def _module_of(thing: Any) -> str | None:
    module = getattr(unwrapped(thing), "__module__", None)
    return module if module in {each.__name__ for _, each in own_modules()} else None


def _is_at(thing: Any, module: str, name: str) -> bool:
    found = attribute_of(module, name)
    return found is not None and identity(found) == identity(thing)


def attribute_of(module: str, name: str) -> Any:
    """Return an object by its module and its name there; None where it cannot be found."""
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def own_modules() -> Iterator[tuple[Path, ModuleType]]:
    """Yield each imported module below the current folder, with its file."""
    for module in list(sys.modules.values()):
        file = Path(getattr(module, "__file__", None) or "/")
        is_own = file.is_relative_to(Path.cwd()) and "site-packages" not in file.parts
        if is_own and file.suffix == ".py" and file.is_file():
            yield file, module


def _is_of_package(value: Any) -> bool:
    """Return whether a value belongs to another package for limits. The printed code replaces it."""
    return str(getattr(value, "__module__", "")).startswith(_PACKAGES)


def _description(thing: Any) -> str:
    """Return a word for an object without a name."""
    name = name_of_function(thing).rpartition(".")[2]
    line = getattr(getattr(thing, "__code__", None), "co_firstlineno", 0)
    return f"the_function_of_line_{line}" if name == "lambda" else name


def unwrapped(function: Any) -> Any:
    """Return the function that was written, behind decorators, or the class of a view."""
    function = getattr(function, "view_class", getattr(function, "func", function))
    return inspect.unwrap(function) if callable(function) else function


def name_of_function(function: Any) -> str:
    """Return the qualified name of a function, a dotted path as it is."""
    if isinstance(function, str):
        return function
    own = unwrapped(function)
    name: str = getattr(own, "__qualname__", type(own).__qualname__)
    return name.rpartition("<locals>.")[2].replace("<lambda>", "lambda")


def place_of(function: Any) -> str:
    """Return the file and the line of a function or a class, relative to the current folder; else its name."""
    own = unwrapped(function)
    try:
        return f"{os.path.relpath(inspect.getfile(own))}:{inspect.getsourcelines(own)[1]}"
    except (TypeError, OSError):  # a name, or a function without its source
        return name_of_function(function)


def is_in_folder(place: str) -> bool:
    """Return whether the place of a function is below the current folder, or only its name is known."""
    return not place.startswith(os.pardir) and "site-packages" not in place
