"""The keys of single clients, as an operator names them by their features. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from ..errors import ConfigError
from ..keys.features import INVALID, Features
from ..keys.parts import part_of
from .compiled import CompiledRule


def client_key(rule: CompiledRule, features: Features, is_exact: bool = False) -> str:
    """Return the part of the keys of a rule that names a client with these features.

    Requests without an IP address count as ``unknown``. Here, the feature is missing. With ``is_exact``, a feature
    without use is an error, because it may be misspelt.
    """
    if missing_in_key(rule, features) or (is_exact and features.keys() - features_of(rule)):
        raise no_key(rule, features)
    given = rule.captures.add(features)
    for names in rule.source.entries:
        part = next(part for part in map(part_of, names) if part.value(given) is not None)
        if part.compared(given) is INVALID:
            raise ConfigError(f"{part.text} of rule {rule.name!r} cannot have this value")
    return rule.build_key(given) or ""


def no_key(rule: CompiledRule, features: Features) -> ConfigError:
    """Return the error for features that make no key of a rule."""
    used = features_of(rule)
    if unused := [name for name in features if name not in used]:
        entries = words_of_entries(rule.source.entries) or "one limit for all clients"
        hint = similar_names(unused, used)
        problem = f"rule {rule.name!r} does not use {' and '.join(unused)}.{hint} Its key is: {entries}"
    else:
        problem = f"the key of rule {rule.name!r} needs {words_of_entries(missing_in_key(rule, features))}"
    return ConfigError(problem)


def missing_in_key(rule: CompiledRule, features: Features) -> list[tuple[str, ...]]:
    """Return the entries of a rule's key without a value, each with its alternatives."""
    given = rule.captures.add(features)
    return [names for names in rule.source.entries if all(part_of(name).value(given) is None for name in names)]


def features_of(rule: CompiledRule) -> set[str]:
    """Return the features that a rule uses, with those that have the parameters of its path patterns."""
    return {*rule.source.needs, *rule.captures.names, *(["path"] if rule.captures.names else [])}


def similar_names(names: Iterable[str], known: Iterable[str]) -> str:
    """Return a sentence with the known features that have a similar name; "" without any."""
    known = list(known)
    similar = (other for name in names for other in difflib.get_close_matches(name, known, 1, 0.75))
    return f" Did you mean {' and '.join(found)}?" if (found := dict.fromkeys(similar)) else ""


def words_of_entries(entries: Iterable[Sequence[str]]) -> str:
    """Return entries of a key as text, such as "email and user|ip"."""
    return " and ".join(map("|".join, entries))
