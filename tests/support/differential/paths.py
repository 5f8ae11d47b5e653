"""The paths that small applications take for a decoded one. It imports nothing that changes the limiter."""

import posixpath
import re
from urllib.parse import unquote


def paths_by_hand(path: bytes) -> set[str]:
    """Return the paths that small applications take for the decoded one.

    They read the bytes in several ways, decode them again, resolve dots, and take away what they do not expect.
    """
    decoded = {path.decode("utf-8", errors) for errors in ("replace", "ignore")} | {path.decode("latin-1")}
    decoded |= {unquote(text) for text in decoded}
    cleaned = (
        decoded
        | {re.sub(r"[\x00-\x1f\x7f]", "", text) for text in decoded}
        | {text.strip("\0\t\r\n") for text in decoded}
    )
    cleaned |= {text.partition("\0")[0] for text in decoded}
    slashed = cleaned | {text.replace("\\", "/") for text in cleaned}
    resolved = {posixpath.normpath(re.sub("/+", "/", "/" + text)) for text in slashed}
    return {text.rstrip("/") or "/" for text in slashed | resolved}
