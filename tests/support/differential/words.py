r"""The pieces that hostile requests are made of. Bytes are written as Latin-1; a piece may be there several times.

Spaces separate pieces, so pieces with spaces are added in lists.
"""

TOTALS = "/differential-totals"
TRUTH = "x-truth"
"""The header in which the sender of a request states the IP address that the limiter must find."""


def words(text: str) -> list[bytes]:
    """Return the pieces of a text."""
    return text.encode("latin-1").split(b" ")[1:-1]


PATHS = [b"/login"] * 5 + words(" /items/7 /items/abc /api/things/x /legacy/7 /files/a/b /files / /other /login/more ")
PATH_PIECES = [
    *words(" %0A %00 %0d %09 %20 %7f %C2%85 %e2%80%a8 %C3%A9 %ff %c0%af %ed%a0%80 %ef%bb%bf %e2%80%8b "),
    *words(" / // /. /./ /.. /../ . .. %2e %2E%2e /%2e/ /x/../ /x/%2e%2e/ %2f %2F %5c \\ /..%2f %5c..%5c "),
    *words(" ; ;x=1 %3b , = & + * ~ ! $ ' ( ) : @ | ^ ` [ ] { } < > \" % %% %4 %zz %u002f %25 %252f %250a %252e "),
    *words(" %6c %4c L %ef%bd%8c %e2%93%9b .json .php %23 # %3f ? "),
]
RAW_PIECES = [b" ", *words(" \x00 \t \x0b \x7f \x80 \xff \xc3\xa9 \r \xe2\x80\x8b ")]
ABSOLUTE = words(" http:// HTTP:// // https://u@ http: ")
TARGETS = words(" * login ?q=abc // /?/login ///login http:///login ")

HOSTS = [
    *words(" site.test SITE.test site.test. site.test:80 Site.TEST.:8080 site.test: 127.0.0.1 127.0.0.1:80 "),
    *words(" admin.test ADMIN.test admin.test. admin.test:443 admin.test.:443 admin.test.. admin%2etest .admin.test "),
    *words(" [::1] [::1]:80 [2001:DB8::1] [::1 ::1 [::1]x [] [v1.x] user@admin.test admin.test@site.test @admin.test "),
    *words(" admin.test:x site.test:80:90 admin.test, admin.test,site.test site.test,admin.test admin.test;x * "),
    *words(" admin.test/ site.test/admin.test admin.test?x admin.test#x admin.test\\x http://admin.test - localhost "),
    *words(" xn--bcher-kva.test b\xc3\xbccher.test admin.test%00 admin_test admin..test \xef\xbd\x81dmin.test "),
    *(b"", b" ", b"\tadmin.test\t", b"admin.test \t", b"admin. test", b"admin.test:80 ", b"admin.test :80"),
]

HOPS = [
    *words(" 198.51.100.1 10.0.0.1 127.0.0.1 192.168.1.1 ::1 2001:db8::1 [2001:db8::1] [2001:db8::1]:443 "),
    *words(" 198.51.100.1:80 198.51.100.1:x fe80::1%eth0 [fe80::1%25en0]:1 unknown _hidden garbage - 1.2.3 "),
    *words(" ::ffff:198.51.100.1 64:ff9b::c633:6401 2002:c633:6401:: unix: unix:/x 0.0.0.0 :: 198.51.100.1%00 "),
    *words(' " "" "198.51.100.1 198.51.100.1" "198.51.100.1" \\" for=198.51.100.1 for="198.51.100.1" for="a '),
    *words(' for="[2001:db8::1]:80" FOR=198.51.100.1;by=x for=198.51.100.1;for=198.51.100.2 for=unknown for=_x '),
    *words(' for="\\"" host="a,b" ;;; = for= for=;x for=" ," secret="x,for=198.51.100.7" 0x7f.1 127.1 2130706433 '),
    *words(" 256.1.1.1 \xd9\xa1.2.3.4 "),
    *(b"", b" ", b"for = 198.51.100.1", b'for="198.51.100.1', b"a" * 100, b"198.51.100.1 198.51.100.2"),
]
OTHER_PROXY_HEADERS = words(" forwarded x-forwarded-for x_forwarded_for x-real-ip client-ip ")
PROXY = b"127.0.0.1"
"""The source address that the applications trust as a proxy."""
STRANGER = b"127.0.0.9"
TOLD = {
    b"x-forwarded-for": {
        b"203.0.113.9": b"203.0.113.9",
        b"203.0.113.10:4711": b"203.0.113.10",
        b"::ffff:203.0.113.11": b"203.0.113.11",
        b"2001:db8:9:9::7": b"2001:db8:9:9::7",
        b"[2001:db8:9:9::7]:80": b"2001:db8:9:9::7",
        b"203.0.113.12, 127.0.0.1": b"203.0.113.12",
        b"unknown": PROXY,
    },
    b"forwarded": {
        b"for=203.0.113.9": b"203.0.113.9",
        b'For="203.0.113.10:4711";proto=http;by=10.0.0.1': b"203.0.113.10",
        b'for="[2001:db8:9:9::7]:80"': b"2001:db8:9:9::7",
        b'proto=https;for=203.0.113.11;host="a,b;c"': b"203.0.113.11",
        b"for=203.0.113.12, for=127.0.0.1;proto=http": b"203.0.113.12",
        b"for=unknown": PROXY,
        b"by=_x;proto=http": PROXY,
    },
}
"""What an honest proxy writes into each header, and the address that it means."""

