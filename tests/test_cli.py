"""What the command promises: check, explain and schema; exit codes, streams, and no traceback for anybody."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

import ratelimit_mw
from ratelimit_mw import stores
from ratelimit_mw.cli import commands, main
from ratelimit_mw.errors import MissingExtraError
from ratelimit_mw.paths import pattern_matches
from ratelimit_mw.plan import UnknownKeyError
from ratelimit_mw.ruleset import RuleSet
from ratelimit_mw.settings import load_settings, schema

EXAMPLE = Path(__file__).parent.parent / "examples" / "ratelimit.toml"
PROGRAM = Path(sys.executable).parent / "ratelimit-mw"


def run(*args: object, **options: Any) -> Result:
    """The command in this process. A traceback is a failure of the test, not a result."""
    result = CliRunner().invoke(commands(), [str(arg) for arg in args], catch_exceptions=False, **options)
    assert "Traceback" not in result.output
    return result


def start(*args: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """The installed command, as its users start it."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 60, **options}
    return subprocess.run([str(PROGRAM), *map(str, args)], check=False, **options)


@pytest.fixture
def settings(tmp_path: Path) -> Any:
    """Writes a settings file, returns its path."""

    def write(text: str, name: str = "ratelimit.toml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


RULES = """
[[rules]]
name = "login"
match = { path = "/login", methods = ["POST"] }
key = ["email", "ip"]
limits = ["5/minute", "20/hour"]
count_when = { status = [401, 403] }

[[rules]]
name = "api"
match = { path = ["/api/**", "/v2/**"], host = "*.example.com", region = ["DE", "AT"] }
key = ["user|ip"]
limits = ["100/minute burst 20"]
algorithm = { name = "token-bucket", refill = "interval" }
mode = "shadow"
per_key = { alice = "1000/minute" }
per = { plan = { free = "10/minute", pro = "500/minute", a = "1/minute", b = "2/minute" } }

[[rules]]
key = []
match = { methods = ["GET"] }
limits = "1000/second"
"""


# -- check ---------------------------------------------------------------------------------------------------


def test_check_shows_every_rule(settings: Any) -> None:
    """A good file is shown rule by rule: what it matches, counts by, allows, how, and at which cost."""
    result = run("check", settings(RULES))
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "login POST /login email + ip 5/minute sliding-window-counter enforce 1 if 401 or 403" in lines
    assert "rule-3 GET/HEAD one for everybody 1000/second sliding-window-counter enforce 1" in lines
    assert "api /api/** or /v2/** user|ip 100/minute burst 20 token-bucket shadow 1" in lines


def test_check_shows_limits_of_some_clients(settings: Any) -> None:
    """Limits by key and by feature stand under the rule's own, the first few of them."""
    tables = "per_key = { alice = '9/s' }\nper = { plan = { free = '1/s', pro = '5/s; 9/m', a = '1/s', b = '1/s' } }"
    lines = run("check", settings(f"[[rules]]\nlimits = '2/s'\n{tables}")).stdout.splitlines()
    shown = [" ".join(line.split()) for line in lines[4:9]]
    assert shown == [
        "key alice: 9/second",
        "plan free: 1/second",
        "plan pro: 5/second; 9/minute",
        "plan a: 1/second",
        "and 1 more",
    ]


def test_check_says_what_the_application_supplies(settings: Any) -> None:
    """Features that no request shows by itself are named, each with the rules that need it."""
    notes = json.loads(run("check", settings(RULES), "--json").stdout)["needs_from_application"]
    assert notes == {"email": ["login"], "user": ["api"], "region": ["api"], "plan": ["api"]}


def test_check_knows_what_requests_show(settings: Any) -> None:
    """Addresses, headers, cookies and query fields are there without the application's help."""
    path = settings(
        '[[rules]]\nname = "a"\nlimits = "5/s"\n'
        'key = ["ip", "method", "path", "host", "endpoint", "header:x-a", "cookie:a", "query:a"]'
    )
    assert json.loads(run("check", path, "--json").stdout)["needs_from_application"] == {}


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("", "there are no rules: nothing is limited"),
        ('[[rules]]\nlimits = "5/minute"', "called by its place"),
        ('[[rules]]\nname = "a"\nlimits = "5/minute"', "counts in each process by itself"),
        (
            '[[rules]]\nname = "a"\nlimits = ["100/minute", "50/hour"]',
            "a: 100/minute hardly ever refuses, 50/hour is reached first",
        ),
        ('[[rules]]\nname = "a"\nkey = "email"\nlimits = "5/s"', "has to supply the feature email, for a"),
    ],
)
def test_check_notes(settings: Any, text: str, note: str) -> None:
    """What a person wants to know about a file that is right is said under the table."""
    result = run("check", settings(text))
    assert result.exit_code == 0
    assert note in result.stdout


