"""Reads what FastAPI knows of a view: the functions it calls before, and the types of its parameters."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final

from ..errors import FeatureTypeError
from ..http.functions import types_in
from ..keys.features import INVALID
from ..keys.parts import text_of

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


def dependants_of(dependant: Any) -> Iterator[Any]:
    """Yield the dependencies of a view, in the order in which FastAPI calls them, and the view."""
    for inner in getattr(dependant, "dependencies", ()):
        yield from dependants_of(inner)
    yield dependant


class ParameterTypes:
    """The parameters of a view and its dependencies. Pydantic converts what a client sends, as FastAPI lets it."""

    def __init__(self, dependants: Sequence[Any]) -> None:
        places = dict.fromkeys(_PLACES.values())
        self._lists = {place: [each for one in dependants for each in getattr(one, place, ())] for place in places}
        bodies = self._lists["body_params"]
        names = {parameter.name for parameter in bodies}
        self._is_embedded = len(names) > 1 or any(getattr(each.field_info, "embed", None) for each in bodies)
        self._found: dict[str, list[Callable[[str], Any]]] = {}

    def convert(self, feature: str, value: Any) -> Any:
        """Return the value of a feature as FastAPI converts it."""
        for convert in self._conversions(feature) if value and isinstance(value, str) else ():
            value = value if value is INVALID else convert(value)
        return value

    def _conversions(self, feature: str) -> list[Callable[[str], Any]]:
        """Return the conversions to the types of each parameter and field of a model that has a feature."""
        if feature not in self._found:  # few are asked for: those of rules
            family, _, path = feature.partition(":")
            place = _PLACES.get(family, "")
            found = (self._types(each, path, place) for each in self._lists.get(place, ()))
            self._found[feature] = [_conversion(*types) for each in found for types in each]
        return self._found[feature]

    def _types(self, parameter: Any, path: str, place: str) -> Iterator[tuple[Any, bool]]:
        info = parameter.field_info
        is_form = any(cls.__name__ == "Form" for cls in type(info).__mro__)
        is_inside = place == "body_params" and self._is_embedded and not is_form
        return _types_at(path.split("."), parameter.name, info, is_inside)


def _conversion(annotation: Any, keeps_others: bool) -> Callable[[str], Any]:
    """Return a function that converts a text to the text of the value, or to ``INVALID`` for no value.

    ``keeps_others``: such a text is kept, because a validator of the model reads it first.
    """
    from pydantic import PydanticUserError, TypeAdapter  # FastAPI has imported it

    try:
        adapter = TypeAdapter(annotation)
    except PydanticUserError:  # of a class that Pydantic does not know
        return str
    # A list that is sent once, and true as a number in JSON.
    ways = (adapter.validate_python, lambda text, **_: adapter.validate_python([text]), adapter.validate_json)

    def convert(text: str) -> Any:
        for way in ways:
            with suppress(Exception):  # your validators may raise any error
                return _text(way(text, strict=False), text)
        return text if keeps_others else INVALID

    return convert


def _text(value: Any, sent: str) -> Any:
    """Return the text of a value; the one that was ``sent`` for a value without a stable text."""
    if isinstance(value, Collection) and not isinstance(value, str | bytes):
        (value,) = value
    if isinstance(value, float):
        return repr(value or 0.0)
    try:
        return text_of("", value)
    except FeatureTypeError:
        return sent


def _types_at(path: list[str], name: str, info: Any, is_inside: bool = True) -> Iterator[tuple[Any, bool]]:
    """Yield the type of a parameter or field, where the path leads to it; else those of the fields of its model.

    With each type, yield whether a validator of the model may read the field first. ``is_inside``: the fields of its
    model are below its name, not beside it.
    """
    models = [kind for kind in types_in(info.annotation) if hasattr(kind, "model_fields")]
    if is_inside or not models:
        if path[0] not in _names(name, info):
            return
        path = path[1:]
    if not path:
        yield Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation, False
    elif len(models) == 1:  # the models of a union may have different types
        model: Any = models[0]
        validators = model.__pydantic_decorators__.field_validators.values()
        is_validated = any(each.info.mode != "after" for each in validators)
        for inner, inside in model.model_fields.items():
            yield from ((kind, kept or is_validated) for kind, kept in _types_at(path, inner, inside))


def _names(name: str, info: Any) -> set[str]:
    """Return the names that a request may use. Those of headers are in lower case, with dashes."""
    choices = getattr(info.validation_alias, "choices", (info.validation_alias,))
    names = {text for text in (name, info.alias, *choices) if isinstance(text, str)}
    return names | {text.replace("_", "-").lower() for text in names}
