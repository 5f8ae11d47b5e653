"""A clock for all that looks for changes at intervals: workers that were idle for a while, without waiting."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ratelimit_mw import Limiter
from ratelimit_mw.asgi import middleware as asgi
from ratelimit_mw.cli.serve import app as service
from ratelimit_mw.django import middleware as django
from ratelimit_mw.limiter import limiter
from ratelimit_mw.limiter.followers import files, follower, record
from ratelimit_mw.limiter.remote import store as remote
from ratelimit_mw.wsgi import exchange as wsgi

MODULES = [service, asgi, wsgi, django, limiter, follower, files, remote, record]


def load_instead(limiter: Limiter, load: Callable[[Callable[[], Any]], Any]) -> None:
    """Replace the function that loads the settings by one that gets it."""
    origin = limiter.settings.origin
    assert origin is not None
    limiter.settings.__dict__["origin"] = origin._replace(load=lambda files: load(lambda: origin.load(files)))


class Later:
    """The time of the workers of this process: ``passed`` seconds after that of the machine."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.passed = 0.0
        for module in MODULES:
            patch.setattr(module, "monotonic", lambda: time.monotonic() + self.passed)
        patch.setattr(files, "_MAX_WAIT", 60.0)  # also where the machine is slow
        self.files = 0
        patch.setattr(files, "machine", SimpleNamespace(time_ns=lambda: time.time_ns() + int(self.passed * 1e9)))
        patch.setattr(files, "time", SimpleNamespace(sleep=self.sleep))

    def sleep(self, seconds: float) -> None:
        """Let the time pass without waiting."""
        self.passed += seconds

    def write(self, file: Path, content: str) -> None:
        """Replace a file in one step, now by this clock."""
        self.files += 1
        new, now = file.with_name(f"new-{self.files}"), time.time() + self.passed
        new.write_text(content)
        os.utime(new, (now, now))
        new.replace(file)
