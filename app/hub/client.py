"""A small HTTP client with every bound that reading from the Hub needs.

The Hub's own library is not used for this. It follows redirects wherever they lead, connects to
whatever a name resolves to at that moment, takes a token from the environment or a file, writes
what it loads without a bound on its size, and has no limit on the time of a whole answer. Here:

- every address that a host name has is checked before one is connected to, and that address is the
  one connected to, for the first request and for each redirect;
- a token goes to the endpoint itself and nowhere else;
- an answer has a limit in bytes, and all of it, redirects included, a limit in time.

Proxies of the environment are not used: the address of the far end would then not be known here.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import SplitResult, urljoin, urlsplit

from app.domain.errors import DomainError, OutOfRange, Unavailable, Unsupported, shown

MAX_REDIRECTS = 5
MAX_ADDRESSES = 8
_USER_AGENT = "kv-ledger/0.1"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PIECE_BYTES = 65_536
# RFC 6052: IPv4 addresses inside IPv6 ones, reached through a translator of the network.
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer: its status, the headers of the endpoint and of the last host, and the bytes.

    `headers` joins both, the last host's first; `is_whole` says whether `body` is all there is.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the monotonic clock by which an answer must be complete."""

    at: float
    seconds: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return the deadline that is so many seconds away."""
        return cls(time.monotonic() + seconds, seconds)

    @property
    def left(self) -> float:
        """Return the seconds that are left; raises Unavailable when there are none."""
        left = self.at - time.monotonic()
        if left <= 0:
            raise slow(self)
        return left


def slow(deadline: Deadline) -> Unavailable:
    """Return the refusal of an answer that takes too long."""
    return Unavailable("{field}: the Hub did not answer within {seconds} seconds",
                       field="hub", seconds=f"{deadline.seconds:g}")  # fmt: skip


def is_public(address: str) -> bool:
    """Return whether an IP address belongs to the public internet.

    IPv4 addresses that an IPv6 one stands for are looked through.
    """
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address):
        inner = parsed.ipv4_mapped or parsed.sixtofour
        if inner is None and parsed in _NAT64:
            inner = ipaddress.IPv4Address(int(parsed) & 0xFFFF_FFFF)
        if inner is not None:
            return is_public(str(inner))
    return parsed.is_global and not parsed.is_multicast and not parsed.is_reserved


def is_link_local(address: str) -> bool:
    """Return whether an IP address is link-local, where clouds answer with credentials."""
    return ipaddress.ip_address(address.partition("%")[0]).is_link_local


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Reads from one endpoint.

    `allow_private` lets that endpoint, and what it redirects to, be on a private network; from a
    public endpoint no redirect leads to one.
    """

    endpoint: str
    allow_private: bool = False

    def get(
        self,
        path: str,
        *,
        deadline: Deadline,
        limit_bytes: int,
        token: str | None = None,
        first_byte: int | None = None,
    ) -> Reply:
        """Return the answer to a GET of `path` below the endpoint.

        With `first_byte`, only `limit_bytes` from there on are asked for, and a longer answer is
        cut; without it a longer answer is refused.

        Raises:
            Unsupported: for an endpoint or a redirect that may not be connected to, and for a token
                that would go over an open connection.
            Unavailable: for a host that does not answer, in time or at all.
            OutOfRange: for an answer over the limit.

        """
        url = urlsplit(f"{self.endpoint.rstrip('/')}/{path}")
        origin = url
        headers: dict[str, str] = {}
        addresses = _resolved(url)
        is_private = self._check_endpoint(url, addresses)
        if token is not None and url.scheme != "https" and not is_private:
            raise Unsupported("{field} is sent over an encrypted connection only", field="token")
        for _ in range(MAX_REDIRECTS + 1):
            asked = {"User-Agent": _USER_AGENT, "Accept-Encoding": "identity"}
            if first_byte is not None:
                asked["Range"] = f"bytes={first_byte}-{first_byte + limit_bytes - 1}"
            if token is not None and _is_same_origin(url, origin):
                asked["Authorization"] = f"Bearer {token}"
            with _answer(url, addresses, asked, deadline) as found:
                # What the endpoint says of the file (its commit) counts beside the last host's.
                headers = {**headers, **{name.lower(): text for name, text in found.getheaders()}}
                if found.status not in _REDIRECTS:
                    return _reply(found, headers, limit_bytes, first_byte)
                url = _redirected(url, headers.pop("location", None))
            addresses = _resolved(url)
            _check_redirect(url, addresses, may_be_private=is_private)
        raise Unavailable("{field}: the Hub redirects more than {count} times",
                          field="hub", count=MAX_REDIRECTS)  # fmt: skip

    def _check_endpoint(self, url: SplitResult, addresses: list[str]) -> bool:
        """Refuse a private endpoint unless it is allowed; return whether it is one."""
        private = [address for address in addresses if not is_public(address)]
        if private and not self.allow_private:
            raise Unsupported(
                "{field}: {host} has an address on a private network ({address}); the operator of "
                "this server can allow that with KV_LEDGER_HUB_ALLOW_PRIVATE",
                field="hub",
                host=shown(url.hostname),
                address=private[0],
            )
        return bool(private)


