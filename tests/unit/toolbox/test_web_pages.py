"""What is made of a page: text, kind, charset, address, and what a cache keeps."""

from __future__ import annotations

import pytest

from kaged.base import ManualClock
from kaged.kernel.net import ANYWHERE, NetTarget
from kaged.toolbox.web.content import (
    PageKind,
    decoded,
    kind_of,
    kind_of_bytes,
    mime_of,
    pretty_json,
)
from kaged.toolbox.web.html_page import read_page
from kaged.toolbox.web.html_scanner import PageText, TagEnd, TagStart, scan_html
from kaged.toolbox.web.page_blocks import MAX_PAGE_CHARS
from kaged.toolbox.web.page_cache import KEPT_S, MAX_PAGES, CacheKey, PageCache, ShownPage
from kaged.toolbox.web.places import read_place
from kaged.tools import InvalidToolParams

BASE = "https://h.example/d/page"


def shown(page: str, *, marks: bool = True) -> str:
    """Return a page as it is shown."""
    return read_page(page, BASE, marks=marks).text


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<h2>a <em>b</em></h2>c", "## a *b*\n\nc"),
        ("a&amp;b &lt;c&gt; &nope; <", "a&b <c> &nope; <"),
        ("<p>one<br>two<p>three", "one\ntwo\n\nthree"),
        ("<ul><li>a<ul><li>b</ul><li>c</ul><p>d", "- a\n  - b\n- c\n\nd"),
        ("<ol start=9><li>a<li>b</ol>", "9. a\n10. b"),
        ("<blockquote><p>a<p>b</blockquote>c", "> a\n>\n> b\n\nc"),
        ("<pre>a\n  ```\n</pre>", "````\na\n  ```\n````"),
        ("<a href='../x y'>t</a>", "[t](https://h.example/x%20y)"),
        ("<a href='/w_(x)'>t</a>", "[t](https://h.example/w_%28x%29)"),
        ("<a href='javascript:x()'>t</a> <a href='#f'>f</a>", "t f"),
        ("<a href=/b><div>in</div></a>", "in\n\n(https://h.example/b)"),
        ("<base href='http://o.example/'><a href=p>t</a>", "[t](http://o.example/p)"),
        ("<img src=i.png alt=Pic><img src=j.png>", "![Pic](https://h.example/d/i.png)"),
        ("<table><tr><td>a|b<td>c<tr><td>d</table>", "| a\\|b | c |\n| --- | --- |\n| d |  |"),
        ("<table><tr><td>only<tr><td>this</table>", "only\n\nthis"),
        ("<table><tr><td>x<td><table><tr><td>in</table></table>", "| x | in |\n| --- | --- |"),
        ("<p>a<!-- no --><script>'<p>no'</script><style>no</style><noscript>no</noscript>b", "ab"),
        ("<div hidden>no<p>no</p></div><p aria-hidden=true>no</p>yes", "yes"),
        ("<span style='color:red;DISPLAY : none'>no</span>yes", "yes"),
        ("in\u200bvis\U000e0041ible\u202e", "invisible"),
        ("<title>T</title><svg><text>no</text></svg>yes", "yes"),
        ("<p>open <b>bold", "open bold"),
        ("</p></div></b>text", "text"),
        ("<scr<script>x</script>ipt>y", "xipt>y"),
    ],
)
def test_html_becomes_markdown(page: str, text: str) -> None:
    assert shown(page) == text


def test_plain_text_has_no_marks_and_no_targets() -> None:
    page = "<h1>H</h1><p><a href=/x>l</a> <b>b</b><table><tr><td>1<td>2</table><pre>c</pre>"
    assert shown(page, marks=False) == "H\n\nl b\n\n1 | 2\n\nc"


def test_attributes_are_read_however_they_are_written() -> None:
    tag = '<A B = "1>2" c=\'3\' d=4/5 e f=&quot; b="no">x</A >'
    start, text, end = scan_html(tag)
    assert start == TagStart("a", {"b": "1>2", "c": "3", "d": "4/5", "e": "", "f": '"'})
    assert (text, end) == (PageText("x"), TagEnd("a"))


@pytest.mark.parametrize(
    "piece",
    ["<a ", "<!--", "<a b='", "<", "<div>", "</", "&#", "<script>", "<p>", "<b>x", "<title>"],
)
def test_malformed_pages_end_like_others(piece: str) -> None:
    # Were a search repeated for each piece, this would take minutes.
    assert len(read_page(piece * 60_000, BASE).text) <= MAX_PAGE_CHARS


