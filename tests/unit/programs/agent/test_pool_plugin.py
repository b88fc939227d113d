"""What one resource answers to the kubelet, and when its devices are unhealthy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpuslice.codes import Code
from gpuslice.config.settings import (
    ContainerSettings,
    DeviceList,
    MemoryMps,
    MpsCheck,
    Settings,
)
from gpuslice.config.startup_options import StartupOptions
from gpuslice.config.timing import Timing
from gpuslice.gpus.faults import Fault
from gpuslice.gpus.inventory import Inventory
from gpuslice.inject.visible import Host
from gpuslice.kubelet.plugin_service import Refused
from gpuslice.labels.errors import NodeUnreadable
from gpuslice.node.driver import Driver, Hardware
from gpuslice.node.state import NodeState
from gpuslice.programs.agent.daemon_monitor import DaemonMonitor
from gpuslice.programs.agent.label_publisher import LabelPublisher
from gpuslice.programs.agent.late_binder import LateBinder
from gpuslice.programs.agent.memory_limiter import MemoryLimiter
from gpuslice.programs.agent.plan import AgentPlan, _cdi_faults, make_plan
from gpuslice.programs.agent.pod_devices import PodDevicesReader
from gpuslice.programs.agent.pool_plugin import PoolPlugin
from gpuslice.programs.agent.usage_tracker import UsageTracker
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.rules import MemoryRule, Rules
from gpuslice.telemetry.metrics import NoMetrics

GPUS = (Gpu("GPU-a", 0, 0, "T4", 2048, (7, 5)), Gpu("GPU-b", 1, 1, "T4", 2048, (7, 5)))
BY_CDI = ContainerSettings(device_list=frozenset({DeviceList.CDI_CRI}))
ONE_NAME = Host(cdi_names={"GPU-b": "nvidia.com/gpu=GPU-b"})


def make(settings: Settings) -> AgentPlan:
    return make_plan(settings, Hardware(Inventory("570.1", GPUS)))


def described_by_cdi(plan: AgentPlan) -> AgentPlan:
    """As if CDI described the second GPU only."""
    injection = replace(plan.injection, containers=BY_CDI, host=ONE_NAME)
    return replace(plan, injection=injection, faults=tuple(_cdi_faults(plan.pools, injection)))


def run(plan: AgentPlan, scenario: Callable[[PoolPlugin, NodeState], Awaitable[None]]) -> None:
    async def main() -> None:
        state = NodeState()
        state.publish(replace(state.current, pools=plan.pools, faults=plan.faults))
        async with asyncio.TaskGroup() as tasks:
            monitor = DaemonMonitor(tasks, state, Timing(mps_probe=3600))
            monitor.apply(plan.daemons)
            [pool] = plan.pools
            usage = UsageTracker(state, Timing(), lambda: "")
            limiter = MemoryLimiter(
                Driver(Timing()), state, NoMetrics(), Timing(), PodDevicesReader()
            )
            binder = LateBinder(state, Timing())
            plugin = PoolPlugin(pool, plan, state, monitor, usage, binder, limiter)
            state.subscribe(lambda _before, _after: plugin.refresh())
            await scenario(plugin, state)
            monitor.apply({})

    asyncio.run(main())


def healthy(plugin: PoolPlugin) -> list[str]:
    return [one for group in plugin.devices.value if group.healthy for one in group.ids]


@pytest.mark.parametrize(
    ("rules", "missing", "described"),
    [
        (Rules(), ["GPU-a"], ["GPU-b"]),
        (Rules(memory=MemoryRule()), ["GPU-a-_-0", "GPU-a-_-1"], ["GPU-b-_-0", "GPU-b-_-1"]),
    ],
    ids=["whole", "memory"],
)
def test_what_cdi_does_not_describe_is_unhealthy_and_refused(
    rules: Rules, missing: list[str], described: list[str]
) -> None:
    async def scenario(plugin: PoolPlugin, state: NodeState) -> None:
        del state
        assert healthy(plugin) == described
        with pytest.raises(Refused, match="no CDI specification describes") as refused:
            await plugin.allocate([missing])
        assert refused.value.code is Code.CDI_DEVICE_MISSING
        [edits] = await plugin.allocate([described])
        assert edits.cdi_devices == ("nvidia.com/gpu=GPU-b",)

    run(described_by_cdi(make(Settings(rules=rules))), scenario)


def test_a_fault_reaches_the_device_list_at_once_and_its_end_too() -> None:
    async def scenario(plugin: PoolPlugin, state: NodeState) -> None:
        state.add_fault(Fault(Code.XID, "XID 79", "GPU-a", xid=79))
        assert healthy(plugin) == ["GPU-b"]
        state.add_fault(Fault(Code.NODE_UNREADABLE, "driver gone"))
        assert healthy(plugin) == []
        state.replace_faults(())
        assert healthy(plugin) == ["GPU-a", "GPU-b"]

    run(make(Settings(rules=Rules())), scenario)


@pytest.mark.parametrize("rules", [Rules(), Rules(memory=MemoryRule())], ids=["whole", "memory"])
def test_devices_of_an_unhealthy_gpu_are_refused_and_their_containers_wait(rules: Rules) -> None:
    async def scenario(plugin: PoolPlugin, state: NodeState) -> None:
        sick, well = [next(iter(part.ids)) for part in plugin.pool.parts]
        state.add_fault(Fault(Code.XID, "XID 79", "GPU-a", xid=79))
        with pytest.raises(Refused, match=r"GPU 0 .* is unhealthy: XID 79") as refused:
            await plugin.allocate([[well], [sick]])
        assert refused.value.code is Code.XID
        with pytest.raises(Refused, match="the container waits") as waits:
            await plugin.pre_start([sick])
        assert waits.value.code is Code.XID
        await plugin.allocate([[well]])
        await plugin.pre_start([well])
        assert plugin.pre_start_required is (rules.memory is not None)

    run(make(Settings(rules=rules)), scenario)


def test_refusals_name_the_resource_in_nvidias_words() -> None:
    async def scenario(plugin: PoolPlugin, state: NodeState) -> None:
        del state
        with pytest.raises(Refused) as refused:
            await plugin.allocate([["GPU-b"], ["GPU-x"]])
        assert refused.value.code is Code.UNKNOWN_DEVICE
        assert str(refused.value).startswith(
            'invalid allocation request for "nvidia.com/gpu": invalid request: unknown device: '
        )

    run(make(Settings(rules=Rules())), scenario)


def limited(pipe: Path, check: MpsCheck) -> Settings:
    return Settings(
        rules=Rules(memory=MemoryRule(limited=True)), memory_mps=MemoryMps(str(pipe), check)
    )


def test_without_an_answer_of_mps_devices_are_unhealthy_and_containers_wait(
    tmp_path: Path,
) -> None:
    async def scenario(plugin: PoolPlugin, state: NodeState) -> None:
        assert plugin.pre_start_required
        # Before the first probe: nothing is promised.
        assert healthy(plugin) == []
        for ids in (["GPU-a-_-0"], ["unknown"]):
            with pytest.raises(Refused) as refused:
                await plugin.pre_start(ids)
            assert refused.value.code is Code.MPS_UNAVAILABLE
        assert healthy(plugin) == []
        problem = state.current.daemons["aliyun.com/gpu-mem"].problem
        assert problem is not None
        assert problem.code is Code.MPS_UNAVAILABLE

    run(make(limited(tmp_path, MpsCheck.REQUIRE)), scenario)


@pytest.mark.parametrize("check", [MpsCheck.OFF, MpsCheck.AUTO])
def test_a_daemon_that_is_not_checked_or_not_visible_is_assumed_to_run(
    tmp_path: Path, check: MpsCheck
) -> None:
    async def scenario(plugin: PoolPlugin, state: NodeState) -> None:
        del state
        await plugin.pre_start(["GPU-a-_-0"])
        assert len(healthy(plugin)) == 4

    run(make(limited(tmp_path / "missing", check)), scenario)


def test_labels_stay_as_they_are_while_the_driver_is_closed() -> None:
    async def collect() -> None:
        state = NodeState()
        state.publish(replace(state.current, settings=Settings(), inventory=Inventory("1", GPUS)))
        await LabelPublisher(StartupOptions(), None, Driver(Timing()), state)._collect()

    with pytest.raises(NodeUnreadable, match="not loaded"):
        asyncio.run(collect())