def test_check_keeps_quiet_about_limits_that_both_count(settings: Any) -> None:
    """Two limits that each can refuse first are not called idle."""
    assert "hardly ever" not in run("check", settings(RULES)).stdout


def test_check_finds_a_cost_that_never_fits(settings: Any) -> None:
    """A rule that can only refuse is a mistake: said, and told by the exit code."""
    path = settings('[[rules]]\nname = "big"\nlimits = "5/minute"\ncost = 6')
    result = run("check", path)
    assert result.exit_code == 1
    assert "wrong: big refuses every request: its cost 6 can never fit in 5/minute" in result.stdout
    result = run("check", path, "--json")
    assert result.exit_code == 1
    assert len(json.loads(result.stdout)["problems"]) == 1


def test_check_as_json(settings: Any) -> None:
    """Programs get the same rules, whole."""
    rules = json.loads(run("check", settings(RULES), "--json").stdout)["rules"]
    assert [rule["name"] for rule in rules] == ["login", "api", "rule-3"]
    assert rules[0]["count_when"] == {"status": [401, 403]}
    assert rules[1] == {
        "name": "api",
        "match": {
            "path": ["/api/**", "/v2/**"],
            "methods": [],
            "host": ["*.example.com"],
            "region": ["AT", "DE"],
        },
        "key": ["user|ip"],
        "limits": ["100/minute burst 20"],
        "per_key": {"alice": ["1000/minute"]},
        "per": {"plan": {"free": ["10/minute"], "pro": ["500/minute"], "a": ["1/minute"], "b": ["2/minute"]}},
        "algorithm": "token-bucket (interval)",
        "mode": "shadow",
        "cost": 1,
        "when_unknown": "skip",
        "count_when": None,
    }
    assert "per" not in rules[0]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[[rules]]\nlimits = '5/minute'\n[[rules]]\nlimits = ['5/minit']", "rules[1].limits[0]: "),
        ("[[rules]]\nlimits = '5/minute'\nkay = 'ip'", "rules[0]: unknown field 'kay'"),
        ("store = 'redish://localhost'", "store: expected the address of a store"),
        ("store = 'memory://?max_keis=5'", "store: "),
        ("trusted_proxies = ['10.0.0.0/99']", "trusted_proxies"),
        ("ipv6_prefix = 999", "ipv6_prefix"),
        ("rules = 5", "rules: "),
        ("not toml", "cannot be read: "),
    ],
)
def test_check_names_the_place_of_a_mistake(settings: Any, text: str, place: str) -> None:
    """A bad file ends with its name, the place in it and exit code 1, on stderr; stdout stays empty."""
    path = settings(text)
    result = run("check", path)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith(f"Error: {path}: {place}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.toml", b"\xff\xfe\x00\x01"),
        ("a.json", b"\x00" * 100),
        ("a.yaml", b"a: [\n- }"),
        ("a.json", b"[" * 100_000),
        ("a.toml", b"a = " + b"[" * 5_000),
        ("pyproject.toml", b"tool = 1"),
        ("pyproject.toml", b"[project]"),
        ("a.txt", b"hello"),
    ],
)
def test_no_traceback_for_any_file(tmp_path: Path, name: str, content: bytes) -> None:
    """Binary, broken, far too deep or foreign files are bad files, and nothing worse."""
    path = tmp_path / name
    path.write_bytes(content)
    result = run("check", path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert str(path) in result.stderr


def test_check_never_shows_passwords(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a store's address only scheme, hosts and path are shown."""
    store = ModuleType("ratelimit_mw.stores.vault")
    store.OPTIONS = ("password",)  # type: ignore[attr-defined]
    store.open_address = lambda *_: stores.MemoryStore()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, store.__name__, store)
    monkeypatch.setitem(stores._OPENERS, "vault", ("vault", ""))
    path = settings("store = 'vault://bob:s3cret@db.example.com:6379/0?password=s3cret'\n" + RULES)
    for result in (run("check", path, "--json"), run("check", path)):
        assert "vault://db.example.com:6379/0" in result.stdout
        assert "s3cret" not in result.output


# -- explain -------------------------------------------------------------------------------------------------


def explained(path: Path, *args: object, exit_code: int = 0) -> dict[str, dict[str, Any]]:
    result = run("explain", path, *args, "--json")
    assert result.exit_code == exit_code
    return {rule.pop("rule"): rule for rule in json.loads(result.stdout)["rules"]}


def test_explain_shows_keys_and_limits(settings: Any) -> None:
    """For each rule that looks at a request: its key, its limits, its algorithm, its cost."""
    result = run("explain", settings(RULES), "POST", "/login", "--feature", "ip=192.0.2.7", "--feature", "email=a@b.c")
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "login email=5:a@b.c&ip=192.0.2.7 5/minute sliding-window-counter enforce 1 if 401 or 403" in lines
    assert "api path: not /api/** or /v2/**" in lines
    assert "rule-3 method: not GET or HEAD" in lines


def test_explain_as_json(settings: Any) -> None:
    """Programs get the features as the rules see them, and an entry for each rule in the file's order."""
    result = run("explain", settings(RULES), "get", "/x%20y?a=1", "--feature", "ip=::ffff:192.0.2.7", "--json")
    answer = json.loads(result.stdout)
    assert answer["features"] == {"query:a": "1", "ip": "192.0.2.7", "method": "GET", "path": "/x y", "host": ""}
    assert [rule["rule"] for rule in answer["rules"]] == ["login", "api", "rule-3"]
    assert answer["rules"][2] == {
        "rule": "rule-3",
        "looks": True,
        "mode": "enforce",
        "key": "",
        "refuses": None,
        "algorithm": "sliding-window-counter",
        "limits": [{"limit": "1000/second", "policy": "rule-3", "cost": 1}],
    }


def test_explain_says_why_not(settings: Any) -> None:
    """Path, method, host, feature and key: the first that does not fit is named, with what was found."""
    path = settings(RULES)
    api = ("GET", "/api/x", "--host", "www.example.com:8000")
    assert explained(path, "GET", "/")["login"]["why_not"] == "path: not /login"
    assert explained(path, "GET", "/login")["login"]["why_not"] == "method: not POST"
    assert explained(path, "GET", "/api/x")["api"]["why_not"] == "host: not *.example.com"
    assert explained(path, *api)["api"]["why_not"] == "feature: region is unknown, not AT or DE"
    us = explained(path, *api, "--feature", "region=US")["api"]
    assert us["why_not"] == "feature: region is US, not AT or DE"
    assert explained(path, *api, "--feature", "region=AT")["api"]["looks"]
    login = explained(path, "POST", "/login", exit_code=1)["login"]
    assert login["why_not"] == "key: email is unknown"


def test_explain_leaves_pre_flights_alone(settings: Any) -> None:
    """OPTIONS meets no rule that does not name it, and the reason is said."""
    path = settings("[[rules]]\nname = 'a'\nlimits = '5/s'\n")
    assert explained(path, "OPTIONS", "/", exit_code=1)["a"]["why_not"].startswith("method: pre-flights")


def test_explain_shows_the_limits_of_this_client(settings: Any) -> None:
    """A client with limits of its own sees those, not the rule's."""
    request = ("GET", "https://www.example.com/v2/x", "--feature", "region=DE")
    by_key = explained(settings(RULES), *request, "--feature", "user=alice")["api"]
    by_plan = explained(settings(RULES), *request, "--feature", "user=bob", "--feature", "plan=pro")["api"]
    assert [limit["limit"] for limit in by_key["limits"]] == ["1000/minute"]
    assert [limit["limit"] for limit in by_plan["limits"]] == ["500/minute"]


def test_explain_a_rule_that_refuses_unknown_keys(settings: Any) -> None:
    """A rule that refuses whom it cannot tell apart looks at the request, and says that it refuses."""
    path = settings("[[rules]]\nname = 'a'\nkey = ['email', 'user']\nlimits = '5/s'\nwhen_unknown = 'refuse'")
    rule = explained(path, "GET", "/", "--feature", "user=bob")["a"]
    assert (rule["looks"], rule["key"], rule["refuses"]) == (True, None, "email is unknown")
    assert "refused: email and user is unknown" in run("explain", path, "GET", "/").stdout


def test_explain_nothing_limits_this_request(settings: Any) -> None:
    """When no rule looks at a request that is said on stderr, and the exit code is 1."""
    result = run("explain", settings(""), "GET", "/")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "nothing limits this request\n"


def test_explain_asks_for_an_address(settings: Any) -> None:
    """Without an address the key is that of unknown addresses, and a message says how to give one."""
    path = settings("[[rules]]\nname = 'a'\nlimits = '5/s'")
    result = run("explain", path, "GET", "/")
    assert "ip=unknown" in result.stdout
    assert "--feature ip=192.0.2.7" in result.stderr
    assert run("explain", path, "GET", "/", "--feature", "ip=192.0.2.7").stderr == ""


def test_explain_one_for_everybody(settings: Any) -> None:
    """A rule without a key is shown as one count for all."""
    assert "(one for everybody)" in run("explain", settings(RULES), "GET", "/").stdout


@pytest.mark.parametrize(
    "args",
    [
        ("GET", "/", "--feature", "ip"),
        ("GET", "/", "--feature", "ip=nonsense"),
        ("GET", "/", "--feature", "x y=1"),
        ("GET", "/", "--feature", "emial=1"),
        ("GET", "/", "--feature", "path=/x"),
        ("GET", "/", "--feature", "method=GET"),
        ("GET", "http://[::1/"),
        ("GET",),
    ],
)
def test_explain_misused(settings: Any, args: tuple[str, ...]) -> None:
    """Arguments that cannot be meant are refused with exit code 2 and a message."""
    result = run("explain", settings(RULES), *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Error: " in result.stderr


HOSTS = st.sampled_from(["", "www.example.com", "example.com"])
FEATURES = st.fixed_dictionaries(
    {},
    optional={
        "user": st.sampled_from(["alice", "bob"]),
        "email": st.just("a@b.c"),
        "region": st.sampled_from(["DE", "US"]),
        "plan": st.sampled_from(["pro", "other"]),
        "ip": st.sampled_from(["192.0.2.7", "2001:db8::1"]),
    },
)


@given(
    method=st.sampled_from(["GET", "HEAD", "POST", "OPTIONS", "PURGE"]),
    path=st.sampled_from(["/", "/login", "/login/", "//login", "/api", "/api/a/b", "/v2/x", "/Login"]),
    host=HOSTS,
    features=FEATURES,
)
def test_explain_agrees_with_the_limiter(
    tmp_path_factory: pytest.TempPathFactory, method: str, path: str, host: str, features: dict[str, str]
) -> None:
    """What explain shows is what a limiter with these rules does: the same rules, keys and limits."""
    file = tmp_path_factory.getbasetemp() / "agrees.toml"
    file.write_text(RULES + "[[rules]]\nname = 'strict'\nkey = 'email'\nwhen_unknown = 'refuse'\nlimits = '9/s'\n")
    given_features = [part for name, value in features.items() for part in ("--feature", f"{name}={value}")]
    result = run("explain", file, method, path, "--host", host, *given_features, "--json")
    answer = json.loads(result.stdout)
    plan = RuleSet(load_settings(file).rules).plan(method, path, host)
    looking = [rule for rule in answer["rules"] if rule["looks"]]
    refusing = [rule["rule"] for rule in looking if rule["refuses"]]
    shown = [
        (limit["policy"], limit["limit"], rule["key"], limit["cost"]) for rule in looking for limit in rule["limits"]
    ]
    try:
        hits = plan.hits(answer["features"])
    except UnknownKeyError as refusal:
        refused_by = [refusal.rule.name]
    else:
        refused_by = []
        done = [(h.limit.policy, str(h.limit.quota), h.key.removeprefix(h.limit.prefix), h.cost) for h in hits]
        assert shown == done
    assert refusing == refused_by


# -- schema, help, version -----------------------------------------------------------------------------------


def test_schema_is_the_schema() -> None:
    """The schema command prints what the package says its settings are."""
    result = run("schema")
    assert (result.exit_code, json.loads(result.stdout)) == (0, schema())


def test_version() -> None:
    """--version names the program and its version."""
    assert run("--version").stdout == f"ratelimit-mw, version {ratelimit_mw.__version__}\n"


@pytest.mark.parametrize("name", ["check", "explain", "replay", "schema"])
def test_help_has_examples_that_run(name: str, tmp_path: Path) -> None:
    """The help of a command ends with examples, and their arguments are ones that the command takes."""
    text = run(name, "--help").stdout
    examples = [line.strip() for line in text.partition("Examples:\n")[2].splitlines() if line.strip()]
    assert examples
    assert all(f"ratelimit-mw {name}" in example for example in examples)
    assert all(len(line) <= 120 for line in text.splitlines())


def test_no_command_shows_the_help() -> None:
    """The command alone lists its commands, and is misuse."""
    result = run()
    assert result.exit_code == 2
    assert "replay" in result.output


@pytest.mark.parametrize("command", ["check", "explain", "replay"])
def test_files_that_are_not_there(command: str, tmp_path: Path) -> None:
    """A missing file and a folder in its place are misuse: exit code 2 and a message."""
    rest = {"check": [], "explain": ["GET", "/"], "replay": ["-"]}[command]
    for path in (tmp_path / "nothing.toml", tmp_path):
        result = run(command, path, *rest)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "Error: Invalid value for 'FILE'" in result.stderr


def test_file_that_may_not_be_read(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the file system ends with the file's name and its reason."""

    def refuse(_path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", "secret.toml")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    result = run("check", settings(""))
    assert (result.exit_code, result.stderr) == (1, "Error: secret.toml: Permission denied\n")


def test_yaml_without_its_extra(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that is missing for what was asked is named with the line that installs it: exit code 2."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    result = run("check", settings("rules: []", "a.yaml"))
    assert result.exit_code == 2
    assert 'pip install "ratelimit-mw[yaml]"' in result.stderr


def test_the_example_is_right() -> None:
    """The example settings pass the check."""
    assert run("check", EXAMPLE).exit_code == 0
    assert set(explained(EXAMPLE, "POST", "/login")) == {"login", "api", "site", "burst"}
    assert pattern_matches("/api/**", "/api/x")


# -- what may reach a terminal -------------------------------------------------------------------------------

NASTY = "\x1b]0;x\x07\x1b[31m[bold]x:smile:\u202e\x9b"
SHOWN = "\\x1b]0;x\\x07\\x1b[31m[bold]x:smile:\\u202e\\x9b"


def test_nothing_in_a_file_acts_on_the_terminal(settings: Any) -> None:
    """Escape sequences and markup in settings and arguments are shown, not obeyed."""
    path = settings(f"[[rules]]\nname = '[red]a'\nlimits = '5/s'\nmatch = {{ x = [{json.dumps(NASTY)}] }}\nkey = 'x'")
    for result in (run("check", path), run("explain", path, "GET", f"/{NASTY}", "--feature", f"x={NASTY}")):
        assert result.exit_code == 0
        assert result.stdout.replace("\n", "").isprintable()
        assert "[red]a" in result.stdout
        assert SHOWN in result.stdout


def test_nothing_in_an_error_acts_on_the_terminal(settings: Any) -> None:
    """Messages about bad values show escape sequences instead of sending them."""
    result = run("check", settings('[[rules]]\nlimits = "5/\\u001b[31m"'))
    assert result.exit_code == 1
    assert result.stderr.removesuffix("\n").isprintable()


def test_a_line_is_one_line(settings: Any) -> None:
    """A line break in a key cannot forge another row of a table."""
    result = run("explain", settings(RULES.replace("key = []", "key = 'user'")), "GET", "/", "--feature", "user=a\nb")
    assert "user=a\\nb" in result.stdout


# -- the installed command -----------------------------------------------------------------------------------


def test_installed_command() -> None:
    """The program that gets installed checks the example and exits with 0."""
    done = start("check", EXAMPLE)
    assert (done.returncode, done.stderr) == (0, "")
    assert "burst" in done.stdout


@pytest.mark.parametrize("library", ["click", "rich"])
def test_without_its_extra(library: str) -> None:
    """Without click or rich the command prints the pip line on stderr and exits with 2."""
    code = f"import sys; sys.modules[{library!r}] = None; from ratelimit_mw.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{MissingExtraError('the command ratelimit-mw', 'cli')}\n"


def test_without_its_extra_in_this_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The same through main itself: SystemExit(2) and one line."""
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(SystemExit) as ending:
        main()
    assert ending.value.code == 2
    assert capsys.readouterr().err.startswith("the command ratelimit-mw needs an extra")


def test_main_ends_with_the_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """main runs the command line of the process and ends with its exit code."""
    monkeypatch.setattr(sys, "argv", ["ratelimit-mw", "check", str(EXAMPLE)])
    with pytest.raises(SystemExit) as ending:
        main()
    assert ending.value.code == 0
    assert "login" in capsys.readouterr().out


def test_output_that_nobody_reads_on(settings: Any) -> None:
    """When the reader of a pipe goes away, as head does, the command ends without a word."""
    for args in (
        ["check", EXAMPLE],
        ["schema"],
        ["explain", EXAMPLE, "GET", "/", "--feature", "ip=192.0.2.7"],
        ["--help"],
    ):
        reader, writer = os.pipe()
        os.close(reader)
        done = start(*args, stdout=writer)
        os.close(writer)
        assert done.stderr == ""


def test_closed_pipe_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe found closed in the midst of printing ends the command just as quietly."""

    def closed(_value: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(sys.modules["ratelimit_mw.cli.schema"], "print_json", closed)
    assert run("schema").output == ""


def test_output_that_cannot_be_written(tmp_path: Path) -> None:
    """Output that finds no room is an error with a message."""
    with (tmp_path / "small").open("w") as small:
        done = start("check", EXAMPLE, stdout=small, preexec_fn=no_room)
    assert (done.returncode, done.stderr) == (1, "Error: File too large\n")


def no_room() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))


def test_terminal_without_letters(settings: Any) -> None:
    """Where stdout knows ASCII only, other letters are shown by number; nothing breaks."""
    path = settings("[[rules]]\nname = 'a'\nlimits = '5/s'\nmatch = { path = '/caf\u00e9' }")
    done = start("check", path, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "/caf\\xe9" in done.stdout


def test_group_lists_what_it_registers() -> None:
    """Commands are registered once, however often the group is asked for."""
    assert isinstance(commands(), click.Group)
    assert {"check", "explain", "replay", "schema"} <= set(commands().commands)
    assert commands() is commands()
