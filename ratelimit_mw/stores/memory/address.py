"""The URL of a memory store: ``memory://?max_keys=100000&snapshot=/var/lib/app/limits``."""

import re
from typing import Final
from urllib.parse import SplitResult

from ...errors import ConfigError

OPTIONS: Final = ("max_keys", "snapshot")


def parse_address(address: SplitResult, options: dict[str, str]) -> tuple[int, str | None]:
    """Return the bound and the snapshot."""
    if address.netloc or address.path.strip("/"):
        raise ConfigError("memory:// has no host and no path")
    text = options.get("max_keys", "1000000")
    if not re.fullmatch("0*[1-9][0-9]{0,11}", text):
        raise ConfigError(f"max_keys must be a whole number of at least 1, got {text[:99]!r}")
    return int(text), options.get("snapshot")