def test_what_is_too_long_or_takes_too_long_is_cut_and_said() -> None:
    long = read_page(f"<p>{'x' * 1000}" * 3000, BASE)
    assert (long.complete, len(long.text) <= MAX_PAGE_CHARS) == (False, True)
    stopped = read_page("<p>a" * 1000, BASE, stop=lambda: True)
    assert (stopped.complete, stopped.text) == (False, "")
    assert read_page("<p>a", BASE).complete


def test_the_kind_is_that_of_the_header_and_of_the_first_bytes() -> None:
    assert mime_of("Text/HTML; charset=x") == "text/html"
    assert mime_of("nonsense\r\n") == ""
    assert kind_of("application/problem+json") is PageKind.JSON
    assert kind_of("image/svg+xml") is PageKind.TEXT
    assert kind_of("application/pdf") is PageKind.OTHER
    assert kind_of_bytes(PageKind.TEXT, "", b"\n<!DOCTYPE html>") is PageKind.HTML
    assert kind_of_bytes(PageKind.TEXT, "text/plain", b"a\0b") is PageKind.OTHER
    assert kind_of_bytes(PageKind.TEXT, "text/plain", "a".encode("utf-16")) is PageKind.TEXT


@pytest.mark.parametrize(
    ("body", "header", "text"),
    [
        ("ä".encode(), "", "ä"),
        ("ä".encode(), "text/html; charset=latin1", "Ã¤"),
        ("ä".encode("utf-8-sig"), "text/html; charset=latin1", "ä"),
        ("ä".encode("utf-16"), "", "ä"),
        ("€".encode("cp1252"), "text/html; charset=ISO-8859-1", "€"),
        ("я".encode("koi8-r"), "text/html; charset='KOI8-R'", "я"),
        ("ä".encode("cp1252"), "", "ä"),
        # Codecs that are no charsets of pages are not run on what a server sent.
        (b"ab", "text/html; charset=zip", "ab"),
        (b"ab-", "text/html; charset=punycode", "ab-"),
        (b"\\x41", "text/html; charset=unicode_escape", "\\x41"),
    ],
)
def test_charsets(body: bytes, header: str, text: str) -> None:
    assert decoded(body, header, PageKind.HTML) == text


def test_json_is_laid_out_unless_that_makes_it_worse() -> None:
    assert pretty_json('{"b":1,"a":"ä"}') == '{\n  "b": 1,\n  "a": "ä"\n}'
    assert pretty_json("{broken") == "{broken"
    assert pretty_json("[" * 5000) == "[" * 5000
    deep = f"[{','.join(['[' * 400 + ']' * 400] * 100)}]"
    assert pretty_json(deep) == deep


def test_an_address_is_the_destination_that_is_decided_about() -> None:
    place = read_place("HTTPS://Docs.Example.ORG./a?b#c")
    assert (place.host, place.port) == ("docs.example.org", 443)
    assert "#" not in place.url
    assert read_place("../x", base=place).url.endswith("/x")
    assert read_place("http://[::1]:8080/").target.text == "[::1]:8080"
    for url in ("", "x", "ftp://a.example/", "http://", "http://a:b@c.example/", "http://127.1/"):
        with pytest.raises(InvalidToolParams):
            read_place(url)
    with pytest.raises(InvalidToolParams):
        read_place("http://a.example/" + "x" * 3000)


def key(**other: object) -> CacheKey:
    """Return a key."""
    made = CacheKey("ses", "primary", (ANYWHERE,), "http://a.example/", "markdown")
    return made._replace(**other)


def test_the_cache_is_one_agent_s_and_forgets() -> None:
    clock = ManualClock()
    cache = PageCache(clock)
    page = ShownPage("u", "text/plain", "", "text", 4, complete=True)
    cache.put(key(), page)
    assert cache.get(key()) is page
    for other in (
        key(session_id="other"),
        key(caller="primary.subagents.a"),
        key(grants=(NetTarget("a.example", 80),)),
        key(url="http://a.example/b"),
        key(format="raw"),
    ):
        assert cache.get(other) is None
    clock.advance(KEPT_S + 1)
    assert cache.get(key()) is None
    for number in range(MAX_PAGES + 1):
        cache.put(key(url=str(number)), page)
    assert cache.get(key(url="0")) is None
    assert cache.get(key(url="1")) is page
    huge = ShownPage("u", "text/plain", "", "x" * 17 * 1024 * 1024, 4, complete=True)
    cache.put(key(url="huge"), huge)
    assert cache.get(key(url="huge")) is None
