"""The store of a running application, as commands use it: its limiter, and the features of a key as ``NAME=VALUE``."""

import os
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

import click

from ..clock import SECOND
from ..errors import ConfigError, RateLimitError
from ..http.request import group_values, only_value
from ..keys import address
from ..keys.email import normalized_email
from ..keys.features import INVALID, Features, is_email
from ..keys.parts import Part, checked_part, part_of
from ..limiter.limiter import Limiter
from ..limiter.override_reader import name_of
from ..quota import parse_duration
from ..rules.client_key import ClientKeyError, client_key, features_of
from ..rules.compiled import CompiledRule
from ..stores import Store, redacted_url
from .output import Failure
from .source import Source

_TIMEOUT_US: Final = 3 * SECOND
"""The shortest time that a call may wait for the store. A command has more time than a request."""
_OWN_MEMORY: Final = (
    "the store memory:// is in each process of your application, so a command cannot read or change it."
    " Use the admin page of Django or the admin API of `ratelimit-mw serve`, or set a store that processes share,"
    " such as redis://localhost:6379/0 or lmdb:///var/lib/app/ratelimit"
)


def read_features(texts: Iterable[str]) -> dict[str, Any]:
    """Return the features of texts such as ``user=alice``.

    A feature that occurs twice with different values is invalid, as in a request.

    Raises:
        click.BadParameter: A text is no NAME=VALUE, or names no feature.
    """
    given: list[tuple[str, str]] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"expected NAME=VALUE; got {text!r}")
        try:
            name = checked_part(name, in_key=False)
        except ConfigError as error:
            raise click.BadParameter(str(error)) from None
        if is_email(name) and (value := normalized_email(value)) is INVALID:
            raise click.BadParameter("email has more than 320 characters")
        given.append((name, value))
    features: dict[str, Any] = {}
    for name, values in sorted(group_values(given).items()):
        part, found = part_of(name), only_value(values)
        if not part.attribute:
            features[part.feature] = found
        elif isinstance(inside := features.setdefault(part.feature, {}), dict):
            inside[part.attribute] = found
        else:
            raise click.BadParameter(f"set either {part.feature} or {name}")
    return features


def read_words(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
    """Return the features of the words of a command; a callback of click."""
    return read_features(texts)


def read_duration(_ctx: click.Context, _param: click.Parameter, text: str | None) -> str | None:
    """Return the text of a duration above 0; a callback of click."""
    try:
        if text is not None and not parse_duration(text):
            raise ConfigError(f"expected more than 0; got {text!r}")
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
    return text


features_argument: Callable[..., Any] = click.argument(
    "features", metavar="[NAME=VALUE]...", nargs=-1, callback=read_words
)


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


def check_used(source: Source, rules: Collection[CompiledRule], features: Features) -> None:
    """Raise ``Failure`` for features that no rule uses, such as one with a typo."""
    used = set(chain.from_iterable(map(features_of, rules)))
    if unused := [name for name in features if name not in used]:
        known = ", ".join(sorted(used)) or "no feature"
        raise Failure(f"no rule uses {' and '.join(unused)}. The rules use {known}{_app_hint(source)}")


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


def words_of(features: Features) -> list[str]:
    """Return features as the words of a command."""
    words = []
    for name, value in features.items():
        pairs = {f"{name}.{inner}": text for inner, text in value.items()} if isinstance(value, dict) else {name: value}
        words += [f"{name}={'...' if text is INVALID else text}" for name, text in pairs.items()]
    return words


def word_of(part: Part) -> str:
    """Return the name that a command gives to a part of a key: ``ip`` for ``ip/48``.

    >>> word_of(part_of("user.id")), word_of(part_of("path:id as int")), word_of(part_of("ip/48"))
    ('user.id', 'path:id', 'ip')
    """
    return f"{part.feature}.{part.attribute}" if part.attribute else part.feature


def command_line(source: Source, command: str, *words: str) -> str:
    """Return a command to copy, for the same file or application as the current one."""
    program = click.get_current_context().find_root().info_name or "ratelimit-mw"
    return " ".join([program, command, *map(_shell_word, (*source.arguments, *words))])


@contextmanager
def open_limiter(source: Source, may_be_memory: bool = False) -> Iterator[Limiter]:
    """Open a limiter with the rules and the store of a source. Its calls may wait longer than those of requests.

    Raises:
        Failure: The store does not reply, or is an LMDB that does not exist or belongs to another user. ``memory://``,
            which no other process can reach, is one too, unless it ``may_be_memory``. Then nothing is asked.
    """
    own = source.limits.limiter if source.limits else None
    settings = own.settings if own else source.settings
    store = settings.store
    if own and (not isinstance(store, str) or redacted_url(store) != redacted_url(own.store)):
        store = own.store  # an object of the application
    if not may_be_memory and redacted_url(store).startswith(("memory:", "MemoryStore")):
        raise Failure(_OWN_MEMORY)
    settings = replace(settings, store_timeout=max(settings.store_timeout, _TIMEOUT_US), observers=(), traffic_log=None)
    limiter = Limiter((), store, own._clock if own else None, settings)
    _check_files(limiter.store)
    limiter.rules = source.rules
    try:
        if not may_be_memory:
            _require_reply(limiter.store)
        yield limiter
    finally:
        limiter.close()


def _require_reply(store: Store) -> None:
    """Raise ``Failure`` for a store that does not reply, after one wait for it."""
    try:
        store.start()
    except RateLimitError as error:
        raise Failure(f"{name_of(store)} unreachable: {error}. `doctor` examines its servers") from error


def _check_files(store: Store) -> None:
    """Raise ``Failure`` for an LMDB that is missing, or of another user: files of this user would lock that user out.

    LMDB creates a missing environment, and a new one after a crash of the machine.
    """
    path = getattr(store, "path", None)
    if not store.name.startswith("lmdb:") or path is None:
        return
    try:
        owner = (Path(path) / "data.mdb").stat().st_uid
    except PermissionError:
        raise Failure(f"this user may not open {store.name}. Run the command as the user of the application") from None
    except OSError:
        hint = "Check the path, or start the application that creates it"
        raise Failure(f"{store.name} does not exist. {hint}") from None
    if owner != os.geteuid():
        raise Failure(f"{store.name} belongs to the user {owner}. Run the command as this user: sudo -u '#{owner}' ...")


def _shell_word(text: str) -> str:
    """Return a text as a word of a shell. One with control characters needs bash or zsh."""
    if text.isprintable():
        return shlex.quote(text)
    return f"$'{''.join(map(_escaped, text))}'"


def _escaped(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    code = ord(character)
    return character if character.isprintable() else f"\\x{code:02x}" if code < 128 else f"\\U{code:08x}"
