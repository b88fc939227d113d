"""Where metrics and probes are served."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Mapping

_LOOPBACK = "127.0.0.1"
# Of the pod, from the downward API. Pods in the network of the host have the node's.
_POD_ADDRESS = "POD_IP"
# Addresses for documentation. Nothing is sent there: only the route is looked up.
_FAR_AWAY = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))


def hosts_to_listen_on(host: str | None, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Without a host: loopback, and the address at which the kubelet probes this process.

    Not every interface: a node may have others, for example to the outside.
    """
    if host is not None:
        return (host,)
    own = _valid(environment.get(_POD_ADDRESS, "")) or _address_of_the_default_route()
    return (_LOOPBACK,) if own in (None, _LOOPBACK) else (_LOOPBACK, own)


def _valid(address: str) -> str | None:
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return None


def _address_of_the_default_route() -> str | None:
    """None if there is none."""
    for family, address in _FAR_AWAY:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
    return None