def _check_redirect(url: SplitResult, addresses: list[str], *, may_be_private: bool) -> None:
    """Refuse a redirect into a private network, unless it comes from there; never to link-local."""
    for address in addresses:
        if is_public(address) or (may_be_private and not is_link_local(address)):
            continue
        raise Unsupported(
            "{field}: the Hub redirects to {host}, which is on a private network ({address})",
            field="hub",
            host=shown(url.hostname),
            address=address,
        )


def _redirected(url: SplitResult, location: str | None) -> SplitResult:
    """Return where a redirect leads; never from an encrypted connection to an open one."""
    try:
        target = urlsplit(urljoin(url.geturl(), location or ""))
        has_place = bool(location and target.hostname and _port(target))
    except ValueError:
        has_place = False
    if not has_place:
        raise Unavailable("{field}: the Hub redirects to no address", field="hub")
    if target.scheme not in {"http", "https"} or (url.scheme, target.scheme) == ("https", "http"):
        raise Unsupported("{field}: the Hub redirects to an address that is not encrypted",
                          field="hub")  # fmt: skip
    return target


def _port(url: SplitResult) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def _is_same_origin(one: SplitResult, other: SplitResult) -> bool:
    return (one.scheme, one.hostname, _port(one)) == (other.scheme, other.hostname, _port(other))


def _resolved(url: SplitResult) -> list[str]:
    """Return the addresses of a host, in the order in which they should be tried."""
    try:
        rows = socket.getaddrinfo(url.hostname, _port(url), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise Unavailable("{field}: {host} is not found", field="hub",
                          host=shown(url.hostname)) from None  # fmt: skip
    return list(dict.fromkeys(str(row[4][0]) for row in rows))[:MAX_ADDRESSES]


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _connected(url: SplitResult, addresses: list[str], deadline: Deadline) -> socket.socket:
    """Return a connection to the first address that takes one."""
    for address in addresses:
        try:
            plain = socket.create_connection((address, _port(url)), timeout=deadline.left)
        except OSError:
            continue
        if url.scheme != "https":
            return plain
        try:
            return _tls().wrap_socket(plain, server_hostname=url.hostname)
        except OSError as error:
            plain.close()
            raise Unavailable("{field}: no secure connection to {host}: {why}", field="hub",
                              host=shown(url.hostname), why=shown(error)) from None  # fmt: skip
    deadline.left  # noqa: B018 - says "slow" rather than "refused" when time ran out
    raise Unavailable("{field}: {host} takes no connection", field="hub",
                      host=shown(url.hostname))  # fmt: skip


@contextmanager
def _answer(
    url: SplitResult, addresses: list[str], asked: Mapping[str, str], deadline: Deadline
) -> Iterator[http.client.HTTPResponse]:
    """Give the answer of one host, its head read; every wait ends with the deadline.

    A timer closes the connection, since a socket's own timeout starts anew with every byte.
    """
    connection = http.client.HTTPConnection(str(url.hostname), _port(url))
    connection.sock = _connected(url, addresses, deadline)
    late = threading.Event()

    def stop(held: socket.socket = connection.sock) -> None:
        late.set()
        with suppress(OSError):
            held.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(deadline.left, stop)
    timer.daemon = True
    timer.start()
    try:
        target = f"{url.path or '/'}{'?' + url.query if url.query else ''}"
        connection.request("GET", target, headers=dict(asked))
        with closing(connection.getresponse()) as found:
            yield found
    except DomainError:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:
        if late.is_set() or isinstance(error, TimeoutError):
            raise slow(deadline) from None
        raise Unavailable("{field}: the answer of {host} broke off, or is none", field="hub",
                          host=shown(url.hostname)) from None  # fmt: skip
    finally:
        timer.cancel()
        connection.close()


def _reply(
    found: http.client.HTTPResponse,
    headers: Mapping[str, str],
    limit_bytes: int,
    first_byte: int | None,
) -> Reply:
    """Return the body up to the limit.

    A server that ignores the range and answers with the whole file is read only from its start.
    """
    body = bytearray()
    while len(body) <= limit_bytes:
        piece = found.read(min(_PIECE_BYTES, limit_bytes + 1 - len(body)))
        if not piece:
            break
        body += piece
    is_whole = len(body) <= limit_bytes
    if first_byte is None and not is_whole:
        raise OutOfRange("{field}: the answer is longer than the {high} bytes that are read",
                         field="hub", high=limit_bytes)  # fmt: skip
    missing = found.length
    if is_whole and missing:
        raise http.client.IncompleteRead(bytes(body), missing)
    status = found.status
    if first_byte and status == http.client.OK:
        raise Unavailable("{field}: the Hub answers a request for a part of a file with the whole",
                          field="hub")  # fmt: skip
    return Reply(status=status, headers=headers, body=bytes(body[:limit_bytes]), is_whole=is_whole)
