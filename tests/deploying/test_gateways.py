"""``ratelimit-mw serve`` behind a real nginx, with the files of examples/gateways, even restarted under load."""

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from deployed import new_address
from folders import page_of
from gateway_site import FIRST, GatewaySite, site_of
from tables import each

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewaySite]:
    login = '[[rules]]\nname = "login"\nmatch = { path = "/login" }\nlimits = "1/day"\n'
    shed = '[[rules]]\nname = "closed"\nmatch = { path = "/closed" }\nkey = ["query:x"]\nlimits = "1/day"\n'
    lists = '[lists]\ndeny = { ip = ["127.99.0.0/16"] }\n'
    with site_of(tmp_path_factory.mktemp("nginx"), f"{FIRST}{login}{shed}{lists}") as running:
        yield running


def test_nginx_sends_a_429_with_the_headers_and_the_body(site: GatewaySite) -> None:
    """Allowed responses have the rate limit headers, and the rejection is that of the middleware."""
    client = new_address()
    allowed = [site.get(client=client) for _ in range(3)]
    assert [response.status_code for response in allowed] == [200] * 3
    assert [response.headers["x-ratelimit-remaining"] for response in allowed] == ["2", "1", "0"]
    assert allowed[0].headers["ratelimit-policy"] == '"api";q=3;w=86400'
    assert "retry-after" not in allowed[0].headers
    assert "x-ratelimit-status" not in allowed[0].headers
    rejected = site.get(client=client)
    assert rejected.status_code == 429
    assert int(rejected.headers["retry-after"]) > 86_000
    assert rejected.headers["content-type"] == "application/problem+json"
    assert rejected.headers["cache-control"] == "no-store"
    assert rejected.headers["ratelimit"].startswith('"api";r=0;t=')
    problem = rejected.json()
    assert (problem["status"], problem["violated-policies"]) == (429, ["api"])
    assert problem["detail"] == f"Retry after {rejected.headers['retry-after']} seconds."
    head = site.get(client=client, method="HEAD")
    assert (head.status_code, head.content) == (429, b"")
    assert site.get(client=client, method="POST", content=b"x" * 100_000).status_code == 429


def test_a_client_cannot_choose_its_key(site: GatewaySite) -> None:
    """nginx overwrites each header that the service reads."""
    client, named = new_address(), new_address()
    forged = {"X-Original-URI": "/free", "X-Original-Method": "OPTIONS", "X-Forwarded-For": named, "X-Real-IP": named}
    forged |= {"Forwarded": f"for={named}", "X_Original_URI": "/free", "X-RateLimit-Status": "200"}
    statuses = [site.get(client=client, headers=forged).status_code for _ in range(4)]
    assert statuses == [200, 200, 200, 429]
    assert site.get(client=named).headers["x-ratelimit-remaining"] == "2"


def send_target(site: GatewaySite, target: str, client: str = "127.0.0.1") -> tuple[int, str]:
    """Send a request with this target, and return the status and the body."""
    command = ["curl", "-s", "--request-target", target, "--interface", client, "-w", "%{stderr}%{http_code}"]
    done = subprocess.run([*command, f"http://127.0.0.1:{site.port}/"], capture_output=True, text=True, check=True)
    return int(done.stderr), done.stdout


@each("target", ["/login#/../x", "/login#/../health", "/?x=K#1"])
def test_nginx_sends_a_400_for_an_invalid_target(site: GatewaySite, target: str) -> None:
    """nginx would turn a 400 of the service into a 500."""
    status, body = send_target(site, target, new_address())
    assert (status, json.loads(body)["title"]) == (400, "Bad Request")


@each("target", ["http://shop.example?x=1", "http://shop.example", "//", "/?"])
def test_a_target_without_a_path_is_that_of_the_root(site: GatewaySite, target: str) -> None:
    """nginx passes `?x=1` on for `GET http://shop.example?x=1`. It is limited as `/?x=1`, and no error."""
    client = new_address()
    command = ["curl", "-s", "--request-target", target, "--interface", client, "-w", "%{http_code}"]
    command += ["-o", "/dev/null", f"http://127.0.0.1:{site.port}/"]
    statuses = [subprocess.check_output(command, text=True) for _ in range(4)]
    assert "500" not in statuses
    assert statuses[3] == "429"


