"""Mistakes in a settings file that only the application shows: each with its line and path in the message."""

from pathlib import Path
from typing import Any, Final

RULE: Final = '# settings\n[[rules]]\nname = "login"\nlimits = "5/minute"\n'
MISTAKES: Final = {
    "a path": (f'{RULE}match = {{ path = "/logn" }}\n', '5: rules[0] "login": match.path: no route has the path'),
    "a method": (
        f'{RULE}match = {{ path = "/login", methods = ["TRACE"] }}\n',
        '5: rules[0] "login": match.methods',
    ),
    "a view": (f'{RULE}match = {{ view = "x" }}\n', '5: rules[0] "login": match.view: no route has the view'),
    "an endpoint": (f'{RULE}match = {{ endpoint = "/x" }}\n', '5: rules[0] "login": match.endpoint: no route has'),
    "a parameter": (f'{RULE}key = ["path:id"]\n', '5: rules[0] "login": key: the rule never applies'),
    "a key": (f'{RULE}key = ["usr"]\n', "5: rules[0] \"login\": key: uses the feature 'usr'"),
    "a match": (f'{RULE}match = {{ pth = "/login" }}\n', "5: rules[0] \"login\": match.pth: uses the feature 'pth'"),
    "a table": (f'{RULE}per = {{ pln = {{ a = "1/s" }} }}\n', '5: rules[0] "login": per.pln: uses the feature'),
    "a cost": (f'{RULE}cost = "tokns"\n', '5: rules[0] "login": cost: '),
    "a high cost": (f"{RULE}cost = 6\n", '5: rules[0] "login": cost: the cost 6 is above the limit 5/minute'),
    "a list": (f'{RULE}[lists]\ndeny = {{ usr = ["a"] }}\n', "6: lists.deny.usr: uses the feature 'usr'"),
    "a default": (f'[defaults]\nkey = ["usr"]\n{RULE}', "2: rules[0] \"login\": key: uses the feature 'usr'"),
    "a rule without a name": ('[[rules]]\nlimits = "1/s"\nkey = "usr"\n', '3: rules[0] "rule-1": key: uses'),
    "limits": ('limits = "1/s"\n[defaults]\nkey = "usr"\n', "3: limits: key: uses the feature 'usr'"),
    "an override": (
        '[[rules]]\noverrides = "nope"\nlimits = "1/s"\n',
        "2: rules[0] \"nope\": overrides: no decorator has a rule named 'nope'",
    ),
    "observers": ('observers = ["nope:x"]\n', "1: observers[0]: cannot import 'nope:x'"),
    "a header": ('reset = "epoch"\nregion_header = "x"\n', "2: region_header: the header is read from trusted proxies"),
}
"""The text of the file, and the message after the name of the file."""


def settings_file(folder: Path, text: str) -> Path:
    """Write a settings file."""
    path = folder / "r.toml"
    path.write_text(text, encoding="utf-8")
    return path


def check_place(error: Any, file: Path, message: str) -> None:
    """Assert that an error begins with the file, the line and the path of the setting."""
    assert str(error).startswith(f"{file}:{message}"), error
