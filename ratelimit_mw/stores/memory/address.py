"""The URL of a memory store: ``memory://?max_keys=100000&snapshot=/var/lib/app/limits&snapshot_interval=1m``."""

import re
from typing import Final
from urllib.parse import SplitResult

from ...clock import SECOND
from ...errors import ConfigError
from ...quota import parse_duration

OPTIONS: Final = ("max_keys", "snapshot", "snapshot_interval")


def parse_address(address: SplitResult, options: dict[str, str]) -> tuple[int, str | None, float | None]:
    """Return the bound, the snapshot, and the seconds between two writes of it."""
    if address.netloc or address.path.strip("/"):
        raise ConfigError("memory:// has no host and no path")
    text = options.get("max_keys", "1000000")
    if not re.fullmatch("0*[1-9][0-9]{0,11}", text):
        raise ConfigError(f"max_keys must be a whole number of at least 1, got {text[:99]!r}")
    try:
        interval = parse_duration(options["snapshot_interval"]) / SECOND if "snapshot_interval" in options else None
    except ConfigError as error:
        raise ConfigError(f"memory:// option snapshot_interval: {error}") from error
    return int(text), options.get("snapshot"), interval
