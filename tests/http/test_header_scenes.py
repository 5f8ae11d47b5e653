"""Each recipe of proxies.md finds the client, with headers as the provider sends them and a forged one."""

import re
import tomllib
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from calls import OK, http_scope, send_bare
from folders import ROOT, page_of
from tables import each
from wsgi_calls import Served, listing

from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.wsgi import RateLimitMiddleware as WSGIMiddleware

PAGE = page_of("proxies").read_text()
RECIPES = {
    heading: tomllib.loads(block[1])
    for heading, text in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    if (block := re.search(r"```toml\n(.*?)```", text, re.DOTALL))
}
CLIENT, CLIENT6, FORGED, OTHER = "198.51.100.7", "2001:db8:5:6:7::8", "192.0.2.66", "203.0.113.99"
NETWORK6 = "2001:db8:5:6::/64"
Headers = list[tuple[str, str]]


class Scene(NamedTuple):
    """A request as the application receives it, and the client that it must be counted under."""

    recipe: str
    peer: str
    headers: Headers
    client: str | None  # None: invalid


def xff(*lines: str) -> Headers:
    return [("X-Forwarded-For", line) for line in lines]


def one(name: str, *values: str) -> Headers:
    return [*((name, value) for value in values), *xff(f"{FORGED}, 10.0.1.9")]


SCENES = [
    # Cloudflare overwrites its header. It appends its peer to X-Forwarded-For, which is not read here.
    Scene("Cloudflare", "172.64.3.4", one("CF-Connecting-IP", CLIENT), CLIENT),
    Scene("Cloudflare", "2606:4700::1", one("CF-Connecting-IP", CLIENT6), NETWORK6),
    Scene("Cloudflare", "172.64.3.4", [], "172.64.3.4"),
    Scene("Cloudflare", "172.64.3.4", one("CF-Connecting-IP", FORGED, CLIENT), None),
    Scene("Cloudflare", CLIENT, one("CF-Connecting-IP", FORGED), CLIENT),
    # The ALB appends to the last line of the client, and may add the client's port.
    Scene("AWS Application Load Balancer", "10.0.1.9", xff(CLIENT), CLIENT),
    Scene("AWS Application Load Balancer", "10.0.2.9", xff(CLIENT6), NETWORK6),
    Scene("AWS Application Load Balancer", "10.0.1.9", xff(f"{FORGED}, {CLIENT}"), CLIENT),
    Scene("AWS Application Load Balancer", "10.0.1.9", xff(FORGED, CLIENT), CLIENT),
    Scene("AWS Application Load Balancer", "10.0.1.9", xff(f"{FORGED},{CLIENT}:4711"), CLIENT),
    Scene("AWS Application Load Balancer", "10.0.1.9", [], "10.0.1.9"),
    Scene("AWS Application Load Balancer", CLIENT, xff(FORGED), CLIENT),
    # The NLB keeps the peer and the bytes of the request.
    Scene("AWS Network Load Balancer", CLIENT, [], CLIENT),
    Scene("AWS Network Load Balancer", CLIENT, xff(FORGED), CLIENT),
    # CloudFront overwrites its header and writes an IPv6 address without brackets. The ALB appends CloudFront.
    Scene("Amazon CloudFront", "10.0.1.9", one("CloudFront-Viewer-Address", f"{CLIENT}:46532"), CLIENT),
    Scene("Amazon CloudFront", "10.0.1.9", one("CloudFront-Viewer-Address", f"{CLIENT6}:443"), NETWORK6),
    Scene("Amazon CloudFront", CLIENT, one("CloudFront-Viewer-Address", f"{FORGED}:1"), CLIENT),
    Scene("Amazon API Gateway", "10.0.2.9", one("X-Client-IP", CLIENT), CLIENT),
    Scene("Amazon API Gateway", "10.0.2.9", one("X-Client-IP", f"{FORGED},{CLIENT}"), None),
    Scene("Amazon API Gateway", CLIENT, one("X-Client-IP", FORGED), CLIENT),
    # The Google load balancer appends the client and its own address.
    Scene("Google Cloud load balancer", "35.191.0.4", xff(f"{CLIENT},203.0.113.80"), CLIENT),
    Scene("Google Cloud load balancer", "130.211.1.4", xff(f"{FORGED},{CLIENT},203.0.113.80"), CLIENT),
    Scene("Google Cloud load balancer", "35.191.0.4", xff(FORGED, f"{CLIENT},203.0.113.80"), CLIENT),
    Scene("Google Cloud load balancer", "35.191.0.4", xff(f"{FORGED},203.0.113.80,{CLIENT},203.0.113.80"), CLIENT),
    Scene("Google Cloud load balancer", CLIENT, xff(FORGED), CLIENT),
    # Front Door appends the address of the connection. A forged header chooses X-Azure-ClientIP only.
    Scene("Azure Front Door", "147.243.1.2", [*xff(CLIENT), ("X-Azure-ClientIP", CLIENT)], CLIENT),
    Scene("Azure Front Door", "147.243.1.2", [*xff(f"{FORGED}, {CLIENT}"), ("X-Azure-ClientIP", FORGED)], CLIENT),
    Scene("Azure Front Door", "147.243.1.2", xff(f"{FORGED}, {CLIENT}, 147.243.9.9:45498"), CLIENT),
    Scene("Azure Front Door", CLIENT, xff(FORGED), CLIENT),
    # Fly Proxy appends the client and its own address to X-Forwarded-For.
    Scene("Fly.io", "172.16.3.2", one("Fly-Client-IP", CLIENT), CLIENT),
    Scene("Fly.io", "172.16.3.2", one("Fly-Client-IP", CLIENT6), NETWORK6),
    Scene("Fly.io", "fdaa:0:1::3", one("Fly-Client-IP", FORGED), "fdaa:0:1::/64"),
    Scene("Heroku", "10.1.2.3", xff(CLIENT), CLIENT),
    Scene("Heroku", "10.1.2.3", xff(f"{FORGED},{CLIENT}"), CLIENT),
    Scene("Heroku", "10.1.2.3", xff(FORGED, CLIENT), CLIENT),
]


