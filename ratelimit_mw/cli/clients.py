"""The words of a command, and the rule, the client and the limiter that they name."""

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
from ..errors import ConfigError, StoreError
from ..http.request import group_values, only_value
from ..keys import parts
from ..keys.features import INVALID, Features, is_email, words_of
from ..keys.forms import normalized_email
from ..keys.parts import checked_part, part_of, word_of
from ..limiter.limiter import Limiter
from ..quota import parse_duration
from ..rules.client_key import ClientKeyError, client_key, features_of, similar_names
from ..rules.compiled import CompiledRule
from ..stores import Store, redacted_url
from .output import Failure, parsed
from .source import Source

_TIMEOUT_US: Final = 3 * SECOND
"""The shortest time that a call may wait for the store. A command has more time than a request."""
_SHARED: Final = (
    "Use the admin API of `ratelimit-mw serve`, or set a store that processes share,"
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


def checked_duration(text: str) -> str:
    """Return the text of a duration; ``ConfigError`` for another text, and for 0."""
    if not parse_duration(text):
        raise ConfigError(f"expected more than 0; got {text!r}")
    return text


read_words, read_duration = parsed(read_features), parsed(checked_duration)
features_argument: Callable[..., Any] = click.argument(
    "features", metavar="[NAME=VALUE]...", nargs=-1, callback=read_words
)


def command_line(source: Source, command: str, *words: str) -> str:
    """Return a command to copy, for the same file or application as the current one."""
    program = click.get_current_context().find_root().info_name or "ratelimit-mw"
    return " ".join([program, command, *map(_shell_word, (*source.arguments, *words))])


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


def as_counted(source: Source, features: Features) -> Features:
    """Return the features of a client as its requests have them, such as an IPv6 address as its network."""
    settings = source.settings
    try:
        if source.limits:
            return source.limits.as_counted(features)
        return parts.as_counted(features, settings.ipv6_prefix, settings.nat64_prefixes)
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


@contextmanager
def open_limiter(source: Source, may_be_memory: bool = False) -> Iterator[Limiter]:
    """Open a limiter with the rules and the store of a source. Its calls may wait longer than those of requests.

    Raises:
        Failure: The store does not reply, or is an LMDB that does not exist or belongs to another user. ``memory://``,
            which no other process can reach, is one too, unless it ``may_be_memory``. Then nothing is asked.
    """
    own = source.limits.limiter if source.limits else None
    settings = source.running_settings
    store = settings.store
    if own and (not isinstance(store, str) or redacted_url(store) != redacted_url(own.store)):
        store = own.store  # an object of the application
    if not may_be_memory and redacted_url(store).startswith(("memory:", "MemoryStore")):
        raise own_memory("the store", _SHARED)
    settings = replace(settings, store_timeout=max(settings.store_timeout, _TIMEOUT_US), observers=(), traffic_log=None)
    limiter = Limiter((), store, own._clock if own else None, settings)
    _check_files(limiter.store)
    limiter.rules = source.rules
    try:
        if not may_be_memory:
            limiter.store.start()
        yield limiter
    except StoreError as error:
        raise Failure(f"{redacted_url(store)} failed: {error}. `check --connect` examines its servers") from error
    finally:
        limiter.close()


def own_memory(place: str, hint: str) -> Failure:
    """Return the error for a store or a log in the memory of the application."""
    return Failure(f"{place} memory:// is in each process of your application, so a command cannot reach it. {hint}")


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
