"""``ratelimit-mw serve --gateway``: the requests of nginx, Traefik and Caddy, replayed as they send them.

``tests/differential`` sends hostile targets through real gateways.
"""

import logging
from typing import Any

import httpx
import pytest
import yaml
from decision_service import API, GATEWAY_FILES, MAIL, Asked
from tables import each, expect_error

from ratelimit_mw import ConfigError, load_settings
from ratelimit_mw.cli.serve.gateway import path_of_target
from ratelimit_mw.http.warnings import warn

NGINX, CADDY, TRAEFIK = ({"gateway": name} for name in ("nginx", "caddy", "traefik"))
LOGIN = {
    "name": "login",
    "limits": "1/minute",
    "match": {"path": "/login", "methods": ["POST"], "host": "shop.example"},
}
PROBLEM = "https://iana.org/assignments/http-problem-types#quota-exceeded"


def test_nginx_reads_the_status_from_a_header() -> None:
    """nginx knows 2xx, 401 and 403 only, and drops the body. The body is JSON, whatever the client accepts."""
    asked = Asked(API, service=NGINX)
    assert [asked.nginx().status_code for _ in range(3)] == [204] * 3
    rejected = asked.nginx(accept="text/html")
    assert rejected.status_code == 403
    assert rejected.headers["x-ratelimit-status"] == "429"
    assert rejected.headers["retry-after"] == "60"
    assert rejected.headers["ratelimit"] == '"api";r=0;t=60'
    problem = httpx.Response(429, text=rejected.headers["x-ratelimit-body"]).json()
    assert (problem["type"], problem["violated-policies"]) == (PROBLEM, ["api"])
    assert asked.nginx(client="192.0.2.8").headers["x-ratelimit-remaining"] == "2"


@each("service", [CADDY, TRAEFIK])
def test_caddy_and_traefik_pass_the_response_on(service: dict[str, Any]) -> None:
    """The client receives the 429 with its headers, and a body of the form that it accepts."""
    asked = Asked(API, service=service)
    assert [asked.forward().status_code for _ in range(3)] == [204] * 3
    rejected = asked.forward(accept="text/html")
    assert (rejected.status_code, rejected.headers["retry-after"]) == (429, "60")
    assert rejected.headers["content-type"] == "text/html; charset=utf-8"
    assert "x-ratelimit-status" not in rejected.headers
    head = asked.forward("HEAD")
    assert (head.status_code, head.content, head.headers["content-length"]) == (429, b"", "0")


@each("service", [CADDY, TRAEFIK])
def test_rules_see_the_original_request(service: dict[str, Any]) -> None:
    """The method, the path and the host are those of the client's request."""
    asked = Asked(LOGIN, service=service)
    assert [asked.forward("POST", "/login?next=/").status_code for _ in range(2)] == [204, 429]
    assert asked.forward("GET", "/login").status_code == 204
    assert asked.forward("POST", "/logout").status_code == 204
    other = {"x_forwarded_host": "other.example"}
    assert asked.forward("POST", "/login", **other).status_code == 204


def test_nginx_sends_the_host_as_it_is() -> None:
    """With `proxy_set_header Host $host`, rules of a host apply."""
    asked = Asked(LOGIN, service=NGINX)
    assert [asked.nginx("POST", "/login", host="shop.example").status_code for _ in range(2)] == [204, 403]
    assert asked.nginx("POST", "/login", host="other.example").status_code == 204


@each(
    ("target", "path"),
    [
        ("/login", "/login"),
        ("//login?x=/y", "//login"),
        ("/a/../login", "/a/../login"),
        ("/a/%2e%2e/login", "/a/../login"),
        ("/a%2F..%2Flogin", "/a%2F..%2Flogin"),
        ("/a%2Fb", "/a%2Fb"),
        ("/a%252Fb", "/a%2Fb"),
        ("/login%23/../x", "/login#/../x"),
        ("/a b", "/a b"),
        ("/%C3%A9", "/é"),
        ("/é", "/é"),
        ("*", "*"),
        ("?x=/login", "/"),
    ],
)
def test_a_path_stays_as_it_was_sent(target: str, path: str) -> None:
    """The gateway, the server and the application may resolve dots or not, so rules read the path in all ways."""
    assert path_of_target(target) == path


