"""The format of the keys of a store: ``VERSION|RULE|ALGORITHM|PERIOD|CLIENT``, with braces around a hash tag."""

from typing import Final
from urllib.parse import unquote

from ..errors import ConfigError

FORMAT: Final = "1"
"""The version of keys and states. Change it when either changes its meaning."""
_ESCAPES: Final = {ord(character): f"%{ord(character):X}" for character in "%|{}"}


def checked_kind(name: str, variant: str) -> str:
    """Return the algorithm's part of a key. It must not contain the separator ``|`` or a brace of the hash tag."""
    parts: dict[str, object] = {"name": name, "variant": variant}
    for label, part in parts.items():
        if not isinstance(part, str) or part != part.translate(_ESCAPES):
            raise ConfigError(f"expected the {label} of algorithm {name!r} as text without | % {{ }}; got {part!r}")
    return f"{name}.{variant}" if variant else name


def prefix_of_rule(rule: str) -> str:
    """Return the start of all keys of a rule."""
    return f"{FORMAT}|{rule.translate(_ESCAPES)}|"


def rule_of(key: str) -> str:
    """Return the name of the rule from a key; "" from a text that is no key."""
    version, _, rest = key.partition("|")
    return unquote(rest.partition("|")[0]) if version == FORMAT else ""


def prefix_of(key: str) -> str:
    """Return the limit's ``prefix`` from a key: all up to the fourth ``|``."""
    return "|".join(key.split("|", 4)[:4]) + "|"


def without_hash_tag(client: str) -> str:
    """Return the part of a key that names the client without the hash tag of a Redis Cluster.

    A tag that is no part of the client has a ``&`` behind it.

    >>> without_hash_tag("path=6:/login&{ip=192.0.2.7}"), without_hash_tag("{29fa045b}&path=/login")
    ('path=6:/login&ip=192.0.2.7', 'path=/login')
    """
    outside, _, inside = client.partition("{")
    tag, _, rest = inside.partition("}")
    return outside + (rest[1:] if rest.startswith("&") else tag)
