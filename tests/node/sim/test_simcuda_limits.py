"""The limits a CUDA program really meets under MPS."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuslice_sim.mps.launch import MpsDaemon

from .mps_rig import CONTEXT, GIB, MIB, SERVER, MpsRig, make_rig

OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


@contextmanager
def limited(rig: MpsRig, percentage: int, limit: str) -> Iterator[MpsDaemon]:
    """A running daemon with these defaults for GPU 0."""
    with rig.daemon() as daemon:
        daemon.command(f"set_default_active_thread_percentage {percentage}")
        daemon.command(f"set_default_device_pinned_mem_limit 0 {limit}")
        yield daemon


@pytest.mark.parametrize("driver", [535, 570, 590, 615])
def test_filling_stops_exactly_at_the_limit(short_path: Path, driver: int) -> None:
    rig = make_rig(short_path, driver=driver)
    with limited(rig, 50, "3G") as daemon:
        for step in ("16MiB", "10000019", "7GiB"):
            filled = rig.run("fill", "--step", step, daemon=daemon)
            assert filled.status == 0
            assert filled.error == OUT_OF_MEMORY
            assert filled.report["context_bytes"] == CONTEXT
            assert filled.report["allocated_bytes"] == 3 * GIB - CONTEXT
            assert filled.report["total_bytes"] == filled.report["limit_bytes"] == 3 * GIB


def test_one_byte_more_than_the_limit_leaves_is_refused(rig: MpsRig) -> None:
    with limited(rig, 100, "1G") as daemon:
        assert rig.run("alloc", str(GIB - CONTEXT), daemon=daemon).status == 0
        refused = rig.run("alloc", str(GIB - CONTEXT + 1), daemon=daemon)
        assert (refused.status, refused.error) == (2, OUT_OF_MEMORY)


def test_units_are_binary(rig: MpsRig) -> None:
    with limited(rig, 100, "10G") as daemon:
        assert rig.run("info", "--device", "0", daemon=daemon).device["limit_bytes"] == 10737418240


@pytest.mark.parametrize(
    ("server", "client", "effective"),
    [(50, "25", 25.0), (25, "50", 25.0), (50, "100", 50.0), (100, "12.5", 12.5)],
)
def test_the_smaller_percentage_applies(
    rig: MpsRig, server: int, client: str, effective: float
) -> None:
    with limited(rig, server, "2G") as daemon:
        env = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": client}
        device = rig.run("info", "--device", "0", daemon=daemon, env=env).device
        assert device["thread_percentage"] == effective


@pytest.mark.parametrize(
    ("client", "effective"), [("0=1G", GIB), ("0=4G", 2 * GIB), ("0=512M,1=1G", GIB // 2)]
)
def test_the_smaller_memory_limit_applies(rig: MpsRig, client: str, effective: int) -> None:
    with limited(rig, 100, "2G") as daemon:
        env = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": client}
        filled = rig.run("fill", daemon=daemon, env=env)
        assert filled.report["total_bytes"] == filled.report["limit_bytes"] == effective


@pytest.mark.parametrize(
    ("sms", "sms_per_tpc", "percentage", "effective"),
    [
        (188, 2, 100, 188),
        (188, 2, 75, 140),
        (188, 2, 50, 94),
        (188, 2, 25, 46),
        (188, 2, 1, 2),
        (108, 2, 33, 34),
        (10, 1, 25, 2),
    ],
)
def test_multiprocessors_are_rounded_down_to_whole_tpcs(
    rig: MpsRig, sms: int, sms_per_tpc: int, percentage: int, effective: int
) -> None:
    rig.node.set({"gpu.0.sms": sms, "gpu.0.sms_per_tpc": sms_per_tpc})
    with limited(rig, percentage, "2G") as daemon:
        device = rig.run("info", "--device", "0", daemon=daemon).device
        assert (device["sms"], device["sms_total"]) == (effective, sms)


def test_memory_info_shows_the_limit_as_free_but_the_whole_gpu_as_total(rig: MpsRig) -> None:
    with limited(rig, 100, "2G") as daemon:
        device = rig.run("info", "--device", "0", daemon=daemon).device
        assert device["free_bytes"] == 2 * GIB - CONTEXT
        assert device["total_bytes"] == rig.node.gpus()[0].memory_total_bytes


@pytest.mark.parametrize("strange", ["GPU-12345678", "9=1G", "2=1G"])
def test_one_gpu_the_process_cannot_see_drops_every_memory_limit(rig: MpsRig, strange: str) -> None:
    entry = strange if "=" in strange else f"{strange}=1G"
    with limited(rig, 50, "2G") as daemon:
        env = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0=1G,{entry}"}
        escaped = rig.run("fill", daemon=daemon, env=env)
        gpu = rig.node.gpus()[0]
        assert escaped.report["limit_bytes"] is None
        assert escaped.report["total_bytes"] == (
            gpu.memory_total_bytes - gpu.memory_reserved_bytes - SERVER
        )
        assert escaped.device["sms"] == 20  # the compute limit stays
        assert "which this process cannot see" in escaped.report["warnings"][0]


def test_a_gpu_hidden_by_cuda_visible_devices_springs_the_same_trap(rig: MpsRig) -> None:
    first, second = rig.uuids
    both = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{first}=1G,{second}=1G"}
    with limited(rig, 50, "2G") as daemon:
        env = both | {"CUDA_VISIBLE_DEVICES": first}
        assert rig.run("info", daemon=daemon, env=env).device["limit_bytes"] is None
        env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"{first}=1G"
        assert rig.run("info", daemon=daemon, env=env).device["limit_bytes"] == GIB


def test_a_gpu_outside_the_container_has_its_limit_since_the_server_offers_it(rig: MpsRig) -> None:
    first, second = rig.uuids
    with limited(rig, 50, "2G") as daemon:
        env = {
            "NVIDIA_VISIBLE_DEVICES": first,
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{first}=1G,{second}=3G",
        }
        devices = rig.run("info", daemon=daemon, env=env).report["devices"]
        assert {d["uuid"]: d["limit_bytes"] for d in devices} == {first: GIB, second: 3 * GIB}


def test_ordinals_in_the_clients_limit_count_what_the_client_sees(rig: MpsRig) -> None:
    with rig.daemon() as daemon:
        env = {
            "CUDA_VISIBLE_DEVICES": rig.uuids[1],
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G",
        }
        device = rig.run("info", daemon=daemon, env=env).device
        assert (device["uuid"], device["limit_bytes"]) == (rig.uuids[1], GIB)


@pytest.mark.parametrize(("driver", "applied"), [(535, 2 * GIB), (570, GIB), (615, GIB)])
def test_branch_535_does_not_apply_the_clients_limits_by_uuid(
    short_path: Path, driver: int, applied: int
) -> None:
    rig = make_rig(short_path, driver=driver)
    with limited(rig, 100, "2G") as daemon:
        env = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{rig.uuids[0]}=1G"}
        told = rig.run("info", "--device", "0", daemon=daemon, env=env)
        assert told.device["limit_bytes"] == applied
        assert bool(told.report["warnings"]) == (driver == 535)


@pytest.mark.parametrize("value", ["1G", "0=", "0=1", "0=1T", "0=1.5G", "0=-1G", "0=0M", "=1G", ""])
def test_an_unreadable_memory_limit_is_ignored_with_a_warning(rig: MpsRig, value: str) -> None:
    with limited(rig, 100, "2G") as daemon:
        env = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": value}
        told = rig.run("info", "--device", "0", daemon=daemon, env=env)
        assert told.device["limit_bytes"] == 2 * GIB
        [warning] = told.report["warnings"]
        assert warning.startswith(f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={value} ignored")


@pytest.mark.parametrize("value", ["0", "101", "-5", "half", "50%", ""])
def test_an_unreadable_percentage_is_ignored_with_a_warning(rig: MpsRig, value: str) -> None:
    with limited(rig, 50, "2G") as daemon:
        env = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": value}
        told = rig.run("info", "--device", "0", daemon=daemon, env=env)
        assert told.device["thread_percentage"] == 50.0
        assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in told.report["warnings"][0]


def test_the_clients_priority_beats_the_default(rig: MpsRig) -> None:
    with rig.daemon() as daemon:
        daemon.command("set_default_client_priority 1")
        assert rig.run("info", daemon=daemon).report["priority"] == 1
        env = {"CUDA_MPS_CLIENT_PRIORITY": "0"}
        assert rig.run("info", daemon=daemon, env=env).report["priority"] == 0


def test_a_limit_smaller_than_a_context_is_no_use(rig: MpsRig) -> None:
    with limited(rig, 100, f"{CONTEXT // MIB - 1}M") as daemon:
        for command in (("info", "--device", "0"), ("alloc", "1"), ("fill",)):
            refused = rig.run(*command, daemon=daemon)
            assert (refused.status, refused.error) == (2, OUT_OF_MEMORY)


def test_every_context_counts_inside_the_limit(rig: MpsRig) -> None:
    with limited(rig, 100, "1G") as daemon:
        filled = rig.run("fill", "--contexts", "3", daemon=daemon)
        assert filled.report["context_bytes"] == 3 * CONTEXT
        assert filled.report["allocated_bytes"] == GIB - 3 * CONTEXT


def test_each_process_gets_the_limit_for_itself(rig: MpsRig) -> None:
    with (
        limited(rig, 50, "3G") as daemon,
        rig.hold("--alloc", str(3 * GIB - CONTEXT), daemon=daemon) as first,
        rig.hold("--alloc", str(3 * GIB - CONTEXT), daemon=daemon) as second,
    ):
        for client in (first, second):
            client.ready()
            assert rig.used_by(client.pid) == {rig.uuids[0]: 3 * GIB}


def test_limits_do_not_reserve_so_the_gpu_can_be_full_below_them(rig: MpsRig) -> None:
    gpu = rig.node.gpus()[0]
    room = gpu.memory_total_bytes - gpu.memory_reserved_bytes - SERVER
    with (
        limited(rig, 100, "12G") as daemon,
        rig.hold("--alloc", "8GiB", daemon=daemon) as first,
    ):
        first.ready()
        filled = rig.run("fill", daemon=daemon)
        assert filled.report["limit_bytes"] == 12 * GIB
        assert filled.report["total_bytes"] == room - 8 * GIB - CONTEXT
        assert "is full" in filled.report["message"]


@pytest.mark.parametrize(("driver", "most"), [(570, 48), (590, 60)])
def test_contexts_are_limited_by_the_driver(short_path: Path, driver: int, most: int) -> None:
    rig = make_rig(short_path, driver=driver)
    rig.node.set({"cuda.context_bytes": MIB})
    with (
        rig.daemon() as daemon,
        rig.hold("--contexts", str(most - 1), daemon=daemon) as many,
        rig.hold(daemon=daemon) as last,
    ):
        assert len(many.ready()["contexts"]) == most - 1
        last.ready()
        refused = rig.run("info", "--device", "0", daemon=daemon)
        assert refused.error == "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED"
        assert rig.run("info", "--device", "1", daemon=daemon).status == 0  # counted per GPU
        last.stop()
        assert rig.run("info", "--device", "0", daemon=daemon).status == 0


def test_before_volta_there_are_sixteen_contexts_and_no_limits(rig: MpsRig) -> None:
    rig.node.set({"gpu.0.cc": "6.1", "gpu.1.cc": "6.1"})
    rig.node.set({"mps.max_contexts": 16, "cuda.context_bytes": MIB})
    with limited(rig, 50, "1G") as daemon, rig.hold("--contexts", "16", daemon=daemon) as many:
        [device] = many.ready()["devices"]
        assert (device["sms"], device["limit_bytes"]) == (40, None)
        refused = rig.run("info", "--device", "0", daemon=daemon)
        assert refused.error == "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED"


def test_contexts_of_one_process_may_differ_only_where_that_is_enabled(rig: MpsRig) -> None:
    with limited(rig, 50, "4G") as daemon:
        arguments = ("info", "--device", "0", "--contexts", "3")
        wanted = ("--context-percentages", "20,80,40")
        plain = rig.run(*arguments, *wanted, daemon=daemon).report["contexts"]
        assert [context["sms"] for context in plain] == [20, 20, 20]
        variable = "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING"
        each = rig.run(*arguments, *wanted, daemon=daemon, env={variable: "1"}).report["contexts"]
        assert [context["sms"] for context in each] == [8, 20, 16]  # each only tightens


def test_twenty_clients_at_once_never_take_more_than_there_is(rig: MpsRig) -> None:
    gpu = rig.node.gpus()[0]
    room = gpu.memory_total_bytes - gpu.memory_reserved_bytes - SERVER
    with limited(rig, 50, "2G") as daemon:
        clients = [rig.hold("--alloc", "1GiB", daemon=daemon) for _ in range(20)]
        try:
            reports = [client.next_report() for client in clients]
            won = [report for report in reports if report["error"] is None]
            assert {report["error"] for report in reports} == {None, OUT_OF_MEMORY}
            assert len({report["server_pid"] for report in reports}) == 1
            taken = sum(process.used_bytes for process in rig.node.state.processes())
            assert SERVER + len(won) * (GIB + CONTEXT) <= taken <= room + SERVER * 2
        finally:
            assert {client.stop() for client in clients} == {0, 2}


def test_many_processes_fill_one_gpu_to_the_last_byte(rig: MpsRig) -> None:
    gpu = rig.node.gpus()[0]
    room = gpu.memory_total_bytes - gpu.memory_reserved_bytes - SERVER
    holders = 6
    with rig.daemon() as daemon:
        clients = [rig.hold("--alloc", "2GiB", daemon=daemon) for _ in range(holders)]
        for client in clients:
            client.ready()
        left = room - holders * (2 * GIB + CONTEXT)
        with ThreadPoolExecutor(2) as pool:
            ends = list(pool.map(lambda _: rig.run("fill", daemon=daemon), range(2)))
        assert max(end.report["total_bytes"] for end in ends) <= left
        assert rig.run("fill", daemon=daemon).report["total_bytes"] == left
        assert [client.stop() for client in clients] == [0] * holders
