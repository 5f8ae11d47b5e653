"""The page of the dashboard in a real browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser
from dashboard_site import dashboard_site
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys

from ratelimit_mw import Limiter, Rule, load_settings
from ratelimit_mw.testing import ManualClock

pytestmark = pytest.mark.slow

NOON = 1_767_268_800
CONTROLS = "a[href], button, input:not([type=hidden])"
HOSTILE = "/<script>document.title = 'hacked'</script>\"'\u202e\n"


def site_limiter(folder: Path, clock: ManualClock | None = None) -> Limiter:
    settings = load_settings({"traffic_log": f"sqlite:///{folder}/traffic.db", "traffic_clients": True})
    terms = {"after": 100, "within": "10m", "for": "1h"}
    rules = [
        Rule(name="api", limits="3/minute", ban=terms),
        Rule(name="api-new", limits="2/minute", mode="shadow"),
        Rule(name="-".join(["long"] * 15), limits="9/minute", match={"path": "/long"}),
    ]
    return Limiter(rules, settings=settings, clock=clock)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON + 1830.0)


@pytest.fixture
def limiter(tmp_path: Path, clock: ManualClock) -> Iterator[Limiter]:
    limiter = site_limiter(tmp_path, clock)
    log = limiter.traffic_log
    assert log is not None
    for minute in range(0, 86_400, 600):
        log.record("rule:api:allowed", n=5, at=NOON - minute)
        log.record("rule:api:rejected", by="ip=192.0.2.7", n=2, at=NOON - minute)
        log.record("rule:api-new:shadow", n=3, at=NOON - minute)
        log.record("endpoint:/orders/{id}:allowed", n=7, at=NOON - minute)
        log.record("endpoint:/orders/{id}:rejected", n=2, at=NOON - minute)
    log.record(f"endpoint:{HOSTILE}:allowed", at=NOON)
    limiter.clients.ban("api", {"ip": "192.0.2.66"}, "1d")
    limiter.clients.override("api", {"ip": "192.0.2.9"}, "1000/minute")
    yield limiter
    limiter.close()


@pytest.fixture
def page(limiter: Limiter, browser: Browser) -> Iterator[str]:
    with dashboard_site(limiter, writes=True) as url:
        yield url
        browser.open("about:blank")  # before the server ends


def drawn(browser: Browser) -> int:
    """Return the number of charts that are drawn."""
    return len(browser.all(".plot .uplot canvas"))


def pixels(browser: Browser) -> str:
    """Return the picture of the first chart."""
    return str(browser.run("return document.querySelector('.plot canvas').toDataURL()"))


def legend(browser: Browser, position: int = 0) -> str:
    return " ".join(browser.all(".legend")[position].text.split())


def test_the_page_shows_traffic_bans_overrides_and_rules(browser: Browser, page: str) -> None:
    """Everything of a limiter is on one page: with true totals, and shadow rules beside enforced ones."""
    browser.open(page)
    browser.wait(lambda: drawn(browser) == 3, "three lanes of two cards")
    assert [legend(browser, 0), legend(browser, 1)] == ["710 allowed 284 rejected", "426 would be rejected"]
    shown = browser.text("main")
    for text in ("reachable", "memory://", "ip=192.0.2.66", "ip=192.0.2.9", "1000/minute", "3/minute", "28.6%"):
        assert text in shown
    assert "192.0.2.7" not in shown.replace("192.0.2.66", "")
    assert browser.violations() == []


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("query", ["", "?by=endpoint&clients=yes", "?name=api&clients=yes", "?range=x"])
def test_the_page_is_accessible(browser: Browser, page: str, scheme: str, query: str) -> None:
    """axe finds nothing serious in light and dark, on a wide and on a narrow page."""
    browser.set_scheme(scheme)
    browser.open(page + query)
    for width in (1280, 380):
        browser.set_size(width, 900)
        assert browser.violations() == []
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"
    browser.problems()  # ?range=x is 400


@pytest.mark.thorough
def test_another_range_redraws_the_curves(browser: Browser, page: str) -> None:
    """A link, and a drag over a curve, change totals, chart and URL, so that the view can be shared."""
    browser.open(page)
    browser.wait(lambda: drawn(browser), "a chart")
    before = pixels(browser)
    browser.find('nav[aria-label="Time range"] a:first-child').click()
    browser.wait(lambda: "range=hour" in browser.driver.current_url and drawn(browser), "the last hour")
    assert legend(browser) == "20 allowed 8 rejected"
    assert pixels(browser) != before
    over = browser.find(".u-over")
    drag = ActionChains(browser.driver, duration=50).move_to_element_with_offset(over, -120, 0).click_and_hold()
    drag.move_by_offset(90, 0).move_by_offset(60, 0).release().perform()
    browser.wait(lambda: "from=2026-01-01T" in browser.driver.current_url, "the range of the selection")
    assert "&to=2026-01-01T" in browser.driver.current_url
    assert "range=" not in browser.driver.current_url
    # The form takes whole days in UTC: the last one is part of the range.
    browser.open(page + "?from=2025-12-31&to=2025-12-31")
    browser.wait(lambda: drawn(browser), "a chart")
    assert legend(browser) == "355 allowed 142 rejected"
    assert browser.find("input[name=from]").get_attribute("value") == "2025-12-31"
    assert browser.all("#pause") == []


@pytest.mark.thorough
def test_an_update_keeps_the_focus(browser: Browser, page: str, limiter: Limiter) -> None:
    """The link in a row stays where it is."""
    browser.open(page)
    browser.find(".card h3 a").click()
    browser.wait(lambda: "name=api" in browser.driver.current_url and drawn(browser), "one rule")
    browser.run("document.querySelector('table a').focus()")
    limiter.hit({"ip": "192.0.2.77"})
    browser.wait(lambda: "711 allowed" in legend(browser), "an update")
    assert browser.run("return document.activeElement.textContent") == "api"


@pytest.mark.thorough
def test_rejections_appear_while_the_page_is_open(browser: Browser, page: str, limiter: Limiter) -> None:
    """The page updates itself, and keeps its charts."""
    browser.open(page)
    browser.wait(lambda: drawn(browser) == 3, "the charts")
    before = pixels(browser)
    browser.run("document.querySelector('.plot .uplot').id = 'same'")
    for _ in range(53):
        limiter.hit({"ip": "192.0.2.77"})
    browser.wait(lambda: legend(browser) == "713 allowed 334 rejected", "the new rejections")
    assert drawn(browser) == 4, "the rule in shadow mode has allowed requests, too"
    assert browser.all("#same"), "the chart was built anew"
    assert pixels(browser) != before


@pytest.mark.thorough
def test_an_update_shows_what_a_new_page_shows(
    browser: Browser, page: str, limiter: Limiter, clock: ManualClock
) -> None:
    """The script and the server write the same texts, in the same order. Scripts in names of clients do not run."""
    query = "?by=endpoint&clients=yes"
    limiter.clients.unban("api", {"ip": "192.0.2.66"})
    browser.open(page + query)
    clock.advance(5)
    log = limiter.traffic_log
    assert log is not None
    log.record(f"endpoint:{HOSTILE}new:rejected", n=5_000, at=NOON)
    log.record("rule:api:rejected", by=f"user={HOSTILE}", n=1_234, at=NOON)
    limiter.clients.ban("api", {"ip": "192.0.2.67"}, "1d")
    limiter.clients.remove_override("api", {"ip": "192.0.2.9"})
    for client in ("192.0.2.11", "192.0.2.10"):
        limiter.clients.override("api", {"ip": client}, "unlimited")
    changes = ("5,000", "1,234", "192.0.2.67", "192.0.2.10")  # an update may have read before the last of them
    browser.wait(lambda: all(map(browser.text("main").__contains__, changes)), "an update")
    clock.advance(5)
    browser.wait_for_text("12:30:40", "header")  # the next update finds the new rows
    elements = "[...document.querySelectorAll('main :is(a, input, [data-if], [data-unless])')]"
    facts = "[[...new URLSearchParams(each.search)].sort(), each.value, each.hidden]"
    state = f"return {elements}.map((each) => {facts})"
    updated = browser.text("main"), browser.run(state)
    assert browser.driver.title == "Rate limits"
    browser.open(page + query)
    assert updated == (browser.text("main"), browser.run(state))
    assert "5,000" in updated[0]
    assert "</script>\"'\\u202e\\u000a" in updated[0]
    assert browser.driver.title == "Rate limits"


@pytest.mark.thorough
def test_an_operator_lifts_a_ban_and_sets_limits(browser: Browser, limiter: Limiter) -> None:
    """The forms work in a browser, with the cookie and the origin that it sends."""
    with dashboard_site(limiter, writes=True) as url:
        browser.open(url + "?range=week")
        assert browser.violations() == []
        browser.find("#section-bans button").click()
        browser.wait_for_text("The ban of the client is lifted.", ".result")
        assert "No client is banned now." in browser.text("#section-bans")
        for name, value in (("client", "ip=192.0.2.8"), ("limits", "9/minute")):
            browser.find(f".change [name={name}]").send_keys(value)
        browser.find(".change button").click()
        browser.wait_for_text("The client has other limits now.", ".result")
        assert "ip=192.0.2.8" in browser.text("#section-overrides")
        assert "range=week" in browser.driver.current_url
        browser.open("about:blank")  # before the server ends
    assert {each.limits for each in limiter.clients.overrides()} == {"1000/minute", "9/minute"}


@pytest.mark.thorough
def test_updates_can_be_paused_and_fail(browser: Browser, limiter: Limiter) -> None:
    """The button works with the keyboard, and stops requests. The page shows that the server has ended."""
    with dashboard_site(limiter) as url:
        browser.open(url)
        reply = "failing ? new Response('', {status: 500}) : real(...all)"
        count = f"const real = fetch; window.fetch = (...all) => {{ asked += 1; return {reply}; }};"
        browser.run(f"window.asked = 0; window.failing = false; {count} document.querySelector('#pause').focus()")
        browser.press(Keys.ENTER)
        assert browser.text("#pause") == "Resume updates"
        asked = browser.run("return asked")
        browser.press(Keys.ENTER)
        browser.wait(lambda: browser.run("return asked") > asked, "a request after the pause")
        assert browser.text("#pause") == "Pause updates"
        for failing in (True, False):
            browser.run("window.failing = arguments[0]", failing)
            browser.wait(lambda shown=failing: browser.find("#failure").is_displayed() == shown, "the reply")
    browser.wait(lambda: browser.find("#failure").is_displayed(), "the failure")
    browser.problems()


@pytest.mark.thorough
def test_every_control_is_reached_with_the_keyboard(browser: Browser, page: str) -> None:
    """Tab reaches each link, field and button of the page, and each has a visible focus."""
    browser.open(page)
    browser.run("addEventListener('focusin', ({target: at}) => at.dataset.seen = at.matches(':focus-visible'))")
    browser.press(*[Keys.TAB] * 80)  # a field for a date has several stops
    missed = f"return [...document.querySelectorAll('{CONTROLS}')].filter((each) => each.dataset.seen !== 'true')"
    assert browser.run(f"{missed}.map((each) => each.outerHTML)") == []
