"""The tools that test pages: the browser finds each kind of mistake, so that a clean page means something."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import Browser, is_outside
from dashboard_site import served
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.keys import Keys
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route
from tables import each

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


@each(
    ("content", "problem"),
    [
        ("<script>console.error('not good')</script>", "not good"),
        ("<script>throw new Error('not caught')</script>", "not caught"),
        ("<script>Promise.reject(new Error('not awaited'))</script>", "not awaited"),
        ("<script src=/missing></script>", "404"),
        ("<meta http-equiv=Content-Security-Policy content=\"img-src 'none'\"><img src=a alt=''>", "violates"),
    ],
)
def test_errors_in_the_console_are_problems(browser: Browser, site: str, content: str, problem: str) -> None:
    """The browser reports each kind of error once."""
    browser.open(site + content)
    (message,) = problems_of(browser)
    assert problem in message
    assert browser.problems() == []


@each(
    "content",
    [
        "<img src=http://192.0.2.1/a.png alt=''>",
        "<link rel=stylesheet href=https://cdn.example/a.css>",
        "<script>new WebSocket('ws://cdn.example/a').onerror = () => { document.title = 'failed' }</script>",
        "<iframe src=http://cdn.example/a title=Frame></iframe>",
    ],
)
def test_requests_to_other_machines_are_problems(browser: Browser, site: str, content: str) -> None:
    """The browser reports what a page requests elsewhere, even where the console has no error."""
    browser.open(site + content)
    problems = problems_of(browser)
    assert any(problem.startswith("requested ") for problem in problems), problems
    browser.reset()  # the error may come later


def test_other_machines_cannot_be_reached(browser: Browser) -> None:
    """A request to another machine fails at once, even with an address that needs no look-up."""
    for host in ("192.0.2.1", "cdn.example"):
        with pytest.raises(WebDriverException, match="ERR_NAME_NOT_RESOLVED"):
            browser.open(f"http://{host}/")
        assert f"requested http://{host}/" in browser.problems()
    own = ["http://localhost/", "http://127.0.0.1:8000/", "ws://[::1]:8000/", "data:,a", "blob:http://127.0.0.1/a"]
    others = ["http://localhost.example/", "http://127.0.0.1.example/", "ws://192.0.2.1/", "http://[2001:db8::1]/"]
    assert [is_outside(url) for url in own + others] == [False] * len(own) + [True] * len(others)


def test_mistakes_of_accessibility_are_violations(browser: Browser, site: str) -> None:
    """axe names the rule and the element, in the scheme of colours that the page shows."""
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
