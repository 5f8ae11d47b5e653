"""Reads what FastAPI knows of a view: the functions it calls before, and the types of its parameters."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Annotated, Any, Final, get_type_hints

from ..errors import ConfigError, error_path
from ..http.functions import types_in
from ..keys.features import checked_name
from ..keys.parts import part_of
from ..keys.values import Conversion, Conversions
from ..rules.marks import Mark
from ..rules.rule import Rule

_PLACES: Final = {
    "path": "path_params",
    "query": "query_params",
    "header": "header_params",
    "cookie": "cookie_params",
    "json": "body_params",
    "form": "body_params",
    "field": "body_params",
}
"""The list of parameters that has the features of a family."""
_COLLECTIONS: Final = (list, set, frozenset, tuple, Sequence)
"""Types of a parameter that a client may send several times, and that it may send once."""
_CUSTOM: Final = "__get_pydantic_core_schema__"
"""The method of types that convert in their own way: ``ByteSize`` reads "1 KB", for example."""


class DependencyObject:
    """A dependency that is an object. Its class in its place would take arguments from the query of the client."""

    arguments = ""
    """Arguments of the class, for an example."""


class DependencyLimit(DependencyObject):
    """A limit that a dependency carries. Objects with the same mark are one limit.

    ``provides`` has the dependencies of features. Without any, the limit is decided before dependencies are called.
    """

    arguments = '"5/minute"'

    def __init__(self, mark: Mark, provides: Mapping[str, object], place: str) -> None:
        self.mark = mark
        self.provides = provides
        self.place = place


def check_provided(limit: DependencyLimit, rule: Rule) -> None:
    """Raise ``ConfigError`` for a feature of a limit that its rule does not use."""
    try:
        for name in limit.provides:
            with error_path(f"features[{name!r}]"):
                if checked_name(name) not in [part_of(each).feature for each in rule.parts]:
                    needs = ", ".join(rule.parts)
                    raise ConfigError(f"the limit does not use it: its key, match, per and cost need {needs}")
    except ConfigError as error:
        raise ConfigError(error.message, error.path, limit.place) from None


def calls_before(dependant: Any) -> Iterator[object]:
    """Yield the functions that FastAPI calls before a view, the outermost first."""
    for inner in getattr(dependant, "dependencies", ()):
        call = inner.call
        if inspect.isclass(call) and issubclass(call, DependencyObject):
            name = call.__name__
            raise ConfigError(f"expected Depends({name}({call.arguments})); got Depends({name})")
        yield from calls_before(inner)
        yield call


class ParameterTypes(Conversions):
    """The types of the parameters of a view and its dependencies, by which FastAPI converts what a client sends."""

    def __init__(self, dependant: Any) -> None:
        every = list(_with_dependencies(dependant))
        places = dict.fromkeys(_PLACES.values())
        self._lists = {place: [each for part in every for each in getattr(part, place, ())] for place in places}
        bodies = self._lists["body_params"]
        names = {parameter.name for parameter in bodies}
        self._is_embedded = len(names) > 1 or any(getattr(each.field_info, "embed", None) for each in bodies)
        self._found: dict[str, list[list[type]]] = {}

    def of(self, feature: str) -> Conversion | None:
        return next(filter(None, map(Conversion.to, self._types_of(feature))), None)

    def declares(self, feature: str) -> bool:
        return bool(self._types_of(feature))

    def _types_of(self, feature: str) -> list[list[type]]:
        """Return the types of each parameter and field of a model that has a feature."""
        if feature not in self._found:  # few are asked for: those of rules
            family, _, path = feature.partition(":")
            place = _PLACES.get(family, "")
            found = (self._types(each, path, place) for each in self._lists.get(place, ()))
            self._found[feature] = [types for each in found for types in each]
        return self._found[feature]

    def _types(self, parameter: Any, path: str, place: str) -> Iterator[list[type]]:
        info = parameter.field_info
        is_form = any(cls.__name__ == "Form" for cls in type(info).__mro__)
        is_inside = place == "body_params" and self._is_embedded and not is_form
        return _types_at(path.split("."), parameter.name, info, is_inside)


def _with_dependencies(dependant: Any) -> Iterator[Any]:
    yield dependant
    for inner in getattr(dependant, "dependencies", ()):
        yield from _with_dependencies(inner)


def _types_at(path: list[str], name: str, info: Any, is_inside: bool = True) -> Iterator[list[type]]:
    """Yield the types of a parameter or field, where the path leads to it; else those of the fields of its model.

    ``is_inside``: the fields of its model are below its name, not beside it.
    """
    annotation = getattr(info, "annotation", info)
    if validators := getattr(info, "metadata", ()):
        annotation = Annotated[(annotation, *validators)]
    types = types_in(annotation, inside=_COLLECTIONS)
    models = [kind for kind in types if _is_model(kind)]
    if is_inside or not models:
        if path[0] not in _names(name, info):
            return
        path = path[1:]
    if any(getattr(kind, "__pydantic_root_model__", False) for kind in models):
        path = ["root", *path]  # the field that is the whole value of the model
    if not path:
        yield [*types, *(object for kind in types if hasattr(kind, _CUSTOM))]
    elif len(models) == 1:  # the models of a union may have different types
        validated = _validated_fields(models[0])
        for inner, inside in _fields_of(models[0]).items():
            custom = [object] if validated.intersection((inner, "*")) else []
            yield from ([*found, *custom] for found in _types_at(path, inner, inside))


def _is_model(kind: Any) -> bool:
    return hasattr(kind, "model_fields") or is_dataclass(kind) or hasattr(kind, "__total__")


def _fields_of(kind: Any) -> Mapping[str, Any]:
    """Return the fields of a Pydantic model, or the annotations of a dataclass or ``TypedDict``."""
    if (fields := getattr(kind, "model_fields", None)) is not None:
        return fields  # type: ignore[no-any-return]
    try:
        return get_type_hints(kind, include_extras=True)
    except Exception:  # a name in an annotation may exist for type checkers only
        return {}


def _validated_fields(kind: Any) -> set[str]:
    """Return the fields of a model that a validator sees before they are converted; "*" for all."""
    validators = getattr(getattr(kind, "__pydantic_decorators__", None), "field_validators", {})
    return {name for each in validators.values() if each.info.mode != "after" for name in each.info.fields}


def _names(name: str, info: Any) -> set[str]:
    """Return the names that a request may use. Those of headers are in lower case, with dashes."""
    validation = getattr(info, "validation_alias", None)
    choices = getattr(validation, "choices", (validation,))
    names = {text for text in (name, getattr(info, "alias", None), *choices) if isinstance(text, str)}
    return names | {text.replace("_", "-").lower() for text in names}