SPELLINGS = [
    *("/x/../login", "/x/%2e%2E/login", "//login", "/login/", "/./login", "/../../login", "/a//../login"),
    *("/login%23/../x", "/login%3f/../x", "/login%00/../x", "/x/..%2flogin", "/x\\..\\login", "/login%0a"),
    "/login;/../x/..%5clogin",
]


@each("path", SPELLINGS)
def test_limits_hold_for_all_readings_of_a_path(path: str) -> None:
    """The second spelling of a path finds the count of the first."""
    asked = Asked({**LOGIN, "match": {"path": "/login"}}, service=NGINX)
    assert [asked.nginx(uri=each).status_code for each in ("/login", path)] == [204, 403]


@each("path", ["/health/../x", "/x/../health", "/health%23/../x", "/static/../x", "/static%2f..%2fx"])
def test_a_path_is_exempt_in_all_its_readings_only(path: str) -> None:
    """One reading that is not exempt is enough for the rules to apply."""
    asked = Asked(API, exempt=["/health", "/static/**"], service=NGINX)
    assert "x-ratelimit-limit" in asked.nginx(uri=path).headers
    assert "x-ratelimit-limit" not in asked.nginx(uri="/health").headers


INVALID_TARGETS = [
    *("/login#/../x", "/?api_key=K#1", "/login\x01", "/login\x7f", "/lo\tgin", "/login /../x", "http:/x", "login"),
]
INVALID_NAMES = ["SCRIPT_NAME", "Daphne-Root-Path", "X_API_Key", "x-tenant_id"]