def test_other_statuses_stay_what_they_are(site: GatewaySite) -> None:
    """A 403 of the application is its own, and the deny list is a 403."""
    forbidden = site.get("/forbidden", client=new_address())
    assert (forbidden.status_code, forbidden.json()["path"]) == (403, "/forbidden")
    denied = site.get(client="127.99.0.1")
    assert (denied.status_code, denied.json()["title"]) == (403, "Forbidden")


def test_the_application_receives_the_whole_request(site: GatewaySite) -> None:
    """The service reads no body, and the application gets it."""
    body = b"x" * 50_000
    response = site.get("/upload", client=new_address(), method="POST", content=body)
    assert response.json() == {"method": "POST", "path": "/upload", "size": 50_000}


def test_the_service_is_not_reachable_through_nginx(site: GatewaySite) -> None:
    """A client that asks for the paths of the service reaches the application, or gets a 404."""
    assert site.get("/_ratelimit", client=new_address()).status_code == 404
    assert site.get("/v1/keys", client=new_address()).json()["path"] == "/v1/keys"


def test_a_dead_service_rejects_all_requests(tmp_path: Path) -> None:
    """The file as it is fails closed. Each request gets a 500 until the service runs again."""
    with site_of(tmp_path, FIRST) as site:
        assert site.get().status_code == 200
        site.stop_service()
        assert site.get().status_code == 500
        site.start_service()
        assert site.get().status_code == 200


OPEN = """proxy_pass http://ratelimit/auth;
            error_page 502 504 = @allowed;"""
ALLOWED = """location @allowed {
            return 204;
        }

        location @rejected {"""


def test_a_dead_service_allows_all_requests_where_you_say_so(tmp_path: Path) -> None:
    """With the lines of the documentation nginx fails open, and rejections are as before."""
    page = page_of("gateways").read_text()
    assert all(line.strip() in page for line in f"{OPEN}\n{ALLOWED}".splitlines()[1:4])
    lines = [("proxy_pass http://ratelimit/auth;", OPEN), ("location @rejected {", ALLOWED)]
    with site_of(tmp_path, FIRST, lines=lines) as site:
        assert [site.get().status_code for _ in range(4)] == [200, 200, 200, 429]
        site.stop_service()
        assert [site.get().status_code for _ in range(5)] == [200] * 5


USER = """proxy_pass http://ratelimit/auth;
            proxy_set_header X-Forwarded-User $remote_user;"""
PASSWORD = """auth_basic "shop";
            auth_basic_user_file users;
            auth_request /_ratelimit;"""


def test_users_are_limited_after_the_limit_of_nginx_and_the_password(tmp_path: Path) -> None:
    """nginx checks limit_req, then the password, then the service. Only the last one counts by user."""
    (tmp_path / "users").write_text("ann:{PLAIN}a\nbob:{PLAIN}b\n")
    lines = [
        ("proxy_pass http://ratelimit/auth;", USER),
        ("auth_request /_ratelimit;", PASSWORD),
        ("rate=50r/s", "rate=1r/m"),
        ("burst=100", "burst=6"),
    ]
    rules = '[[rules]]\nname = "users"\nkey = ["header:x-forwarded-user"]\nlimits = "3/day"\n'
    with site_of(tmp_path, rules, lines=lines) as site:

        def ask(user: str, password: str) -> int:
            credentials = base64.b64encode(f"{user}:{password}".encode()).decode()
            headers = {"Authorization": f"Basic {credentials}", "X-Forwarded-User": "bob"}
            return site.get(headers=headers).status_code

        assert [ask("bob", "wrong") for _ in range(2)] == [401] * 2
        assert [ask("ann", "a") for _ in range(4)] == [200, 200, 200, 429]
        first = site.get("/", headers={"Authorization": "Basic " + base64.b64encode(b"bob:b").decode()})
        assert first.headers["x-ratelimit-remaining"] == "2"
        limited = site.get()
        assert limited.status_code == 429
        assert "x-ratelimit-limit" not in limited.headers
        shown = site.clients()
        left = {key["client"].rpartition("=")[2]: key["remaining"] for key in shown}
        assert left == {"ann": 0, "bob": 2}


