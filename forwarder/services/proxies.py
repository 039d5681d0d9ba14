"""Find the HTTP proxy that the environment names for a web service, and recognize the refusals of proxies.

The variables are HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY. httpx also reads these variables, but refuses a
NO_PROXY with an IPv6 network, or with an IPv6 address in brackets.
"""

import re
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit
from urllib.request import getproxies

# The marks of answers from proxies that did not pass the request on. Source: RFC 9209, section 2.3 (Proxy-Status), and
# the names of Squid's error pages. There is no mark for a connection that the proxy lost later, because the service may
# have read the request.
_NOT_PASSED_ON = re.compile(
    r"error=\"?(dns_|destination_|connection_refused|connection_timeout|connection_limit_reached|tls_|proxy_"
    r"|http_request_denied)"
    r"|ERR_(ACCESS_DENIED|CACHE_ACCESS_DENIED|CANNOT_FORWARD|CONNECT_FAIL|DNS_FAIL|FORWARDING_DENIED|SECURE_CONNECT_FAIL)"
)
PROXY_AUTHENTICATION_REQUIRED = 407


def proxy_for(url: str) -> str | None:
    """Return the URL of the proxy for calls of this URL, or None if the environment names no proxy for the host.

    ``urllib.request.getproxies`` reads the same variables as curl.
    """
    address, proxies = urlsplit(url), getproxies()
    proxy = proxies.get(address.scheme) or proxies.get("all")
    if not proxy or is_excepted(address.hostname or "", address.port, proxies.get("no", "")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def is_excepted(host: str, port: int | None, exceptions: str) -> bool:
    """Return whether a host needs no proxy.

    Args:
        host: a name, or an IP address without brackets.
        exceptions: the value of NO_PROXY: names of hosts and domains, IP addresses and IP networks, with commas or
            blanks between them. An entry may name a port. "*" stands for all hosts.
    """
    return any(_matches(entry, host.lower(), port) for entry in re.split(r"[,\s]+", exceptions.lower()) if entry)


def _matches(entry: str, host: str, port: int | None) -> bool:
    name = entry.rpartition("://")[2]
    with_port = re.fullmatch(r"(\[[^]]*\]|[^:]*):(\d+)", name)
    if with_port:
        name = with_port[1]
    if with_port and port != int(with_port[2]):
        return False
    if (address := _address(host)) is not None:
        try:
            return address in ip_network(re.sub(r"[][]", "", name), strict=False) or name == "*"
        except ValueError:
            return name == "*"
    domain = name.lstrip("*").lstrip(".")
    return name == "*" or host == domain or (domain != "" and host.endswith(f".{domain}"))


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def is_refusal(status: int, headers: Mapping[str, str], *, behind_proxy: bool) -> bool:
    """Return whether a proxy created this response, because it refused the request or did not reach the service.

    ``behind_proxy``: whether the request went to a proxy that can read the request, i.e. to a proxy of an ``http``
    service. Only then do a proxy's headers count, because a service may run the same proxy programs in front of its own
    servers.
    """
    if status == PROXY_AUTHENTICATION_REQUIRED:
        return True
    told = f"{headers.get('Proxy-Status', '')} {headers.get('X-Squid-Error', '')}"
    return behind_proxy and status >= 400 and _NOT_PASSED_ON.search(told) is not None
