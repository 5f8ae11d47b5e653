"""Writes the generated parts of docs/ again: `python docs/generate.py`; with --check it only lists outdated pages.

A generated part is between `<!-- generated: NAME -->` and `<!-- end -->`. Names, types, defaults and meanings come from
the declarations in the package.
"""

from __future__ import annotations

import argparse
import json
import os.path
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ratelimit_mw import algorithms
from ratelimit_mw.rules.declaration import options_of, type_text
from ratelimit_mw.rules.match import MatchOptions
from ratelimit_mw.rules.options import RuleSettings
from ratelimit_mw.rules.priorities import PriorityTable
from ratelimit_mw.rules.values import BanOptions, CountUnless, CountWhen
from ratelimit_mw.settings.options import HttpOptions, SettingsDict

DOCS: Final = Path(__file__).parent
_PART = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

# A link names a page without its folder, as no two pages have the same name.
LINKS: Final = {
    "store": "[stores](stores.md)",
    "observers": "[observing](observing.md)",
    "event_features": "[observing](observing.md#values-of-keys)",
    "traffic_log": "[traffic log](traffic-log.md#record-the-decisions-of-your-limits)",
    "trusted_proxies": "[features](features.md#the-clients-ip-address)",
    "forwarded_header": "[proxies](proxies.md)",
    "headers": "[headers](headers.md)",
    "reload_interval": "[changing limits](changing-limits.md)",
    "enabled": "[turn everything off](settings.md#turn-everything-off)",
    "lists": "[lists](settings.md#lists)",
    "defaults": "[defaults](settings.md#defaults)",
    "region_database": "[features](features.md#region)",
    "secret": "[features](features.md#keeping-people-out-of-the-store)",
    "limits": "[quotas](quotas.md)",
    "match": "[match](settings.md#match)",
    "key": "[features](features.md)",
    "algorithm": "[algorithms](algorithms.md)",
    "cost": "[costs](settings.md#costs)",
    "unit": "[costs](settings.md#costs)",
    "ban": "[bans](bans.md)",
    "reserve": "[priorities](priorities.md)",
    "target": "[adaptive concurrency](load.md#adaptive-concurrency)",
    "tune": "[adaptive rates](load.md#adaptive-rates)",
    "priorities": "[priorities](priorities.md)",
    "schedule": "[schedules](schedules.md)",
    "count_when": "[outcomes](settings.md#outcomes)",
    "count_unless": "[outcomes](settings.md#outcomes)",
    "consistency": "[consistency](stores.md#exact-or-leased)",
    "lease": "[leases](stores.md#leases)",
}


def fields(declaration: Any, without: Any = None) -> str:
    """A table of the options of a declaration: name, type, default, meaning."""
    lines = ["| field | type | default | description |", "|---|---|---|---|"]
    left_out = options_of(without) if without else {}
    for name, each in [(name, each) for name, each in options_of(declaration).items() if name not in left_out]:
        default = each.default
        is_required = (name == "limits" and declaration is RuleSettings) or each.is_required
        shown = "required" if is_required else "none" if default in (None, "") else f"`{json.dumps(default)}`"
        link = f" See {LINKS[name]}." if name in LINKS else ""
        cells = (f"`{name}`", _type_text(each.hint), shown, f"{each.meaning}{link}")
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def _type_text(hint: Any) -> str:
    text = type_text(hint)
    if text == "duration":
        return "[duration](settings.md#durations)"
    text = re.sub(r"'[^']+'(?: or '[^']+'){4,}", "text", text)  # the page of algorithms lists them
    return re.sub(r"'([^']+)'", r'`"\1"`', text)


def algorithm_options() -> str:
    """A table of the algorithms and the one option that each may have."""
    lines = ["| algorithm | option |", "|---|---|"]
    for name in algorithms.names():
        options = ", ".join(f"`{option}`" for option in algorithms._OPTIONS.get(name, {}))
        lines.append(f"| `{name}`{' (the default)' if name == algorithms.DEFAULT else ''} | {options or 'none'} |")
    return "\n".join(lines)


PARTS: Final[dict[str, Callable[[], str]]] = {
    "http-fields": lambda: fields(HttpOptions),
    "settings-fields": lambda: fields(SettingsDict, without=HttpOptions),
    "rule-fields": lambda: fields(RuleSettings),
    "match-fields": lambda: fields(MatchOptions),
    "ban-fields": lambda: fields(BanOptions),
    "priority-fields": lambda: fields(PriorityTable),
    "count-when-fields": lambda: fields(CountWhen),
    "count-unless-fields": lambda: fields(CountUnless),
    "algorithm-options": algorithm_options,
}


def regenerated(page: Path) -> str:
    """A page with its generated parts made anew."""

    def linked(found: re.Match[str]) -> str:
        (target,) = DOCS.rglob(found[1])
        return f"]({os.path.relpath(target, page.parent)}" if target != page else "]("

    def made(found: re.Match[str]) -> str:
        part = re.sub(r"\]\(([\w-]+\.md)", linked, PARTS[found[2]]())
        return f"{found[1]}{part}\n{found[3]}"

    return _PART.sub(made, page.read_text())


def stale_pages(pages: list[Path]) -> list[Path]:
    """The pages that `make docs` would change."""
    return [page for page in pages if regenerated(page) != page.read_text()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when something is out of date")
    check = parser.parse_args().check
    stale = stale_pages(sorted(DOCS.rglob("*.md")))
    for page in stale:
        print(f"{page.name}: {'out of date; run `make docs`' if check else 'written'}")
        if not check:
            page.write_text(regenerated(page))
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