NAMES = [b"q"] * 9 + [b" q", b"", *words(" %71 Q q[] +q q%00 q%20 x email email _charset_ q\xc3\xa9 ")]
VALUES = [
    *[b"abc"] * 6,
    *words(" def %61bc a+b a%20b a%2bb %C3%A9 %ff \xff \xc3\xa9 % %zz %u0061 %00 a%0Ab %EF%BD%81 = a=b %26 %3B "),
    *words(" ann%40b.c Ann%40B.C ann@b.c utf-7 \xef\xbb\xbfabc 7 true "),
    *(b"", b" abc", b"abc ", b"a\tb", b"x" * 300),
]
MANY_FIELDS = b"&x" * 1001
EQUALS = [b"="] * 5 + [b"", b"==", b" = ", b"%3d"]
SEPARATORS = [b"&"] * 8 + [b";", b"&&", b"&amp;", b"&;"]

COOKIE_PIECES = [
    *words(' sid = ; , sid=abc sid=def SID=abc $sid=abc sid="abc" sid="a sid= =sid sid=a=b x=1 __Host-sid=abc '),
    *words(' \\141 \\303 " \\ \xa0 \xc3\xa9 % %61 sid=%61bc sid=a,b sid=a;sid=b; abc Path=/ $Version=1 '),
    *(b" ", b"; ", b"\t", b"sid =abc", b"sid= abc"),
]
KEY_NAMES = [b"X-Key"] * 6 + [*words(" x-key X-KEY X_Key X.Key ")]
KEY_VALUES = [b"", b" abc ", b"abc, abc", *words(' abc abc def \tabc a,b a\xffb \xc3\xa9 "a" ')]
BAD_LINES = [
    *(b"X-Key : abc", b"X-Key: a\x00b", b"X-Key: a\x0bb", b"Cookie: sid=a\x1fb", b"Cookie: \x1fsid=abc", b"X Key: abc"),
    *(b"X-Key: abc\r\n folded", b"X-Key:\r\n abc", b"X-Key", b": abc", b"Host: admin.test"),
]
OTHER_LINES = [b"X-HTTP-Method-Override: DELETE", b"X-Method-Override: POST", b"Content-Encoding: gzip"]

_FORM = b"application/x-www-form-urlencoded"
KINDS = {
    "form": [
        *[_FORM] * 6,
        *(_FORM + b"; charset=" + charset for charset in words(" utf-8 utf-7 latin-1 utf-16 ")),
        *(_FORM.title(), _FORM + b";", _FORM + b", a/b"),
    ],
    "json": [
        *[b"application/json"] * 6,
        *(b"application/json; charset=" + charset for charset in words(" utf-8 utf-7 utf-16 ")),
        *words(" APPLICATION/JSON application/problem+json text/json text/plain application/jsonx "),
    ],
    "multipart": [
        *[b"multipart/form-data; boundary=b"] * 6,
        *words(' multipart/form-data;boundary=b multipart/form-data multipart/form-data;boundary="b" '),
        *(b"Multipart/Form-Data; Boundary=b", b"multipart/form-data; boundary=b; charset=utf-7"),
        *(b"multipart/form-data; charset=utf-8; boundary=b", b"multipart/form-data; boundary=b; boundary=c"),
        *(b"multipart/mixed; boundary=b", b"multipart/form-data; boundary='b'", b"multipart/form-data; boundary*=b"),
    ],
}
JSON_NAMES = [b'"q"'] * 8 + [b'"q "', *words(' "\\u0071" "Q" "email" q \'q\' "" ')]
JSON_VALUES = [
    *[b'"abc"'] * 6,
    *words(' "def" 7 7.0 7e0 -0 -0.0 true false null [] {} ["abc"] {"q":"abc"} 1e400 NaN Infinity "\\u0061bc" '),
    *words(' "\\ud800" "\\ud83d\\ude00" "" 0 1.5 123456789012345678901234567890 "7" "ann@b.c" "Ann@B.C" "\\u0000" '),
    *(b"'abc'", b"abc", b"", b'"a\nb"', b'"\xe9"', b"1" * 5000),
]
JSON_ENCODINGS = ["utf-8"] * 12 + ["utf-16", "utf-8-sig", "latin-1", "utf-32-le"]

DISPOSITIONS = [
    *['form-data; name="q"'] * 8,
    *("form-data; name=q", 'form-data;name="q"', 'form-data; name=" q"', 'form-data; name="x"', "form-data; name='q'"),
    *('form-data; name="q"; filename="f"', 'form-data; filename=""; name="q"', 'form-data; name="x"; name="q"'),
    *("form-data; name*=utf-8''q", "form-data; name=\"x\"; name*=utf-8''q", 'form-data; NAME="q"'),
    *('form-data; name="q\\""', 'form-data; name="q"; x="; name=y"', 'form-data; name="_charset_"'),
    *('form-data; name="email"', "form-data; name=\"q\"; filename*=utf-8''f", "form-data", "attachment; name=q"),
    *('form-data; name="%71"', 'form-data; name="a;name=q"'),
]
PART_HEADERS = [
    *(
        "Content-Type: text/plain",
        "Content-Type: text/plain; charset=utf-7",
        "Content-Type: text/plain; charset=utf-16",
    ),
    *("Content-Transfer-Encoding: base64", "Content-Transfer-Encoding: quoted-printable", "X: y", " folded", "bad"),
    *('Content-Disposition: form-data; name="x"', "Content-Type: application/json", "content-disposition: x"),
]
STARTS = [b""] * 40 + [b"preamble\r\n", b"\r\n", b"--b\r\n"]
ENDS = [b"--b--\r\n"] * 8 + [b"--b--", b"--b\r\n", b"--b-", b"--b--\r\nepilogue", b"", b"--bx--\r\n"]

METHODS = [b"GET"] * 25 + [b"POST"] * 40 + words(" PUT PUT PATCH PATCH DELETE DELETE HEAD HEAD HEAD OPTIONS OPTIONS ")
METHODS += words(" post Post get FOO TRACE ")
