"""The parser of the ``Forwarded`` header follows RFC 7239, and no open quote hides an element."""

from hypothesis import given
from hypothesis import strategies as st
from tables import each

from ratelimit_mw.http.client_ip import ClientIP
from ratelimit_mw.keys.features import INVALID

PROXIES = ["10.0.0.0/8", "2001:db8:ffff::/48"]
PROXY, REAL = "10.0.0.1", "203.0.113.9"


def forwarded(*lines: str, peer: str | None = PROXY) -> object:
    return ClientIP(PROXIES, "forwarded").resolve(peer, list(lines))


@each(
    ("lines", "client"),
    [
        ([], PROXY),
        ([" "], PROXY),
        ([f"for={REAL}"], REAL),
        ([f"For={REAL};proto=https;by=10.0.0.1"], REAL),
        ([f"proto=https ; for = {REAL}"], INVALID),
        ([f"proto=https ; for={REAL} ;; by=x;"], REAL),
        ([f"for=1.1.1.1;for={REAL}"], INVALID),
        ([f"for={REAL};for={REAL}"], INVALID),
        ([f'for={REAL};x="a,for=1.1.1.1;y="'], REAL),
        ([f'for={REAL};x="a,for=1.1.1.1;y'], INVALID),
        ([f'for={REAL};x="a,for=1.1.1.1"'], REAL),
        ([f'for={REAL};x=",\\",for=1.1.1.1"'], REAL),
        ([f'x="for=1.1.1.1,, for=2.2.2.2, ";for={REAL}'], REAL),
        (["for=unknown:80"], PROXY),
        (['for="_h:_p"'], PROXY),
        ([f"for={REAL}x"], INVALID),
        (["for=0.0.0.0"], INVALID),
        (["for=10.0.0.256"], INVALID),
        (["for=" + "9" * 65], INVALID),
        (['for="unix:"'], PROXY),
        (['junk", for=10.1.1.1'], INVALID),
        ([f'"junk, for={REAL}, for=10.1.1.1'], REAL),
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
        (['for=1.1.1.1, for=""'], INVALID),
        (["for=1.1.1.1, proto=https"], PROXY),
        (["for=10.1.1.1, for=10.2.2.2"], PROXY),
        ([f"for=1.1.1.1,, for={REAL}"], REAL),
        ([f"for=1.1.1.1, for={REAL},"], REAL),
        ([f"for=1.1.1.1 for={REAL}"], INVALID),
        ([f"for=1.1.1.1, for={REAL} junk"], INVALID),
        (["for=[2001:db8::17]"], "2001:db8::/64"),
        ([REAL], INVALID),
    ],
)
def test_the_forwarded_header_is_read_by_its_grammar(lines: list[str], client: object) -> None:
    """Names ignore case, and values may be quoted or carry ports. A malformed element is invalid.

    An element in which the proxy withholds the address ends the search.
    """
    assert forwarded(*lines) == client


QUOTED = st.text(st.sampled_from('for=1.2,;" \\'), max_size=12).map(
    lambda text: '"' + text.replace("\\", r"\\").replace('"', r"\"") + '"'
)
PAIRS = st.lists(st.builds("x={}".format, QUOTED | st.sampled_from(["y", "unknown"])), max_size=3)


@given(st.text(st.sampled_from('for=1.,;" \\x'), max_size=40), PAIRS, PAIRS, st.sampled_from([";", " ; ", ";;"]))
def test_no_text_changes_an_element_with_quoted_texts(
    forged: str, before: list[str], after: list[str], by: str
) -> None:
    """Quoted texts of the proxy may hold commas, quotes, backslashes and even elements. It may add a line."""
    element = by.join([*before, f"for={REAL}", *after])
    assert forwarded(f"{forged},{element}") == forwarded(forged, element) == REAL
    assert forwarded(f"{forged},{element}, {by.join([*before, 'for=10.1.1.1', *after])}") == REAL


@given(st.text(st.sampled_from('for=1.,;" \\x'), max_size=40))
def test_a_malformed_element_never_becomes_the_proxy(forged: str) -> None:
    """An element that starts a quote and does not end it is invalid, for any text before it."""
    assert forwarded(f'{forged},for={REAL};x=" y') in (INVALID, REAL)


def test_at_most_8_kib_and_32_hops_of_a_forwarded_header_are_read() -> None:
    """The parser reads from the right. An element that is longer is invalid."""
    assert forwarded("for=1.1.1.1," * 1000 + f"for={REAL}") == REAL
    assert forwarded(f"for={REAL};x=" + "x" * 9000) is INVALID
    assert forwarded(f'for={REAL};x="' + "," * 9000 + '"') is INVALID
    assert forwarded(",".join([f"for={REAL}", *["for=10.1.1.1"] * 31])) == REAL
    assert forwarded(",".join([f"for={REAL}", *["for=10.1.1.1"] * 32])) == PROXY
