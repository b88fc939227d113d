"""Which users a server serves, and in which order."""

from __future__ import annotations

import re

import pytest

from gpuslice_sim.mps.launch import MpsDaemon, is_running
from gpuslice_sim.mps.simcuda import HeldClient

from .mps_rig import (
    MpsRig,
    eventually,
    needs_root,
    status_field,
)

ALICE, BOB = 4711, 4712


def is_pending(client: HeldClient, daemon: MpsDaemon) -> bool:
    log = (daemon.log_directory / "control.log").read_text()
    return re.search(rf"NEW CLIENT {client.pid} from user \d+: pending$", log, re.M) is not None


@needs_root
def test_a_client_of_another_user_waits_until_the_server_is_idle(rig: MpsRig) -> None:
    rig.open_to_all()
    with rig.daemon() as daemon:
        with rig.hold(daemon=daemon, user=ALICE) as alice:
            first = alice.ready()["server_pid"]
            assert status_field(first, "Uid").split()[0] == str(ALICE)
            bob = rig.hold(daemon=daemon, user=BOB)
            eventually(lambda: is_pending(bob, daemon))
            with pytest.raises(TimeoutError):
                bob.next_report(timeout=0.3)
        second = bob.ready()["server_pid"]
        assert second != first
        assert not is_running(first)
        assert status_field(second, "Uid").split()[0] == str(BOB)
        assert bob.stop() == 0


@needs_root
def test_clients_of_one_user_do_not_overtake_a_waiting_client_of_another(rig: MpsRig) -> None:
    rig.open_to_all()
    with rig.daemon() as daemon:
        alice = rig.hold(daemon=daemon, user=ALICE)
        alice.ready()
        bob = rig.hold(daemon=daemon, user=BOB)
        eventually(lambda: is_pending(bob, daemon))
        late = rig.hold(daemon=daemon, user=ALICE)
        eventually(lambda: is_pending(late, daemon))
        for client in (bob, late):
            with pytest.raises(TimeoutError):
                client.next_report(timeout=0.2)
        alice.stop()
        bob.ready()
        bob.stop()
        late.ready()
        late.stop()


@needs_root
def test_a_client_that_ends_while_it_waits_is_removed_from_the_queue(rig: MpsRig) -> None:
    rig.open_to_all()
    with rig.daemon() as daemon, rig.hold(daemon=daemon, user=ALICE) as alice:
        server = alice.ready()["server_pid"]
        bob = rig.hold(daemon=daemon, user=BOB)
        eventually(lambda: is_pending(bob, daemon))
        with pytest.raises(TimeoutError):
            bob.next_report(timeout=0.2)
        bob.kill()
        bob.stop()
        same = rig.run("info", daemon=daemon, user=ALICE)
        assert same.report["server_pid"] == server


@needs_root
def test_a_multi_user_server_serves_all_users_at_once(rig: MpsRig) -> None:
    rig.open_to_all()
    with (
        rig.daemon(multiuser=True) as daemon,
        rig.hold(daemon=daemon, user=ALICE) as alice,
        rig.hold(daemon=daemon, user=BOB) as bob,
        rig.hold(daemon=daemon) as root,
    ):
        servers = {client.ready()["server_pid"] for client in (alice, bob, root)}
        assert len(servers) == 1
        assert status_field(servers.pop(), "Uid").split()[0] == "0"
    assert [client.wait() for client in (alice, bob, root)] == [0, 0, 0]
