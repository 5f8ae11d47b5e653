"""The client that the words of a command name: its rule, and its features as requests have them."""

from collections.abc import Collection
from itertools import chain

import click

from ..errors import ConfigError
from ..keys import address
from ..keys.features import Features
from ..keys.parts import part_of
from ..keys.words import word_of, words_of
from ..rules.client_key import ClientKeyError, client_key, features_of, similar_names
from ..rules.compiled import CompiledRule
from .output import Failure
from .source import Source
from .words import command_line


def as_counted(source: Source, features: Features) -> Features:
    """Return the features of a client as its requests have them, such as an IPv6 address as its network."""
    settings = source.settings
    try:
        if source.limits:
            return source.limits.as_counted(features)
        return address.as_counted(features, settings.ipv6_prefix, settings.nat64_prefixes)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None


def checked_rule(source: Source, name: str) -> CompiledRule:
    """Return the rule of a name. ``Failure`` for an unknown one, which may be that of a decorator."""
    try:
        return source.rules.named(name)
    except ConfigError as error:
        raise Failure(f"{error}{_app_hint(source)}".replace("?.", "?")) from None


def check_used(
    source: Source, rules: Collection[CompiledRule], features: Features, others: Collection[str] = ()
) -> None:
    """Raise ``Failure`` for features that no rule uses, such as one with a typo, and that are not ``others``."""
    used = set(chain.from_iterable(map(features_of, rules)))
    if unused := [name for name in features if name not in used and name not in others]:
        known = ", ".join(sorted(used)) or "no feature"
        similar = similar_names(unused, used.union(others))
        raise Failure(f"no rule uses {' and '.join(unused)}.{similar} The rules use {known}{_app_hint(source)}")


def _app_hint(source: Source) -> str:
    return ". For a rule of a decorator, write --app MODULE:APP instead of the file" * source.overview.is_file


def checked_client(
    source: Source, name: str, features: Features, command: str, *others: str
) -> tuple[CompiledRule, Features]:
    """Return the rule of a name, and the features of a client as its requests have them.

    Raises:
        Failure: There is no such rule, a feature of its key is missing, or the rule does not use a feature. The message
            has the ``command``, such as ``reset``, with all features and the ``others`` of its words.
    """
    rule, counted = checked_rule(source, name), as_counted(source, features)
    try:
        client_key(rule, counted, is_exact=True)
    except ClientKeyError as error:
        if error.unused:
            raise Failure(str(error)) from None
        added = [f"{word_of(part_of(names[0]))}=..." for names in error.missing]
        whole = command_line(source, command, name, *words_of(features), *added, *others)
        raise Failure(f"{error}. Write: {whole}") from None
    return rule, counted
