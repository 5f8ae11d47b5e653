"""The settings: name, type, default and meaning of each. See ``rules/declaration.py``."""

# Annotations are evaluated here, because msgspec reads them.

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from ..rules.declaration import option
from ..rules.options import Limits, OnStoreError, RuleDefaults, RuleSettings
from ..stores import Store

if TYPE_CHECKING:
    StoreURL = str | Store
    Observer = str | Callable[[Any], object]
else:  # a file can hold no objects
    StoreURL = Observer = str
Duration = str | float
Values = Mapping[str, str | Sequence[str]]
Headers = Sequence[Literal["x-ratelimit", "ratelimit"]]


class HttpOptions(TypedDict, total=False):
    """The settings that you can also pass to a middleware, as arguments."""

    enabled: Annotated[bool, option("Whether anything is limited. `false` turns all rules and lists off.", True)]
    limits: Annotated[Limits | None, option("Limits of all requests, as a rule named `default`.")]
    store: Annotated[StoreURL, option("The URL of the store that keeps the counts.", "memory://")]
    observers: Annotated[
        Sequence[Observer],
        option('Functions that receive an event for each request: `"module:function"`.', []),
    ]
    event_features: Annotated[Sequence[str], option("Names of key features whose values are included in events.", [])]
    traffic_log: Annotated[
        str | None, option("The URL of a traffic log that counts outcomes, such as `sqlite:///traffic.db`.")
    ]
    traffic_clients: Annotated[bool, option("Whether the traffic log also counts clients, for `top`.", False)]
    trusted_proxies: Annotated[Sequence[str], option('Trusted proxies: IP addresses, networks or `"unix"`.', [])]
    forwarded_header: Annotated[
        str, option("The header with the client IP. Your proxy appends to it, or overwrites it.", "x-forwarded-for")
    ]
    ipv6_prefix: Annotated[
        int, option("Number of bits of an IPv6 address that identify a client.", 64, minimum=1, maximum=128)
    ]
    nat64_prefixes: Annotated[Sequence[str], option("NAT64 prefixes of your own, besides `64:ff9b::/96`.", [])]
    headers: Annotated[
        Headers, option("Families of headers to send. `Retry-After` is always sent.", ["x-ratelimit", "ratelimit"])
    ]
    reset: Annotated[
        Literal["delta", "epoch"], option("Send the reset in seconds from now, or in seconds since 1970.", "delta")
    ]
    retry_jitter: Annotated[
        Duration, option("The longest random time that is added to the time to wait, in whole seconds.", 0)
    ]
    email_field: Annotated[str, option("The field of a body that holds `email`. `a.b` is `b` in `a`.", "email")]
    body_limit: Annotated[
        str | int, option("The longest body that is read for a rule with a field of the body.", "64KiB")
    ]
    body_timeout: Annotated[Duration, option("The longest time to wait for such a body, under ASGI.", "1s")]
    region_database: Annotated[str, option("A MaxMind database for `region`, relative to the settings file.", "")]
    region_header: Annotated[str, option("The header with the country for `region`. It needs `trusted_proxies`.", "")]


class ListSettings(TypedDict, total=False):
    """Clients that are always or never served."""

    allow: Annotated[Values, option("Values by feature. A request with one of them is never limited.", {})]
    deny: Annotated[Values, option("Values by feature. A request with one of them is rejected with 403.", {})]


class SettingsDict(HttpOptions, total=False):
    """All settings, as in a settings file."""

    rules: Annotated[Sequence[RuleSettings], option("The rules. All rules that match a request apply together.", [])]
    defaults: Annotated[RuleDefaults, option("Options of the rules and decorators that do not set them.", {})]
    on_store_error: Annotated[OnStoreError, option("Without the store: allow, reject, or count by process.", "local")]
    store_timeout: Annotated[Duration, option("The longest time that a call may wait for a shared store.", "50ms")]
    fleet_size: Annotated[int | None, option("The number of processes. Default: counted in the store.", minimum=1)]
    fallback_keys: Annotated[int, option("Maximum number of keys of a process without the store.", 100_000, minimum=1)]
    rejection_cache: Annotated[Duration, option("The longest time that a process repeats a rejection.", "1s")]
    reload_interval: Annotated[
        Duration, option("Time between checks for a changed settings file and for overrides. `0`: never.", "2s")
    ]
    exempt: Annotated[Sequence[str], option("Patterns of paths that no rule limits. The deny list still applies.", [])]
    lists: Annotated[ListSettings, option("The allow list and the deny list, which take precedence over rules.", {})]
    secret: Annotated[str | None, option("The secret of the digests in the store, at least 16 characters.")]
    secret_file: Annotated[str | None, option("A file that holds only the secret, relative to the settings file.")]
    keyed: Annotated[
        Sequence[str] | None, option("Features to digest. It needs a secret. Default: `email`, `user`, `ip`.")
    ]
