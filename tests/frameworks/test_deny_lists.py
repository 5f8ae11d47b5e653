"""No way to write a denied value gets past a deny list."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from sites import Build
from tables import each

FORM = {"content-type": "application/x-www-form-urlencoded"}
JSON = {"content-type": "application/json"}
DENIED = ["form:name", "json:name", "query:name", "cookie:name", "header:x-name"]
SPELLINGS = [" mallory", "MALLORY", "\uff4dallory", "mal\u200blory", "m\u00e1llory"]


def sent(feature: str, *values: str) -> dict[str, Any]:
    """Return a request that has these values of a feature."""
    encoded = [quote(value) for value in values]
    if feature == "form:name":
        return {"method": "POST", "headers": FORM, "content": "&".join(f"name={value}" for value in encoded)}
    if feature == "json:name":
        fields = ", ".join(f'"name": "{value}"' for value in values)
        return {"method": "POST", "headers": JSON, "content": f"{{{fields}}}"}
    if feature == "query:name":
        return {"path": "/?" + "&".join(f"name={value}" for value in encoded)}
    if feature == "cookie:name":
        return {"headers": {"cookie": "; ".join(f"name={value}" for value in values)}}
    return {"headers": [("x-name", value) for value in values]}


@each("feature", DENIED)
def test_a_denied_value_is_denied(site: Build, feature: str) -> None:
    """In spellings that the application may take for it, and beside other values, of which it may show the first."""
    spellings = [(text,) for text in SPELLINGS] if feature in DENIED[:3] else []
    doubled = [("mallory", "ann"), ("ann", "mallory"), ("mallory", "")] if feature in DENIED[:-1] else []
    served = site({"lists": {"deny": {feature: ["Mallory"]}}})
    for values in [("Mallory",), *spellings, *doubled]:
        assert served.call(**sent(feature, *values)).status_code == 403, values
    assert served.call(**sent(feature, "ann")).status_code == 200


@each(
    ("feature", "request_"),
    [
        ("json:name", {"headers": JSON, "content": '{"name": "ann"'}),
        ("json:name", {"headers": JSON, "content": '{"name": ["ann"]}'}),
        ("json:name", {"headers": {"content-type": "application/json; charset=utf-16"}, "content": '{"name": "x"}'}),
        ("form:name", {"headers": FORM, "content": "name=ann&x=" + "y" * 70_000}),
        ("form:name", {"headers": {**FORM, "content-encoding": "gzip"}, "content": "name=ann"}),
        ("form:name", {"headers": FORM, "content": "&".join(["x=1"] * 1001) + "&name=ann"}),
        ("query:name", {"path": "/?" + "&".join(["x=1"] * 1001) + "&name=ann"}),
    ],
)
def test_an_unreadable_value_is_denied(site: Build, feature: str, request_: dict[str, Any]) -> None:
    """The application may read a value that the middleware cannot. These would be allowed if they were readable."""
    served = site({"lists": {"deny": {feature: ["Mallory"]}}})
    assert served.call(**{"method": "POST", **request_}).status_code == 403
