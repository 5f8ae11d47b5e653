"""``ratelimit-mw init``: write a settings file with comments, to start with."""

from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import click

from ..rules.declaration import options_of
from ..settings import SettingsDict
from .output import command, print_text, toml

_FILE: Final = Path("ratelimit.toml")
_PLACE: Final = "# settings\n"
"""The place of the settings in the template."""
_EXAMPLES: Final[dict[str, Any]] = {
    "limits": "1000/hour",
    "trusted_proxies": ["127.0.0.1"],
    "defaults": {"key": ["user|ip"]},
    "region_database": "GeoLite2-Country.mmdb",
    "region_header": "cf-ipcountry",
    "exempt": ["/health", "/static/**"],
    "secret": "at least 16 characters",
    "keyed": ["email", "user", "ip"],
    "fleet_size": 4,
    "traffic_log": "sqlite:///traffic.db",
}
"""Values for settings without a default, and for those whose default shows nothing."""


def starter() -> str:
    """Return the text of a settings file. All settings are in it, with their meanings and defaults."""
    lines = (
        f"# {name} = {toml(_EXAMPLES.get(name, each.default))}  # {each.meaning}\n"
        for name, each in options_of(SettingsDict).items()
        if name != "rules"
    )
    template = files(__package__).joinpath("starter.toml").read_text("utf-8")
    return template.replace(_PLACE, "".join(lines))


@command("ratelimit-mw init")
def init() -> None:
    """Write a settings file with comments to ratelimit.toml.

    The file contains one rule for all requests, more rules as comments, and each setting with its default or an
    example. An existing file is never changed: the exit code is then 2.
    """
    text = starter()
    try:
        with _FILE.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise click.UsageError(f"{_FILE} exists. Remove it, or run the command in another folder") from None
    print_text(f"Wrote {_FILE}. Next: ratelimit-mw check {_FILE}")
