from __future__ import annotations

import ipaddress

import pytest

from gpuslice.telemetry.listen_address import hosts_to_listen_on


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "node.example", "127.0.0.1"])
def test_an_address_with_a_host_is_used_as_it_is(host: str) -> None:
    assert hosts_to_listen_on(host, {"POD_IP": "10.1.2.3"}) == (host,)


def test_without_a_host_the_pod_is_reachable_at_its_address_and_on_loopback() -> None:
    assert hosts_to_listen_on(None, {"POD_IP": "10.1.2.3"}) == ("127.0.0.1", "10.1.2.3")
    assert hosts_to_listen_on(None, {"POD_IP": "fd00::1"}) == ("127.0.0.1", "fd00::1")


@pytest.mark.parametrize("variable", ["", "0.0.0.0.0", "localhost", "127.0.0.1"])
def test_never_every_interface_without_being_asked(variable: str) -> None:
    first, *others = hosts_to_listen_on(None, {"POD_IP": variable})
    assert first == "127.0.0.1"
    for other in others:
        assert not ipaddress.ip_address(other).is_unspecified
