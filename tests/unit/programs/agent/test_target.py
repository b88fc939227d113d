"""What a plan changes in the state of the node, and which faults outlive it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpuslice.codes import Code
from gpuslice.config.load import Loaded
from gpuslice.config.settings import (
    CdiSettings,
    ContainerSettings,
    DeviceList,
    HealthSettings,
    Settings,
)
from gpuslice.config.timing import Timing
from gpuslice.gpus.faults import Fault
from gpuslice.gpus.inventory import Inventory, Skipped
from gpuslice.node.driver import Driver, Hardware
from gpuslice.node.errors import ProgramError
from gpuslice.node.snapshot import Problem
from gpuslice.node.state import NodeState
from gpuslice.programs.agent.daemon_monitor import DaemonMonitor
from gpuslice.programs.agent.late_binder import LateBinder
from gpuslice.programs.agent.memory_limiter import MemoryLimiter
from gpuslice.programs.agent.metrics_reader import MetricsReader
from gpuslice.programs.agent.plugin_servers import PluginServers
from gpuslice.programs.agent.pod_devices import PodDevicesReader
from gpuslice.programs.agent.target import AgentTarget
from gpuslice.programs.agent.usage_tracker import UsageTracker
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.rules import Rules
from gpuslice.telemetry.metrics import NoMetrics, Recorder
from tests.unit.gpus.elf_files import library

A, B = (Gpu(f"GPU-{n}", i, i, "T4", 2048, (7, 5)) for i, n in enumerate("ab"))
SETTINGS = Settings(rules=Rules(), kubelet_socket="", health=HealthSettings(enabled=False))
XID_A, XID_B = (Fault(Code.XID, "XID 79", gpu.uuid, xid=79) for gpu in (A, B))
ANY = Fault(Code.XID, "XID 79 of an unknown GPU", xid=79)


class Node:
    def __init__(self, state: NodeState, target: AgentTarget) -> None:
        self.state = state
        self.target = target

    async def apply(self, *gpus: Gpu, skipped: tuple[Skipped, ...] = ()) -> None:
        hardware = Hardware(Inventory("570.1", gpus, skipped))
        plan = self.target.plan(SETTINGS, hardware)
        await self.target.apply(Loaded(SETTINGS, ("look at this",)), plan)

    @property
    def faults(self) -> set[Fault]:
        return set(self.state.current.faults)


def run(scenario: Callable[[Node], Awaitable[None]]) -> None:
    async def main() -> None:
        state = NodeState()
        async with asyncio.TaskGroup() as tasks:
            monitor = DaemonMonitor(tasks, state, Timing())
            usage = UsageTracker(state, Timing(), lambda: "")
            binder = LateBinder(state, Timing())
            driver, metrics = Driver(Timing()), NoMetrics()
            limiter = MemoryLimiter(driver, state, metrics, Timing(), PodDevicesReader())
            servers = PluginServers(
                tasks, state, monitor, usage, binder, limiter, metrics, Timing()
            )
            target = AgentTarget(driver, state, servers, monitor, binder)
            await scenario(Node(state, target))

    asyncio.run(main())


def test_a_plan_becomes_the_state_of_the_node() -> None:
    async def scenario(node: Node) -> None:
        await node.apply(A, B)
        current = node.state.current
        assert current.settings == SETTINGS
        assert [gpu.uuid for gpu in current.inventory.gpus] == ["GPU-a", "GPU-b"]
        assert [pool.resource for pool in current.pools] == ["nvidia.com/gpu"]
        assert [notice.message for notice in current.notices] == ["look at this"]

    run(scenario)


def test_a_gpu_that_leaves_and_comes_back_is_a_new_one() -> None:
    async def scenario(node: Node) -> None:
        await node.apply(A, B)
        node.state.replace_faults((XID_A, XID_B, ANY))
        await node.apply(B)
        assert node.faults == {XID_B, ANY}

    run(scenario)


def test_a_gpu_that_does_not_answer_keeps_its_faults() -> None:
    async def scenario(node: Node) -> None:
        await node.apply(A, B)
        node.state.replace_faults((XID_A,))
        await node.apply(B, skipped=(Skipped(1, "a MIG device", mig_index=0, silent=True),))
        assert node.faults == set()
        node.state.replace_faults((XID_A,))
        await node.apply(B, skipped=(Skipped(0, "no answer", silent=True),))
        assert node.faults == {XID_A}

    run(scenario)


def test_while_the_node_cannot_be_read_nothing_is_healthy_and_no_fault_is_lost() -> None:
    async def scenario(node: Node) -> None:
        await node.apply(A, B)
        node.state.add_fault(XID_A)
        for message in ("the driver is gone", "the driver is still gone"):
            node.target.suspend(Problem(Code.NODE_UNREADABLE, message), None)
        assert node.faults == {XID_A, Fault(Code.NODE_UNREADABLE, "the driver is still gone")}
        [pool] = node.state.current.pools
        assert not any(node.state.current.healthy(part) for part in pool.parts)
        await node.apply(A, B)
        assert node.faults == {XID_A}

    run(scenario)


def test_a_reset_drops_what_the_driver_reports_again_and_nothing_else() -> None:
    async def scenario(node: Node) -> None:
        await node.apply(A, B)
        missing = Fault(Code.CDI_DEVICE_MISSING, "x", A.uuid)
        unreadable = Fault(Code.NODE_UNREADABLE, "y")
        node.state.replace_faults((XID_A, ANY, missing, unreadable))
        node.target.reset()
        assert node.faults == {missing, unreadable}

    run(scenario)


def test_if_the_settings_do_not_fit_only_devices_that_changed_are_unhealthy() -> None:
    async def scenario(node: Node) -> None:
        await node.apply(A, B)
        node.state.add_fault(XID_B)
        node.target.suspend(Problem(Code.NODE_UNREADABLE, "first"), None)
        changed = replace(A, mig_enabled=True)
        hardware = Hardware(Inventory("570.1", (changed, B)))
        node.target.suspend(Problem(Code.NODE_UNREADABLE, "MIG"), hardware)
        assert node.faults == {XID_B, Fault(Code.GPU_CHANGED, "MIG", A.uuid)}
        # A GPU that is gone, and the others as they were.
        node.target.suspend(
            Problem(Code.NODE_UNREADABLE, "CDI"), Hardware(Inventory("570.1", (A,)))
        )
        assert node.faults == {Fault(Code.GPU_CHANGED, "CDI", B.uuid)}
        await node.apply(A, B)
        assert node.faults == set()

    run(scenario)


def test_a_plan_that_comes_after_the_removal_of_specifications_writes_none(tmp_path: Path) -> None:
    """It may be in its thread, cancelled, when the agent ends."""
    by_cdi = replace(
        SETTINGS,
        containers=ContainerSettings(device_list=frozenset({DeviceList.CDI_CRI})),
        cdi=CdiSettings(
            container_driver_root=str(tmp_path), directory=str(tmp_path), remove_on_exit=True
        ),
    )
    (tmp_path / "usr" / "lib64").mkdir(parents=True)
    (tmp_path / "usr" / "lib64" / "libcuda.so.570.1").write_bytes(library("libcuda.so.1"))
    hardware = Hardware(Inventory("570.1", (replace(A, nodes=("/dev/null",)),)))

    async def scenario(node: Node) -> None:
        plan = node.target.plan(by_cdi, hardware)
        await node.target.apply(Loaded(by_cdi), plan)
        assert len(list(tmp_path.glob("*.json"))) == 1
        node.target.remove_cdi_specs()
        with pytest.raises(ProgramError):
            node.target.plan(by_cdi, hardware)
        assert list(tmp_path.glob("*.json")) == []

    run(scenario)


def test_all_gpus_are_unhealthy_in_the_metrics_while_the_node_cannot_be_read() -> None:
    async def scenario(node: Node) -> None:
        recorder = Recorder()
        node.state.subscribe(MetricsReader(recorder).read)
        await node.apply(A, B)
        assert [healthy for _, healthy in recorder.gpus.values()] == [True, True]
        node.target.suspend(Problem(Code.NODE_UNREADABLE, "the driver is not loaded"), None)
        assert [healthy for _, healthy in recorder.gpus.values()] == [False, False]
        await node.apply(A, B)
        assert [healthy for _, healthy in recorder.gpus.values()] == [True, True]

    run(scenario)


def test_a_reset_does_not_end_the_fault_of_a_driver_that_hangs() -> None:
    async def scenario(node: Node) -> None:
        await node.apply(A, B)
        hang = Fault(Code.DRIVER_NOT_RESPONDING, "the driver does not answer")
        node.state.add_fault(hang)
        node.target.reset()
        assert node.faults == {hang}

    run(scenario)
