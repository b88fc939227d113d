"""Static partitions of the multiprocessors of a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice_sim.mps.launch import MpsError

from .mps_rig import (
    eventually,
    make_rig,
)


def test_static_partitions_give_fixed_multiprocessors(short_path: Path) -> None:
    rig = make_rig(short_path, "a100-40x8", driver=590)
    uuid = rig.uuids[0]
    with rig.daemon(static_partitioning=True) as daemon:
        name = daemon.command(f"sm_partition add {uuid} 7")
        assert name.startswith(f"{uuid}/")
        bare = rig.run("info", "--device", "0", daemon=daemon)
        assert bare.error == "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"
        with rig.hold(
            daemon=daemon,
            env={"CUDA_MPS_SM_PARTITION": name, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "10"},
        ) as client:
            [device] = client.ready()["devices"]
            assert device["sms"] == 28  # chunks of 4
            gpu, partition = (row.split() for row in daemon.command("lspart").splitlines()[1:3])
            assert gpu[2:6] == ["20", "7", "80", "28"]
            assert partition[1] == name.split("/")[1]
            assert partition[-1] == "Yes"
            with pytest.raises(MpsError, match="still has clients"):
                daemon.command(f"sm_partition rm {uuid} {partition[1]}")
        eventually(lambda: "Yes" not in daemon.command("lspart"))
        with pytest.raises(MpsError, match="21 chunks do not fit"):
            daemon.command(f"sm_partition add {uuid} 21")
        daemon.command(f"sm_partition rm {uuid} {partition[1]}")
        daemon.command(f"sm_partition add {uuid} 27")


def test_partitions_need_a_daemon_that_was_started_for_them(short_path: Path) -> None:
    rig = make_rig(short_path, "a100-40x8", driver=615)
    with rig.daemon() as daemon:
        with pytest.raises(MpsError, match="requires a daemon with --static-partitioning"):
            daemon.command(f"sm_partition add {rig.uuids[0]} 2")
        told = rig.run(
            "info", "--device", "0", daemon=daemon, env={"CUDA_MPS_SM_PARTITION": "GPU-1/2"}
        )
        assert told.device["sms"] == 108
        assert "CUDA_MPS_SM_PARTITION ignored" in told.report["warnings"][0]


def test_partitions_need_ampere(short_path: Path) -> None:
    rig = make_rig(short_path, driver=590)
    with (
        rig.daemon(static_partitioning=True) as daemon,
        pytest.raises(MpsError, match="require an Ampere or newer GPU"),
    ):
        daemon.command(f"sm_partition add {rig.uuids[0]} 2")
