"""A real browser. A test that uses it fails for errors in the console and for requests to other machines."""

from collections.abc import Iterator

import pytest
from browser import Browser, chromium_running


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The browser of all tests of one worker."""
    with chromium_running(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """The browser with an empty page. Call ``problems`` where a test expects some: each is returned once."""
    chromium.reset()
    yield chromium
    chromium.open("about:blank")
    problems = chromium.problems()
    assert not problems, "\n".join(problems)
