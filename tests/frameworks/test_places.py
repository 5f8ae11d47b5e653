"""A mistake that the start of an application finds has its file, line and path in the message."""

from pathlib import Path

import pytest
from misplaced import MISTAKES, check_place, settings_file
from sites import Build, routed

from ratelimit_mw import ConfigError, Limiter


@routed
@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("given", ["settings", "limiter"])
def test_a_mistake_has_its_place(site: Build, mistake: str, given: str, tmp_path: Path) -> None:
    """The path of the middleware, and a limiter from the file, have the same message."""
    text, message = MISTAKES[mistake]
    if mistake == "a method" and "django" in site.name:  # a function has all methods
        return
    if mistake == "observers" and given == "limiter":  # it is no mistake of the application
        return
    file = settings_file(tmp_path, text)

    def start() -> None:
        site(Limiter.from_settings(file) if given == "limiter" else file, {"/login": 200}).start()

    with pytest.raises(ConfigError) as caught:
        start()
    check_place(str(caught.value).removeprefix("RATELIMIT_MW: "), file, message)