INDEX = "root www; index index.html; # not 127.0.0.1:8000"
FALLBACK = "root www; try_files $uri /index.html; # not 127.0.0.1:8000"
MISSING = "root www; error_page 404 /index.html; # not 127.0.0.1:8000"


@pytest.mark.parametrize(
    ("directive", "path"),
    [
        pytest.param(INDEX, "/", marks=pytest.mark.thorough),
        (FALLBACK, "/none"),
        pytest.param(MISSING, "/none", marks=pytest.mark.thorough),
    ],
)
def test_a_request_that_nginx_redirects_internally_counts_once(directive: str, path: str, tmp_path: Path) -> None:
    """The response has the headers of the one decision."""
    tmp_path.chmod(0o755)
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "index.html").write_text("found")
    root = directive.replace("www", str(tmp_path / "www"))
    with site_of(tmp_path, FIRST, lines=[("proxy_pass http://127.0.0.1:8000;", root)]) as site:
        allowed = [site.get(path) for _ in range(3)]
        assert [response.text for response in allowed] == ["found"] * 3
        assert [response.headers["x-ratelimit-remaining"] for response in allowed] == ["2", "1", "0"]
        assert {response.headers["ratelimit-policy"] for response in allowed} == {'"api";q=3;w=86400'}
        rejected = site.get(path)
        assert (rejected.status_code, rejected.json()["status"]) == (429, 429)
        assert rejected.headers["x-ratelimit-remaining"] == "0"


def test_satisfy_any_of_a_server_does_not_open_a_password(tmp_path: Path) -> None:
    """A request within the limit still needs the password."""
    (tmp_path / "users").write_text("ann:{PLAIN}a\n")
    lines = [("server_name _;", 'server_name _; satisfy any; auth_basic "shop"; auth_basic_user_file users;')]
    with site_of(tmp_path, FIRST, lines=lines) as site:
        assert [site.get().status_code for _ in range(2)] == [401] * 2
        headers = {"Authorization": "Basic " + base64.b64encode(b"ann:a").decode()}
        assert [site.get(headers=headers).status_code for _ in range(4)] == [200, 200, 200, 429]


def test_caddy_sends_a_429_with_the_headers_and_the_body(tmp_path: Path) -> None:
    """With the file of the example. A client cannot choose its path or its IP address, or fill the log."""
    login = '[[rules]]\nname = "login"\nmatch = { path = "/login" }\nlimits = "1/day"\n'
    with site_of(tmp_path, f"{FIRST}{login}", gateway="caddy") as site:
        forged = {"X-Forwarded-Uri": "/free", "X-Forwarded-Method": "PUT", "X-Forwarded-For": "203.0.113.9"}
        allowed, rejected = (site.get("/login?x=1", headers=forged) for _ in range(2))
        assert (allowed.status_code, allowed.json()["path"], allowed.headers["x-ratelimit-limit"]) == (
            200,
            "/login",
            "1",
        )
        assert (rejected.status_code, rejected.json()["violated-policies"]) == (429, ["login"])
        assert int(rejected.headers["retry-after"]) > 86_000
        assert site.get("/login", headers={"Connection": "Upgrade", "Upgrade": "websocket"}).status_code == 429
        assert "upgrade" not in (tmp_path / "servers.log").read_text()
        assert send_target(site, "/?x=K#1")[0] == 400
        assert site.get("/forbidden").status_code == 403
        assert site.get("/v1/keys").json()["path"] == "/v1/keys"
        site.stop_service()
        assert site.get().status_code == 502
