"""The tools that test pages: the browser finds each kind of mistake, so that a clean page means something."""

from collections.abc import Iterator

import pytest
from browser import Browser, is_outside
from dashboard_site import served
from selenium.webdriver.common.keys import Keys
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

pytestmark = pytest.mark.thorough

ICON = "<link rel=icon href=data:,>"
CLEAN = "<main><h1>Rules</h1><button onclick=\"this.textContent = 'Pressed'\">Press</button></main>"


def page_of(request: Request) -> HTMLResponse:
    """Return a page whose content is the path."""
    content = request.path_params["content"]
    page = f"<!doctype html><html lang=en><title>Page</title>{ICON}{content}"
    return HTMLResponse(page, 404 if content == "missing" else 200)


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with served(Starlette(routes=[Route("/{content:path}", page_of)])) as url:
        yield f"{url}/"


def problems_of(browser: Browser) -> list[str]:
    """Wait for problems: the page has loaded before the browser reports the last of them."""
    problems: list[str] = []
    browser.wait(lambda: problems.extend(browser.problems()) or problems, "a problem")
    return problems


def test_each_mistake_of_a_page_is_found(browser: Browser, site: str) -> None:
    """An error in the console, a request to another machine, which fails at once, and a field without a label."""
    for content, problem in (
        ("<script>throw new Error('not caught')</script>", "not caught"),
        ("<img src=http://192.0.2.1/a.png alt=''>", "requested http://192.0.2.1/a.png"),
    ):
        browser.open(site + content)
        assert any(problem in each for each in problems_of(browser)), problem
        browser.reset()  # the error may come later
    own = ["http://localhost/", "http://127.0.0.1:8000/", "ws://[::1]:8000/", "data:,a", "blob:http://127.0.0.1/a"]
    others = ["http://localhost.example/", "http://127.0.0.1.example/", "ws://192.0.2.1/", "http://[2001:db8::1]/"]
    assert [is_outside(url) for url in own + others] == [False] * len(own) + [True] * len(others)
    dark = "<style>@media (prefers-color-scheme: dark) { h1 { color: %23777; background: %23888 } }</style>"
    browser.open(f"{site}<main><h1>Rules</h1>{dark}<input id=from></main>")
    assert [each.partition(":")[0] for each in browser.violations()] == ["label"]
    browser.set_scheme("dark")
    assert [each.partition(":")[0] for each in browser.violations()] == ["color-contrast", "label"]


def test_a_test_starts_with_an_empty_page(browser: Browser, site: str) -> None:
    """The size, the scheme and the cookies of an earlier test are gone. A page without mistakes has no problem."""
    browser.open(site + CLEAN)
    browser.press(Keys.TAB, Keys.ENTER)
    browser.wait_for_text("Pressed", "button")
    assert (browser.problems(), browser.violations()) == ([], [])
    facts = "return [innerWidth, matchMedia('(prefers-color-scheme: dark)').matches, document.cookie]"
    before = browser.run(facts)
    browser.set_size(400, 700)
    browser.set_scheme("dark")
    browser.run("document.cookie = 'a=b'")
    assert browser.run(facts) == [400, True, "a=b"]
    browser.reset()
    browser.open(site)
    assert browser.run(facts) == before
