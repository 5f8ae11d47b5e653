"""Write the values of settings as TOML."""

import json
import re
from typing import Any, Final

_QUOTED: Final = re.compile(r"[^\w-]", re.ASCII)


def toml(value: Any) -> str:
    """Return a value of the settings as TOML.

    >>> toml({"path": ["/a"], "header:x-key": "no"})
    '{ path = ["/a"], "header:x-key" = "no" }'
    """
    if isinstance(value, dict):
        pairs = (f"{toml(name) if _QUOTED.search(name) else name} = {toml(item)}" for name, item in value.items())
        return "{ " + ", ".join(pairs) + " }" if value else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)