@cache
def app_denying(build: Any, app: Any, recipe: str, client: str) -> Any:
    """Return an application with the settings of a recipe and a deny list."""
    return build(app, settings={**RECIPES[recipe], "lists": {"deny": {"ip": [client]}}})


def under_asgi(scene: Scene, client: str) -> int:
    app = app_denying(RateLimitMiddleware, OK, scene.recipe, client)
    headers = [(name.lower().encode(), value.encode()) for name, value in scene.headers]
    return int(send_bare(app, http_scope(client=(scene.peer, 1), headers=headers))[0]["status"])


def under_wsgi(scene: Scene, client: str) -> int:
    environ: dict[str, str] = {"REMOTE_ADDR": scene.peer}
    for name, value in scene.headers:  # servers join the lines of a header
        field = f"HTTP_{name.upper().replace('-', '_')}"
        environ[field] = f"{environ[field]},{value}" if field in environ else value
    return int(Served(app_denying(WSGIMiddleware, listing, scene.recipe, client), **environ).status[:3])


@each("scene", SCENES)
@each("status", [under_asgi, under_wsgi])
def test_the_recipe_finds_the_client(scene: Scene, status: Callable[[Scene, str], int]) -> None:
    """A deny list of the client rejects the request. One of another client rejects only what is invalid."""
    assert status(scene, scene.client or OTHER) == 403
    assert status(scene, OTHER) == (200 if scene.client else 403)


def test_every_recipe_has_its_scenes() -> None:
    """Each settings block of the page is played with and without a forged header."""
    assert {scene.recipe for scene in SCENES} == set(RECIPES)
    for recipe in RECIPES:
        assert any(FORGED in value for scene in SCENES if scene.recipe == recipe for _, value in scene.headers)


def test_nginx_and_the_page_trust_the_same_networks() -> None:
    """The file for nginx in front of the application has Cloudflare's networks, too."""
    file = (ROOT / "examples/deploying/cloudflare.conf").read_text()
    assert re.findall(r"^set_real_ip_from (.+);$", file, re.MULTILINE) == RECIPES["Cloudflare"]["trusted_proxies"]
