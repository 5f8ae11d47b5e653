"""The admin page of limited clients. It reads the store of the project's limiter, and resets keys.

The keys come from clients, so they are shown with all unprintable characters escaped. Forms carry them as JSON.
"""

import json
from collections.abc import Iterator
from datetime import timedelta
from math import ceil
from typing import Any, Final

from django.apps import apps
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path

from ..algorithms.limit import client_of, rule_of
from ..decision import Decision
from ..errors import ConfigError, RateLimitError
from ..keys.parts import part_of
from ..limiter.inspection import KeyStates
from ..rules.compiled import CompiledRule
from ..stores import redacted_url
from .limits import limiter
from .models import LimitedClient

_TEMPLATE: Final = "admin/ratelimit_mw/limitedclient/change_list.html"
_FEATURE: Final = "f-"
"""The start of the parameters with features."""
_LONGEST: Final = 1e10
"""The longest wait that the page shows, in seconds. ``timedelta`` has an end."""


class LimitedClientAdmin(admin.ModelAdmin):  # type: ignore[misc] # Django has no types
    """Show which clients are limited now, find a client by the features of its key, and unlock it."""

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def get_urls(self) -> list[Any]:
        name = f"{self.opts.app_label}_{self.opts.model_name}_changelist"
        return [path("", self.admin_site.admin_view(self.changelist_view), name=name)]

    def changelist_view(self, request: Any, extra_context: dict[str, Any] | None = None) -> Any:
        """Show the page, or unlock the client of a form."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method == "POST":
            return self._unlock(request)
        rules, rule = limiter().rules, limiter().rules.by_name.get(request.GET.get("rule", ""))
        given = {name: request.GET.get(_FEATURE + name, "").strip() for name in _names(rule)}
        page, problem = _read(request, rule, given)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": "Limited clients",
            "rules": list(rules.by_name),
            "rule": rule and rule.name,
            "inputs": [(_FEATURE + name, name, value) for name, value in given.items()],
            "all": "all" in request.GET,
            "is_search": any(given.values()),
            "rows": [_row(decision, rules.by_name[decision.rule], any(given.values())) for decision in page.decisions],
            "next": page.cursor and _next_page(request, page.cursor),
            "problem": problem,
            "store": redacted_url(limiter().store),
            "is_own_memory": not limiter().waits,
            "may_unlock": self.has_change_permission(request),
            **(extra_context or {}),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, _TEMPLATE, context)

    def _unlock(self, request: Any) -> HttpResponseRedirect:
        if not self.has_change_permission(request):
            raise PermissionDenied
        try:
            key = _text(request.POST.get("key", ""))
            limiter().reset_key(key)
        except RateLimitError as error:
            messages.error(request, f"The client was not unlocked: {error}")
        else:
            client = LimitedClient(key=f"{rule_of(key)} {_shown(client_of(key))}")
            self.log_change(request, client, "Unlocked.")
            messages.success(request, f"Unlocked: {client}.")
        return HttpResponseRedirect(request.get_full_path())


if apps.is_installed("django.contrib.admin"):
    admin.site.register(LimitedClient, LimitedClientAdmin)


def _read(request: Any, rule: CompiledRule | None, given: dict[str, str]) -> tuple[KeyStates, str]:
    """Return the decisions to show, and the reason if there are none."""
    name, rejected = None if rule is None else rule.name, "all" not in request.GET
    try:
        if any(given.values()):
            return limiter().inspect(name, _features(given)), ""
        place = _text(request.GET["place"]) if "place" in request.GET else ""
        return limiter().inspect(name, cursor=place, rejected=rejected), ""
    except RateLimitError as error:
        return KeyStates([], None), str(error)


def _names(rule: CompiledRule | None) -> Iterator[str]:
    """Yield the parts of a rule's key, and the features that choose its limits."""
    if rule is not None:
        yield from dict.fromkeys(name for entry in rule.source.entries for name in entry)
        yield from (name for name, _ in rule.source.tables if name)


def _features(given: dict[str, str]) -> dict[str, Any]:
    """Return the features of a form."""
    features: dict[str, Any] = {}
    for name, value in given.items():
        part = part_of(name)
        if part.attribute and value:
            features.setdefault(part.feature, {})[part.attribute] = value
        elif value:
            features[part.feature] = value
    return features


def _row(decision: Decision, rule: CompiledRule, is_exact: bool) -> dict[str, Any]:
    wait = decision.reset_after if decision.allowed else decision.retry_after
    return {
        "decision": decision,
        "client": _shown(decision.client) or "all clients",
        "is_lowest": not is_exact and bool(rule.tables or rule.looks_up),
        "wait": None if wait is None else timedelta(seconds=ceil(min(wait, _LONGEST))),
        "key": json.dumps(decision.key),
    }


def _next_page(request: Any, place: str) -> str:
    query = request.GET.copy()
    query["place"] = json.dumps(place)
    return str(query.urlencode())


def _text(form: str) -> str:
    """Return a text that a form or a URL of the page carries as JSON."""
    try:
        text = json.loads(form)
    except (ValueError, RecursionError):  # the latter for many brackets
        text = None
    if not isinstance(text, str):
        raise ConfigError("the form has no key of the store. Open the page again")
    return text


def _shown(text: str) -> str:
    """Escape what is not printable, as Python does."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
