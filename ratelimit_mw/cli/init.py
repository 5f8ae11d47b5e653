"""``ratelimit-mw init``: write a settings file with comments, to start with."""

from pathlib import Path
from typing import Any, Final

import click

from ..rules.declaration import options_of
from ..settings import SettingsDict
from .output import command, print_text, toml

_TEMPLATE: Final = Path(__file__).with_name("starter.toml")
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


def starter(file: str) -> str:
    """Return the text of a settings file with this name. All settings are in it, with their meanings and defaults."""
    lines = (
        f"# {name} = {toml(_EXAMPLES.get(name, each.default))}  # {each.meaning}\n"
        for name, each in options_of(SettingsDict).items()
        if name != "rules"
    )
    template = _TEMPLATE.read_text(encoding="utf-8").replace("ratelimit.toml", file)
    return template.replace(_PLACE, "".join(lines))


def _toml_name(_ctx: click.Context, _param: click.Parameter, path: Path) -> Path:
    if path.suffix != ".toml":
        raise click.BadParameter(f"expected a name that ends with .toml; got {path.name!r}")
    if path.name == "pyproject.toml":
        raise click.BadParameter("pyproject.toml has the settings in its table [tool.ratelimit_mw]. Write another name")
    if path.exists():
        raise click.UsageError(f"{path.name} exists. Remove it, or name another file")
    return path


@command("ratelimit-mw init", "ratelimit-mw init settings/ratelimit.toml")
@click.argument("file", default="ratelimit.toml", type=click.Path(path_type=Path), callback=_toml_name)
def init(file: Path) -> None:
    """Write a settings file with comments to FILE.

    The default of FILE is ratelimit.toml. The file contains one rule for all requests, more rules as comments, and each
    setting with its default or an example. An existing file is never changed: the exit code is then 2.
    """
    file.write_text(starter(file.as_posix()), encoding="utf-8")
    print_text(f"Wrote {file}. Next: ratelimit-mw check {file}")
