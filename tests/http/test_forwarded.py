"""The parser of the ``Forwarded`` header follows RFC 7239, and no open quote hides an element."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw.http.client_ip import ClientIP

PROXIES = ["10.0.0.0/8", "2001:db8:ffff::/48"]
PROXY, REAL = "10.0.0.1", "203.0.113.9"


def forwarded(*lines: str, peer: str | None = PROXY) -> str | None:
    return ClientIP(PROXIES, "forwarded").resolve(peer, list(lines))


@pytest.mark.parametrize(
    ("lines", "client"),
    [
        ([], PROXY),
        ([" "], PROXY),
        ([f"for={REAL}"], REAL),
        ([f"For={REAL};proto=https;by=10.0.0.1"], REAL),
        ([f"proto=https ; for = {REAL}"], PROXY),
        ([f"proto=https; FOR={REAL}"], REAL),
        ([f"for=1.1.1.1, for={REAL}"], REAL),
        (["for=1.1.1.1", f"for={REAL}, for=10.9.9.9"], REAL),
        ([f'for="{REAL}:4711"'], REAL),
        ([f'for="{REAL}:_hidden"'], REAL),
        ([f"for={REAL}:80"], REAL),
        (['for="[2001:db8:1:2::17]:4711"'], "2001:db8:1:2::/64"),
        (['for="[2001:db8:1:2::17]:_a.b-c"'], "2001:db8:1:2::/64"),
        (['for="[2001:db8:1:2::17]"'], "2001:db8:1:2::/64"),
        (['for="\\2\\0\\3.0.113.9"'], REAL),
        (["for=unknown"], PROXY),
        (["for=1.1.1.1, for=_hidden"], PROXY),
        (['for=1.1.1.1, for="_hidden"'], PROXY),
        (['for=1.1.1.1, for=""'], PROXY),
        (["for=1.1.1.1, proto=https"], PROXY),
        (["for=10.1.1.1, for=10.2.2.2"], PROXY),
        ([f"for=1.1.1.1,, for={REAL}"], PROXY),
        ([f"for=1.1.1.1, for={REAL},"], PROXY),
        ([f"for=1.1.1.1 for={REAL}"], PROXY),
        (["for=[2001:db8::17]"], "2001:db8::/64"),
        ([REAL], PROXY),
    ],
)
def test_the_forwarded_header_is_read_by_its_grammar(lines: list[str], client: str) -> None:
    """Names ignore case, and values may be quoted or carry ports. A malformed or obfuscated element ends the search."""
    assert forwarded(*lines) == client


@pytest.mark.parametrize(
    "forged",
    [
        'for=1.1.1.1;x="',
        'for=1.1.1.1;x="\\',
        'for=1.1.1.1,x="for=2.2.2.2',
        'for="1.1.1.1',
        'for=1.1.1.1;x=",for=2.2.2.2";y="',
        '"',
        "for=1.1.1.1;",
        "for=1.1.1.1,",
        'for="1.1.1.1, for=2.2.2.2"',
        'for="1.1.1.1;for=2.2.2.2"',
    ],
)
@pytest.mark.parametrize(
    "appended", [f"for={REAL}", f'for="{REAL}"', f'for="{REAL}:80";by="[::1]"', f"by=x;for={REAL}"]
)
def test_an_open_quote_hides_no_element(forged: str, appended: str) -> None:
    """A client that opens a quote before the proxy's element does not get another client's address."""
    for lines in ([forged, appended], [f"{forged}, {appended}"], [f"{forged},{appended}"]):
        assert forwarded(*lines) in (REAL, PROXY)


@given(st.text(st.sampled_from('for=1.,;" \\x'), max_size=40), st.sampled_from([f"for={REAL}", f'for="{REAL}";by="x"']))
def test_no_prefix_changes_the_client_of_a_forwarded_header(forged: str, appended: str) -> None:
    """For any text before the proxy's element, the client is the address in that element or the proxy."""
    assert forwarded(f"{forged},{appended}") in (REAL, PROXY)


def test_a_forwarded_header_beyond_the_bounds_names_no_client() -> None:
    """The parser ignores a header over 8 KiB and reads at most 32 hops."""
    assert forwarded("for=1.1.1.1," * 1000 + f"for={REAL}") == PROXY
    assert forwarded(",".join([f"for={REAL}", *["for=10.1.1.1"] * 31])) == REAL
    assert forwarded(",".join([f"for={REAL}", *["for=10.1.1.1"] * 32])) == PROXY
