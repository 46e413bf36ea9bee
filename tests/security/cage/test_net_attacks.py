"""Attacks on the gate itself: on names, spellings, protocols, limits and the way in."""

from __future__ import annotations

import pytest

from fakes.gatelab import METADATA, OTHER, PRIVATE, PUBLIC, Case, identities, run_case

LOOPBACK = "127.0.0.1"
FORBIDDEN = "HTTP/1.1 403 Forbidden"
BAD = "HTTP/1.1 400 Bad Request"
GRANTED = f"{PUBLIC} 443"
OPENED = f"HTTP/1.1 200 Connection established|{GRANTED}"
NOT_REACHED = {"ECONNRESET", "ECONNREFUSED", "ENETUNREACH", "EHOSTUNREACH", "closed"}


@pytest.fixture(params=identities())
def who(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def granted_case(code: str, **limits: float) -> Case:
    return Case(
        grants=["api.test:443"],
        hosts={"api.test": [PUBLIC]},
        servers=[(PUBLIC, 443, "name"), (OTHER, 443, "name"), (LOOPBACK, 443, "name")],
        limits=limits,
        code=code,
    )


# ---- names that lead elsewhere


SPECIAL = [LOOPBACK, METADATA, PRIVATE, "0.0.0.0", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1"]


@pytest.mark.parametrize("everything", [False, True])
def test_a_granted_name_that_resolves_to_a_special_address(who: str, *, everything: bool) -> None:
    names = {f"n{place}.test": [address] for place, address in enumerate(SPECIAL)}
    result = run_case(
        Case(
            grants=["*"] if everything else [f"{name}:80" for name in names],
            hosts=names,
            servers=[("0.0.0.0", 80, "name"), ("::", 80, "name")],
            code=f"""
for name in {list(names)}:
    say(name, [attempt(name, 80), ask_connect(f"{{name}}:80"), ask_socks(socks_name(name), 80)])
""",
        ),
        who,
    )
    assert result.said == {name: ["ECONNRESET", FORBIDDEN, "code 2"] for name in names}
    assert result.visits == []
    assert {event["rule"] for event in result.events} == {"net.address"}
    assert len(result.events) == 3 * len(names)


def test_a_name_that_changes_its_address_after_it_was_checked(who: str) -> None:
    result = run_case(
        Case(
            grants=["api.test:443"],
            hosts={"api.test": [PUBLIC, "|", LOOPBACK, "|", METADATA, "|", PUBLIC]},
            servers=[(PUBLIC, 443, "name"), (LOOPBACK, 443, "name"), (METADATA, 443, "name")],
            code='say("four", [attempt("api.test", 443) for _ in range(4)])',
        ),
        who,
    )
    # One lookup per connection, and the connection goes where that lookup pointed.
    assert result.said["four"] == [GRANTED, "ECONNRESET", "ECONNRESET", GRANTED]
    assert result.visits == [GRANTED] * 2
    assert len(result.resolved) == 4


def test_a_mixed_answer_leads_to_the_permitted_address_only(who: str) -> None:
    result = run_case(
        Case(
            grants=["api.test:443"],
            hosts={"api.test": [LOOPBACK, METADATA, PRIVATE, PUBLIC]},
            servers=[("0.0.0.0", 443, "name")],
            code='say("direct", attempt("api.test", 443))',
        ),
        who,
    )
    assert result.said["direct"] == "0.0.0.0 443"
    assert [event["address"] for event in result.connected()] == [PUBLIC]


def test_an_address_grant_does_not_grant_a_name_and_a_name_grant_no_address(who: str) -> None:
    result = run_case(
        Case(
            grants=[f"{PUBLIC}:443", "db.test:443"],
            hosts={"api.test": [PUBLIC], "db.test": [OTHER]},
            servers=[(PUBLIC, 443, "name"), (OTHER, 443, "name")],
            code=f"""
say("address", attempt("{PUBLIC}", 443))
say("its name", [attempt("api.test", 443), ask_connect("api.test:443")])
say("name", attempt("db.test", 443))
say("its address", [attempt("{OTHER}", 443), ask_connect("{OTHER}:443")])
""",
        ),
        who,
    )
    assert result.said == {
        "address": GRANTED,
        "its name": ["unknown", FORBIDDEN],
        "name": f"{OTHER} 443",
        "its address": ["ECONNRESET", FORBIDDEN],
    }


def test_everything_granted_still_does_not_reach_special_places(who: str) -> None:
    places = [METADATA, PRIVATE, "192.168.0.1", "100.64.0.1", "224.0.0.1", "fe80::1", "::"]
    places += ["fd00:ec2::254", "::ffff:10.0.0.5", "64:ff9b::a9fe:a9fe", "2002:7f00:1::"]
    result = run_case(
        Case(
            grants=["*"],
            hosts={"any.test": [PUBLIC]},
            servers=[("0.0.0.0", 80, "name"), ("::", 80, "name"), (PUBLIC, 443, "name")],
            code=f"""
say("name", attempt("any.test", 443))
say("address", attempt("{PUBLIC}", 443))
say("localhost", [attempt("localhost", 80), *map(ask_connect, ["localhost:80", "localhost.:80"])])
for place in {places}:
    family = socket.AF_INET6 if ":" in place else socket.AF_INET
    direct = attempt(place, 80, family=family)
    shown = f"[{{place}}]" if ":" in place else place
    say(place, [direct, ask_connect(f"{{shown}}:80"), ask_socks(socks_ip(place), 80)])
""",
        ),
        who,
    )
    assert result.said.pop("name") == GRANTED
    assert result.said.pop("address") == GRANTED
    direct, connect, dotted = result.said.pop("localhost")
    assert (direct, connect, dotted) == ("ECONNREFUSED", FORBIDDEN, FORBIDDEN)
    for place, (direct, connect, socks) in result.said.items():
        assert direct in NOT_REACHED | {"EINVAL", "timeout"}, place
        assert (connect, socks) == (FORBIDDEN, "code 2"), place
    assert set(result.visits) == {GRANTED}


# ---- spellings


@pytest.mark.parametrize("grant", ["api.test:443", "*"])
def test_numbers_that_a_resolver_might_read_as_an_address(who: str, grant: str) -> None:
    result = run_case(
        Case(
            grants=[grant],
            hosts={name: [PUBLIC] for name in ("0x7f.1", "2130706433", "127.1", "0177.0.0.1")},
            servers=[("0.0.0.0", 443, "name")],
            code="""
for host in ("0x7f.1", "2130706433", "127.1", "0177.0.0.1", "0x7f000001", "127.0.0.1.", "1.2.3.4.5",
             "127.0.0.0x1"):
    say(host, [ask_connect(f"{host}:443"), ask_socks(socks_name(host), 443)])
""",
        ),
        who,
    )
    assert all(answers == [FORBIDDEN, "code 2"] for answers in result.said.values()), result.said
    assert result.resolved == []
    assert result.visits == []


def test_an_ipv4_address_in_ipv6_clothes(who: str) -> None:
    mapped = f"::ffff:{METADATA}"
    result = run_case(
        Case(
            grants=["api.test:80", f"{PUBLIC}:443"],
            servers=[("0.0.0.0", 80, "name"), (PUBLIC, 443, "name")],
            code=f"""
say("direct", attempt("{mapped}", 80, family=socket.AF_INET6))
say("connect", [ask_connect("[{mapped}]:80"), ask_connect("[::ffff:a9fe:a9fe]:80")])
say("socks", ask_socks(socks_ip("{mapped}"), 80))
say("granted", [attempt("::ffff:{PUBLIC}", 443, family=socket.AF_INET6),
                ask_connect("[::ffff:{PUBLIC}]:443")])
""",
        ),
        who,
    )
    assert result.said["direct"] == "ECONNRESET"
    assert result.said["connect"] == [FORBIDDEN] * 2
    assert result.said["socks"] == "code 2"
    assert result.denied(host=METADATA, protocol="direct")
    # The granted address stays the granted address in either spelling.
    assert result.said["granted"] == [GRANTED, OPENED]


def test_spellings_of_the_question_that_clients_and_proxies_read_differently(who: str) -> None:
    result = run_case(
        granted_case(
            """
for text in ("user:secret@api.test:443", "api.test@evil.test:443", "http://api.test:443",
             "http://api.test:443/", "api.test", "api.test:", "api.test:0", "api.test:65536",
             "api.test:0443443", "api.test:+443", "api.test:443#evil", "api.test:443\\\\@evil.test",
             "api%2Etest:443", "api.test\\t:443", "api.test\\0:443", "api.test:\\u00b2\\u00b3",
             "[api.test]:443", ":443", "*:443"):
    say(text, ask_connect(text))
say("unicode", speak("CONNECT api.test:\\uff14\\uff14\\uff13 HTTP/1.1\\r\\n\\r\\n".encode()))
say("dots", [ask_connect(f"{name}:443") for name in ("api.test..", ".api.test", "api..test")])
say("case", ask_connect("aPi.TeSt.:443"))
"""
        ),
        who,
    )
    assert result.said.pop("dots") == [FORBIDDEN] * 3
    assert result.said.pop("case") == OPENED
    assert result.said.pop("unicode").startswith(BAD)
    assert all(answer == BAD for answer in result.said.values()), result.said
    assert result.visits == [GRANTED]


def test_a_socks_name_with_a_zero_byte_or_other_surprises(who: str) -> None:
    result = run_case(
        granted_case(
            """
for name in ("api.test\\0.evil.test", "api.test\\0", "\\0api.test", "api.test\\n", "api\\xe9.test",
             "api.test/", "api_test", "evil.test", "x" * 255, "api.test..", "[::1]", "127.0.0.1"):
    say(name, ask_socks(socks_name(name), 443))
say("port 0", ask_socks(socks_name("api.test"), 0))
say("empty", ask_socks(b"\\x03\\x00", 443))
say("granted", ask_socks(socks_name("API.test."), 443))
"""
        ),
        who,
    )
    assert result.said.pop("granted") == f"code 0|{GRANTED}"
    assert set(result.said.values()) == {"code 2"}, result.said
    assert result.visits == [GRANTED]


# ---- the proxy conversation


def test_a_second_question_behind_a_refused_one_is_not_heard(who: str) -> None:
    result = run_case(
        granted_case(
            """
ask = b"CONNECT %s:443 HTTP/1.1\\r\\n\\r\\n"
say("second", speak(ask % b"evil.test" + ask % b"api.test"))
"""
        ),
        who,
    )
    assert result.said["second"].count("HTTP/1.1") == 1
    assert result.said["second"].startswith(FORBIDDEN)
    assert result.visits == []


def test_bytes_sent_along_with_a_question_reach_only_the_granted_host(who: str) -> None:
    result = run_case(
        granted_case(
            """
with socket.create_connection(("127.0.0.1", 808), timeout=5) as sock:
    ask = b"CONNECT %s:443 HTTP/1.1\\r\\n\\r\\n"
    sock.sendall(ask % b"api.test" + ask % b"evil.test")
    sock.shutdown(socket.SHUT_WR)
    got = b""
    while chunk := sock.recv(65536):
        got += chunk
say("got", got.decode())
"""
        ),
        who,
    )
    head, _, echoed = result.said["got"].partition(GRANTED)
    assert head == "HTTP/1.1 200 Connection established\r\n\r\n"
    assert echoed == "CONNECT evil.test:443 HTTP/1.1\r\n\r\n"
    assert result.visits == [GRANTED]


def test_a_flood_of_headers_is_cut_off(who: str) -> None:
    result = run_case(
        granted_case(
            """
def flood(head):
    sent = 0
    with socket.create_connection(("127.0.0.1", 808), timeout=5) as sock:
        try:
            sock.sendall(head)
            while sent < 64 << 20:
                sent += sock.send(b"X: " + b"a" * 65536)
        except OSError as error:
            return sent
    return sent
say("headers", flood(b"CONNECT api.test:443 HTTP/1.1\\r\\n"))
say("line", flood(b"CONNECT "))
say("fields", speak(b"CONNECT api.test:443 HTTP/1.1\\r\\n" + b"A: b\\r\\n" * 100 + b"\\r\\n"))
say("after", ask_connect("api.test:443"))
"""
        ),
        who,
    )
    # What fits into the kernel's buffers may still leave the client; the gate reads 64 KiB at most.
    assert result.said["headers"] < 32 << 20
    assert result.said["line"] < 32 << 20
    assert result.said["fields"].startswith("HTTP/1.1 431 ")
    assert result.said["after"] == OPENED


def test_a_question_that_trickles_in_is_given_up(who: str) -> None:
    result = run_case(
        granted_case(
            """
def wait(first):
    with socket.create_connection(("127.0.0.1", 808), timeout=5) as sock:
        sock.sendall(first)
        said = ""
        try:
            while (more := answer(sock)) != "closed":
                said += more
            return said + "closed"
        except OSError as error:
            return said + named(error)
say("silent", wait(b""))
say("half a header", wait(b"CONNECT api.test:443 HTTP/1.1\\r\\nX: "))
say("half a socks name", wait(b"\\x05\\x01\\x00\\x05\\x01\\x00\\x03\\xffapi"))
say("after", ask_connect("api.test:443"))
""",
            handshake_s=0.2,
        ),
        who,
    )
    assert result.said["silent"] in NOT_REACHED
    assert result.said["half a header"] in NOT_REACHED
    assert result.said["half a socks name"].removeprefix("\x05\x00") in NOT_REACHED
    assert result.said["after"] == OPENED
    denials = result.denied(rule="net.proxy")
    assert sum(event["count"] for event in denials) == 3


def test_tls_and_garbage_sent_to_the_proxy_are_turned_away_at_once(who: str) -> None:
    result = run_case(
        granted_case(
            """
say("tls", speak(b"\\x16\\x03\\x01\\x00\\xf4" + bytes(244)))
say("garbage", speak(bytes(range(255, 128, -1))))
say("socks4", speak(b"\\x04\\x01\\x01\\xbb\\x08\\x08\\x08\\x08\\x00"))
say("password", speak(b"\\x05\\x01\\x02"))
say("after", ask_connect("api.test:443"))
"""
        ),
        who,
    )
    assert result.said["tls"].startswith(BAD)
    assert result.said["garbage"].startswith(BAD)
    assert result.said["socks4"].startswith("\0[")
    assert result.said["password"] == "\x05\xff"
    assert result.said["after"] == OPENED


# ---- limits


def test_idle_handshakes_take_only_their_share(who: str) -> None:
    result = run_case(
        granted_case(
            """
idle, ended = [], []
for _ in range(10):
    try:
        idle.append(socket.create_connection(("127.0.0.1", 808), timeout=5))
        if len(idle) > 4:
            ended.append(answer(idle.pop()))
    except OSError as error:
        ended.append(named(error))
say("ended", ended)
say("direct", attempt("api.test", 443))
for sock in idle:
    sock.close()
say("after", [ask_connect("api.test:443") for _ in range(3)][-1])
""",
            handshakes=4,
        ),
        who,
    )
    assert set(result.said["ended"]) <= NOT_REACHED
    assert result.said["direct"] == GRANTED
    assert result.said["after"] == OPENED
    assert sum(event["count"] for event in result.denied(rule="net.limit")) >= 6


def test_connections_beyond_the_cages_share_are_refused_and_room_comes_back(who: str) -> None:
    result = run_case(
        granted_case(
            """
held, refused = [], 0
for _ in range(12):
    try:
        sock = socket.create_connection(("api.test", 443), timeout=5)
        answer(sock)
        held.append(sock)
    except ConnectionError:
        refused += 1
say("held", len(held))
say("refused", refused)
for sock in held:
    sock.close()
for _ in range(200):
    again = attempt("api.test", 443)
    if again != "ECONNRESET":
        break
say("again", again)
""",
            connections=5,
        ),
        who,
    )
    assert result.said["held"] == 5
    assert result.said["refused"] == 7
    assert result.said["again"] == GRANTED
    assert result.open_connections == 0
    assert result.leaked_fds == 0


def test_hammering_at_the_gate_fills_no_log(who: str) -> None:
    result = run_case(
        Case(
            grants=["api.test:443"],
            servers=[(OTHER, 1, "name")],
            limits={"denials_per_window": 8, "denial_window_s": 1000},
            code=f"""
for number in range(300):
    attempt("{OTHER}", 1 + number % 50)
for number in range(100):
    ask_dns(f"n{{number}}.evil.test")
say("after", ask_dns("api.test"))
""",
        ),
        who,
    )
    assert result.said["after"] == "127.77.0.1"
    assert sum(event["count"] for event in result.denied()) == 400
    assert len(result.denied()) <= 8 + 8 + 1


def test_slow_lookups_do_not_stop_other_connections(who: str) -> None:
    result = run_case(
        Case(
            grants=["slow.test:443", f"{PUBLIC}:443"],
            hosts={"slow.test": ["hang"]},
            servers=[(PUBLIC, 443, "name")],
            limits={"lookups": 2, "resolve_s": 0.5},
            code=f"""
waiting = [socket.create_connection(("slow.test", 443), timeout=5) for _ in range(6)]
say("address", attempt("{PUBLIC}", 443))
ended = []
for sock in waiting:
    try:
        ended.append(answer(sock))
    except OSError as error:
        ended.append(named(error))
say("slow", ended)
""",
        ),
        who,
    )
    assert result.said["address"] == GRANTED
    assert set(result.said["slow"]) <= NOT_REACHED
    assert len(result.connected(host="slow.test", outcome="timed_out")) == 6


# ---- the responder


def test_malformed_questions_do_not_stop_the_responder(who: str) -> None:
    result = run_case(
        granted_case(
            """
import random
dice = random.Random(7)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    sock.connect(("127.0.0.53", 53))
    head = struct.pack(">HHHHHH", 7, 0x0100, 1, 0, 0, 0)
    loop, tail = b"\\xc0\\x0c", b"\\x00\\x01\\x00\\x01"
    for body in (b"", loop + tail, b"\\x3f" + b"a" * 10, b"\\x03api" + loop, bytes(1500)):
        sock.send(head + body)
        sock.send(body)
    for _ in range(2000):
        sock.send(dice.randbytes(dice.randrange(0, 80)))
# Some of the flood, and a question behind it, may be dropped; resolvers ask again.
say("after", next(found for found in map(ask_dns, ["api.test"] * 5) if found != "timeout"))
"""
        ),
        who,
    )
    assert result.said["after"] == "127.77.0.1"


def test_more_names_than_the_book_holds_do_not_mix_up_their_hosts(who: str) -> None:
    result = run_case(
        Case(
            grants=["*"],
            hosts={f"n{number}.test": [f"93.184.216.{number + 1}"] for number in range(12)},
            servers=[(f"93.184.216.{number + 1}", 443, "name") for number in range(12)],
            limits={"names": 4},
            code='say("all", [attempt(f"n{number}.test", 443) for number in range(12)])',
        ),
        who,
    )
    assert result.said["all"] == [f"93.184.216.{number + 1} 443" for number in range(12)]


# ---- the way in


def test_the_gates_own_places_cannot_be_taken_or_used_from_inside(who: str) -> None:
    result = run_case(
        granted_case(
            """
def take(kind, place):
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(place)
            return "taken"
        except OSError as error:
            return named(error)
stream, packet = socket.SOCK_STREAM, socket.SOCK_DGRAM
say("take", [take(stream, ("127.0.0.1", 808)), take(stream, ("0.0.0.0", 809)),
             take(packet, ("127.0.0.53", 53)), take(stream, ("127.77.0.1", 443))])
say("trap port", [attempt(place, 809) for place in ("127.0.0.1", "::1", "127.77.0.1")])
say("nobody's address", attempt("127.77.9.9", 443))
def netlink(message):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
        sock.send(message)
        return errno.errorcode.get(-struct.unpack_from("=i", sock.recv(4096), 16)[0])
route = struct.pack("=8BI", 2, 0, 0, 0, 255, 0, 254, 2, 0) + struct.pack("=HHi", 8, 4, 1)
say("delete the route", netlink(struct.pack("=IHHII", 16 + len(route), 25, 5, 1, 0) + route))
down = struct.pack("=BBHiII", 0, 0, 0, 1, 0, 1)
say("lo down", netlink(struct.pack("=IHHII", 16 + len(down), 16, 5, 1, 0) + down))
with socket.socket() as sock:
    try:
        sock.setsockopt(socket.SOL_IP, 19, 1)
        say("transparent", "set")
    except OSError as error:
        say("transparent", named(error))
say("after", attempt("api.test", 443))
"""
        ),
        who,
    )
    assert set(result.said["take"]) <= {"EACCES", "EADDRINUSE"}
    assert set(result.said["trap port"]) <= NOT_REACHED
    assert result.said["nobody's address"] == "ECONNRESET"
    assert result.said["delete the route"] == "EPERM"
    assert result.said["lo down"] == "EPERM"
    assert result.said["transparent"] == "EPERM"
    assert result.said["after"] == GRANTED
    assert result.visits == [GRANTED]


def test_a_neighbours_service_is_not_found_and_ones_own_is(who: str) -> None:
    result = run_case(
        Case(
            service_port=700,
            late_service_port=701,
            servers=[(LOOPBACK, 700, "name"), (LOOPBACK, 702, "name")],
            code="""
say("own", [attempt("127.0.0.1", port, b"hello\\n") for port in (700, 701)])
say("other", attempt("127.0.0.1", 702))
say("outside", attempt("93.184.216.34", 443))
say("listening", listening())
""",
        ),
        who,
    )
    assert result.said["own"] == ["service hello\n"] * 2
    assert result.said["other"] == "ECONNREFUSED"
    assert result.said["outside"] == "ENETUNREACH"
    assert set(result.said["listening"]) == {"tcp:700", "tcp:701"} | {
        port for port in result.said["listening"] if int(port[4:]) > 1024
    }
    assert result.visits == []