@each("service", [NGINX, CADDY, TRAEFIK])
def test_a_request_that_no_browser_sends_is_a_400_of_the_client(
    service: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """nginx would turn a 400 into a 500, so it gets a 403 with the status. The log stays for faults of the gateway.

    Gunicorn and Daphne remove a prefix from the path, and other servers read `x_api_key` as `x-api-key`.
    """
    rule = {**API, "key": ["header:x-api-key", "header:x-tenant-id", "cookie:x-other"], "match": {"path": "/login"}}
    asked = Asked(rule, exempt=["/**"], service=service)
    ask = asked.nginx if service is NGINX else asked.forward
    names = [(name, f"expected no header {name.lower()!r}") for name in INVALID_NAMES]
    for response, expected in (
        *((ask(uri=target), "expected a path") for target in INVALID_TARGETS),
        *((ask(uri="/x/login", raw={name: "/x"}), text) for name, text in names),
    ):
        assert response.status_code == (403 if service is NGINX else 400)
        problem = response.json()
        assert (problem["status"], problem["title"]) == (400, "Bad Request")
        assert problem["detail"].startswith(expected)
        if service is NGINX:
            assert response.headers["x-ratelimit-status"] == "400"
            assert response.headers["x-ratelimit-body"] == response.text.strip()
    assert ask(uri="/x", raw={"X-API-Key": "a", "X-Tenant-ID": "b", "X_Other": "c"}).status_code == 204
    assert not caplog.records


def test_a_request_that_no_trusted_gateway_sends_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """Only a trusted proxy may name a client and a path. nginx responds to others with 500, and the log says why."""
    asked = Asked(API, service=NGINX)
    asked.peer = "198.51.100.7"
    with caplog.at_level(logging.WARNING, "ratelimit_mw"):
        responses = [asked.nginx() for _ in range(3)]
    assert {response.status_code for response in responses} == {400}
    assert responses[0].json() == {"error": ERROR_OF_PEER}
    assert [record.message for record in caplog.records] == [f"a request to /auth was not decided: {ERROR_OF_PEER}"]


ERROR_OF_PEER = "the gateway 198.51.100.7 is not one of trusted_proxies. Add it to trusted_proxies"


METHOD, URI, CLIENT_IP = ("x-original-method", "GET"), ("x-original-uri", "/"), ("x-forwarded-for", "192.0.2.7")


@each(
    ("headers", "message"),
    [
        ([CLIENT_IP], "X-Original-Method is missing"),
        ([CLIENT_IP, METHOD], "X-Original-Uri is missing"),
        ([CLIENT_IP, METHOD, ("x-original-uri", "")], "X-Original-Uri is missing"),
        ([CLIENT_IP, METHOD, URI, URI], "X-Original-Uri was sent 2 times"),
        ([CLIENT_IP, ("x-forwarded-method", "GET"), ("x-forwarded-uri", "/")], "X-Original-Method is missing"),
        # Otherwise all clients would share the limits of the gateway's own address.
        ([METHOD, URI], "the header X-Forwarded-For is missing. The gateway must set it"),
        ([METHOD, URI, ("x-forwarded-for", "")], "the header X-Forwarded-For is missing. The gateway must set it"),
    ],
)
def test_a_gateway_must_send_its_headers(headers: list[tuple[str, str]], message: str) -> None:
    """Without them no request is allowed. The settings may name another header for the client."""
    response = Asked(API, service=NGINX).ask("GET", "/auth", headers=headers)
    assert (response.status_code, message in response.json()["error"]) == (400, True)
    asked = Asked(API, forwarded_header="cf-connecting-ip", service=NGINX)
    own = [METHOD, URI, ("cf-connecting-ip", "192.0.2.7")]
    assert asked.ask("GET", "/auth", headers=own).status_code == 204


def test_the_headers_of_another_gateway_change_nothing() -> None:
    """A client can send them, and this gateway does not overwrite them."""
    asked = Asked({**API, "key": ["path"]}, service=NGINX)
    asked.nginx(uri="/a", x_forwarded_uri="/b", x_original_url="/c", forwarded="for=203.0.113.9")
    (key,) = asked.limiter.clients.inspect().decisions
    assert key.client == "path=/a"


def test_a_user_is_read_from_the_header_of_the_gateway() -> None:
    """An empty header names no user."""
    asked = Asked({**API, "key": ["header:x-user|ip"]}, service=NGINX)
    for _ in range(3):
        asked.nginx(x_user="ann")
    assert [asked.nginx(x_user=user).status_code for user in ("ann", "bob", "")] == [403, 204, 204]


def test_bytes_of_a_path_are_read_as_utf8() -> None:
    """nginx passes bytes on that a client did not escape."""
    asked = Asked({**LOGIN, "match": {"path": "/é"}}, service=NGINX)
    headers = [(b"x-original-method", b"GET"), (b"x-forwarded-for", b"192.0.2.7")]
    paths = ("/é".encode(), b"/%C3%A9", b"/%c3%a9?x")
    statuses = [asked.ask("GET", "/auth", headers=[*headers, (b"x-original-uri", path)]).status_code for path in paths]
    assert statuses == [204, 403, 403]


@each(
    ("rule", "message"),
    [
        ({"limits": "2 concurrent"}, "the service sees no response"),
        (
            {"limits": "adaptive 1..9/s", "tune": "health", "target": 1},
            "so it has no use for concurrent limits, target and",
        ),
        ({"count_when": {"status": [401]}}, "the service sees no response"),
        ({"per": {"plan": {"pro": "9/minute"}}, "limits": "5/minute"}, "uses the feature 'plan', which a gateway"),
        ({"key": ["email"]}, "uses the feature 'email', which a gateway"),
        ({"key": ["email:form:name"]}, "uses the feature 'email:form:name', which a gateway"),
        ({"key": ["json:id"]}, "uses the feature 'json:id', which a gateway"),
        ({"cost": "json:max_tokens"}, "uses the feature 'json:max_tokens', which a gateway"),
        ({"key": ["endpoint", "ip"]}, "uses the feature 'endpoint', which a gateway does not send. Count all paths"),
        ({"key": ["user"]}, "uses the feature 'user'. Let the gateway name the user in a header"),
        ({"match": {"view": "shop.login"}}, "the views of this application have no names"),
    ],
)
def test_a_rule_that_a_gateway_cannot_ask_about_stops_the_start(rule: dict[str, Any], message: str) -> None:
    """No limit goes missing silently."""
    with pytest.raises(ConfigError, match=r"rule ['\"]api") as raised:
        Asked({**API, **rule}, service=NGINX)
    assert message in str(raised.value)


@each(
    ("service", "dropped"),
    [
        (NGINX, ["accept", "content-length", "expect", "forwarded", "te", "x-original-uri", "x_api_key", "x.key"]),
        (CADDY, ["content-length", "connection", "trailer", "proxy-authorization", "x-forwarded-uri"]),
        (TRAEFIK, ["content-length", "transfer-encoding", "keep-alive", "x-forwarded-host", "x-forwarded-method"]),
    ],
)
def test_a_header_that_a_gateway_drops_stops_the_start(service: dict[str, Any], dropped: list[str]) -> None:
    """A rule, a list and a region by it would never apply, in silence."""
    expect_error("lists: uses the feature 'user'", Asked, API, lists={"deny": {"user": ["eve"]}}, service=service)
    for name in dropped:
        deny = {"deny": {f"header:{name}": ["x"]}}
        region = f"region_header: .* does not send the header '{name}'"
        expect_error(region, Asked, API, region_header=name, service=service)
        for settings in ({"key": [f"header:{name.title()}"]}, {"match": {f"header:{name}": ["x"]}}):
            problem = f"'header:{name}', which a gateway does not send"
            expect_error(problem, Asked, {**API, **settings}, service=service)
        expect_error(f"lists: uses the feature 'header:{name}'", Asked, API, lists=deny, service=service)


def test_other_headers_of_a_client_arrive() -> None:
    """Also those that another gateway drops."""
    for service in (CADDY, TRAEFIK):
        Asked({**API, "key": ["header:x_api_key"]}, service=service)
        asked = Asked({**API, "key": ["header:accept", "header:host"]}, service=service)
        assert [asked.forward(accept=kind).headers["x-ratelimit-remaining"] for kind in "aab"] == ["2", "1", "2"]
    asked = Asked({**API, "key": ["header:x-forwarded-uri"]}, service=NGINX)
    assert [asked.nginx(x_forwarded_uri=text).headers["x-ratelimit-remaining"] for text in "aab"] == ["2", "1", "2"]


def test_a_gateway_that_names_no_user_is_noted(caplog: pytest.LogCaptureFixture) -> None:
    """A rule by "user|ip" counts by IP address then. The log has what to write."""
    warn.cache_clear()
    assert Asked({**API, "key": ["user|ip"]}, service=NGINX).nginx().status_code == 204
    assert [text for text in caplog.messages if "the rule 'api' counts no user" in text and "header:x-user" in text]


def test_rules_for_checks_do_not_disturb_a_gateway() -> None:
    """A rule with `view = ""` may need features that no gateway sends."""
    asked = Asked(API, MAIL, {**MAIL, "name": "jobs", "limits": "2 concurrent"}, service=NGINX)
    assert asked.nginx().status_code == 204
    assert asked.check(rule="mail", features={"email": "ann@example.com"})["allowed"]


def test_the_example_files_agree() -> None:
    """All ask at /auth of the port that the service has by default, and Traefik trusts no header of a client."""
    load_settings(GATEWAY_FILES / "ratelimit.toml")
    forward = yaml.safe_load((GATEWAY_FILES / "traefik.yml").read_text())["http"]["middlewares"]["ratelimit"]
    address = "127.0.0.1:8429"
    assert forward == {"forwardAuth": {"address": f"http://{address}/auth", "trustForwardHeader": False}}
    caddy, nginx = ((GATEWAY_FILES / name).read_text() for name in ("Caddyfile", "nginx.conf"))
    assert f"reverse_proxy {address} {{" in caddy
    assert f"server {address} max_fails=0;" in nginx
