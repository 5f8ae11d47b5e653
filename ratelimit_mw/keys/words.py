"""Features and the parts of a key as the words of a command: ``user=alice``."""

from .features import INVALID, Features
from .parts import Part


def words_of(features: Features) -> list[str]:
    """Return features as the words of a command."""
    words = []
    for name, value in features.items():
        pairs = {f"{name}.{inner}": text for inner, text in value.items()} if isinstance(value, dict) else {name: value}
        words += [f"{name}={'...' if text is INVALID else text}" for name, text in pairs.items()]
    return words


def word_of(part: Part) -> str:
    """Return the name that a command gives to a part of a key: ``ip`` for ``ip/48``.

    >>> from ratelimit_mw.keys.parts import part_of
    >>> word_of(part_of("user.id")), word_of(part_of("path:id as int")), word_of(part_of("ip/48"))
    ('user.id', 'path:id', 'ip')
    """
    return f"{part.feature}.{part.attribute}" if part.attribute else part.feature
