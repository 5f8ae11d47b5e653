"""A real Chromium without a window, for tests of pages. It reaches this machine only, and reports what goes wrong."""

import contextlib
import ipaddress
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from folders import SUPPORT
from selenium.common.exceptions import SessionNotCreatedException, WebDriverException
from selenium.webdriver import ActionChains, Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from servers import PATIENCE, program, wait_for

AXE = SUPPORT / "axe" / "axe.min.js"
SEVERE = {"serious", "critical"}
_ONLY_THIS_MACHINE = "MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1, EXCLUDE ::1"
_RUN_AXE = "const done = arguments[0]; axe.run(document, {resultTypes: ['violations']}).then(done, e => done(`${e}`));"
_MEDIA = "prefers-color-scheme"


class Browser:
    """The one page of a browser. Elements are named by CSS selectors.

    ``driver`` has the rest: https://www.selenium.dev/documentation/webdriver/
    """

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        """Open a page, and wait until it has loaded."""
        self.driver.get(url)

    def find(self, selector: str) -> WebElement:
        """Wait for the element, and return it."""
        self.wait(lambda: self.all(selector), f"{selector} at {self.driver.current_url}")
        return self.all(selector)[0]

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str = "body") -> str:
        """Wait for the element, and return the text that a user sees."""
        self.find(selector)
        return str(self.run("return document.querySelector(arguments[0]).innerText", selector))

    def wait(self, holds: Callable[[], object], what: str) -> None:
        """Wait until a check holds. The page may replace an element while the check reads it."""

        def check() -> object:
            with contextlib.suppress(WebDriverException):
                return holds()
            return False

        wait_for(check, what)

    def wait_for_text(self, text: str, selector: str = "body") -> None:
        """Wait until the element has the text."""
        self.wait(lambda: text in self.text(selector), f"{text!r} in {selector} at {self.driver.current_url}")

    def run(self, script: str, *values: object) -> Any:
        """Run JavaScript in the page, and return what it returns."""
        return self.driver.execute_script(script, *values)

    def press(self, *keys: str) -> None:
        """Press keys one after the other, as ``Keys.TAB``, on the element that has the focus."""
        ActionChains(self.driver, duration=0).send_keys(*keys).perform()

    def set_scheme(self, scheme: str) -> None:
        """Prefer ``"light"`` or ``"dark"``, as a setting of the operating system does."""
        self._command("Emulation.setEmulatedMedia", features=[{"name": _MEDIA, "value": scheme}])

    def set_size(self, width: int, height: int) -> None:
        """Set the size of the page, in CSS pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._command("Emulation.setDeviceMetricsOverride", **size)

    def violations(self) -> list[str]:
        """Return what axe-core finds in the page that is serious or critical, with the elements."""
        self.run(AXE.read_text("utf-8"))
        found = self.driver.execute_async_script(_RUN_AXE)
        assert isinstance(found, dict), found
        severe = [each for each in found["violations"] if each["impact"] in SEVERE]
        return [f"{each['id']}: {each['help']}: {[node['target'] for node in each['nodes']]}" for each in severe]

    def problems(self) -> list[str]:
        """Return the errors of the console, and the requests to other machines, since the last call."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        outside = [f"requested {url}" for event in events for url in urls_of(event) if is_outside(url)]
        return outside + [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def reset(self) -> None:
        """Leave the page, and forget what it stored, its problems, its size and its scheme."""
        self.open("about:blank")
        for command in ("Emulation.clearDeviceMetricsOverride", "Emulation.setEmulatedMedia"):
            self._command(command)
        for command in ("Network.clearBrowserCache", "Network.clearBrowserCookies"):
            self._command(command)
        self.problems()

    def _command(self, name: str, **values: object) -> None:
        self.driver.execute_cdp_cmd(name, values)


def urls_of(event: dict[str, Any]) -> Iterator[str]:
    """Yield the URL that an event of the network requests."""
    if event["method"] == "Network.requestWillBeSent":
        yield event["params"]["request"]["url"]
    elif event["method"] == "Network.webSocketCreated":
        yield event["params"]["url"]


def is_outside(url: str) -> bool:
    """Return whether a URL leads to another machine."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https", "ws", "wss"} or parts.hostname == "localhost":
        return False
    try:
        return not ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return True


@contextmanager
def chromium_running(folder: Path) -> Iterator[Browser]:
    """Run a Chromium with its own profile. It ends with all its processes."""
    service = Service(program("chromedriver", "chromium-driver"), popen_kw={"start_new_session": True})
    driver = _started(_options(folder), service)
    try:
        driver.set_page_load_timeout(PATIENCE)
        driver.set_script_timeout(PATIENCE)
        yield Browser(driver)
    finally:
        with contextlib.suppress(WebDriverException):
            driver.quit()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(service.process.pid, signal.SIGKILL)


def _started(options: ChromeOptions, service: Service) -> Chrome:
    """Start it, and once again when a busy machine needed too long."""
    try:
        return Chrome(options, service)
    except SessionNotCreatedException:
        return Chrome(options, service)


def _options(folder: Path) -> ChromeOptions:
    options = ChromeOptions()
    options.binary_location = program("chromium", "chromium")
    words = [f"--user-data-dir={folder}", f"--host-resolver-rules={_ONLY_THIS_MACHINE}", "--window-size=1280,900"]
    words += ["--headless=new", "--disable-dev-shm-usage", "--disable-gpu", "--disable-breakpad"]
    words += ["--no-sandbox"] if os.geteuid() == 0 else []
    for word in words:
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    options.add_experimental_option("perfLoggingPrefs", {"enableNetwork": True, "enablePage": False})
    return options
