"""The settings: name, type, default and meaning of each. See ``rules/declaration.py``."""

# Annotations are evaluated here, because msgspec reads them.

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypedDict

from ..rules.declaration import option
from ..rules.options import OnStoreError, RuleSettings

Duration = str | float
Values = Mapping[str, str | Sequence[str]]


class HttpOptions(TypedDict, total=False):
    """The settings that you can also pass to a middleware, as arguments."""

    trusted_proxies: Annotated[
        Sequence[str],
        option('Proxies whose header with the client IP is trusted: addresses, networks or `"unix"`.', []),
    ]
    forwarded_header: Annotated[
        Literal["x-forwarded-for", "forwarded"],
        option("The header in which the trusted proxies send the client IP.", "x-forwarded-for"),
    ]
    ipv6_prefix: Annotated[
        int, option("The number of bits of an IPv6 address that identify a client.", 64, minimum=1, maximum=128)
    ]
    headers: Annotated[
        Sequence[Literal["x-ratelimit", "ratelimit"]],
        option("The families of headers. An empty list sends only `Retry-After`.", ["x-ratelimit", "ratelimit"]),
    ]
    reset: Annotated[
        Literal["delta", "epoch"],
        option("Whether `X-RateLimit-Reset` is in seconds from now or in seconds since 1970.", "delta"),
    ]
    retry_jitter: Annotated[
        Duration, option("The longest random time added to the time to wait, so that clients do not retry at once.", 0)
    ]
    email_field: Annotated[
        str, option("The field of a form or of JSON that holds `email`. `a.b` is `b` inside `a` in JSON.", "email")
    ]
    body_limit: Annotated[str | int, option("The longest body that is read for a rule that needs a field.", "64KiB")]
    body_timeout: Annotated[
        Duration, option("The longest time to wait for such a body under ASGI. Under WSGI the server decides.", "1s")
    ]
    region_database: Annotated[
        str, option("A MaxMind database of countries for `region`, relative to the settings file.", "")
    ]
    region_header: Annotated[str, option("The header in which the trusted proxies send the country for `region`.", "")]


class ListSettings(TypedDict, total=False):
    """Clients that are always or never served."""

    allow: Annotated[Values, option("Values by feature. A request with one of them is never limited.", {})]
    deny: Annotated[Values, option("Values by feature. A request with one of them is rejected with 403.", {})]


class SettingsDict(HttpOptions, total=False):
    """All settings, as in a settings file."""

    rules: Annotated[Sequence[RuleSettings], option("The rules. All rules that match a request apply together.", [])]
    store: Annotated[str, option("The URL of the store that keeps the counts.", "memory://")]
    on_store_error: Annotated[
        OnStoreError,
        option("Without the store, allow all requests, reject them with 503, or count in this process.", "local"),
    ]
    store_timeout: Annotated[Duration, option("The longest time that a call to a shared store may take.", "50ms")]
    fleet_size: Annotated[
        int, option("The number of processes. Without the store, `local` counts to this share.", 1, minimum=1)
    ]
    rejection_cache: Annotated[
        Duration, option("The longest time that a process repeats a rejection of a shared store. 0 always asks.", "1s")
    ]
    lists: Annotated[ListSettings, option("The allow list and the deny list, which take precedence over rules.", {})]
    secret: Annotated[
        str | None, option("The secret of the digests that replace personal features, at least 16 characters.")
    ]
    secret_file: Annotated[str | None, option("A file that holds only the secret, relative to the settings file.")]
    keyed: Annotated[
        Sequence[str] | None,
        option("The features that are replaced by digests. Default with a secret: `email`, `user` and `ip`."),
    ]
