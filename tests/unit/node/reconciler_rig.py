"""A reconciler whose settings and GPUs a test changes, and a program that records its plans."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from gpuslice.codes import Code
from gpuslice.config.load import Loaded
from gpuslice.config.settings import CdiSettings, Settings
from gpuslice.config.timing import Timing
from gpuslice.gpus.inventory import Inventory
from gpuslice.node.driver import Driver, Hardware
from gpuslice.node.errors import NoGpus
from gpuslice.node.reconciler import Reconciler
from gpuslice.node.snapshot import Problem
from gpuslice.node.state import NodeState
from gpuslice.node.triggers import Trigger, Triggers
from gpuslice.slicing.gpu import Gpu
from gpuslice.telemetry.metrics import Recorder

GPU = Gpu("GPU-a", 0, 0, "Tesla T4", 15360, (7, 5))
ONE = Settings(kubelet_socket="/one")
TWO = Settings(kubelet_socket="/two")
ELSEWHERE = Settings(cdi=CdiSettings(container_driver_root="/elsewhere"))


class FakeDriver(Driver):
    """The GPUs of the node by the driver root that the settings name."""

    def __init__(self) -> None:
        super().__init__(Timing())
        self.found: dict[str, Hardware | Exception] = {"/driver-root": hardware(GPU)}
        self.enumerations = 0
        self.closed = 0

    async def enumerate(self, settings: Settings) -> Hardware:
        self.enumerations += 1
        found = self.found.get(settings.cdi.container_driver_root, NoGpus("no such root"))
        if isinstance(found, Exception):
            raise found
        return found

    async def close(self) -> None:
        self.closed += 1


def hardware(*gpus: Gpu) -> Hardware:
    return Hardware(Inventory("570.1", gpus))


@dataclass
class Program:
    """A target that keeps a record of what is applied."""

    applied: list[tuple[str, int]] = field(default_factory=list)
    suspended: list[tuple[Problem, Hardware | None]] = field(default_factory=list)
    resets: int = 0
    # What the plan, the check and the application of these sockets raise.
    plan_errors: dict[str, Exception] = field(default_factory=dict)
    check_errors: dict[str, Exception] = field(default_factory=dict)
    apply_errors: list[Exception] = field(default_factory=list)
    # Sockets with which planning hangs until this is set.
    hanging: dict[str, threading.Event] = field(default_factory=dict)
    gpus_needed: bool = True
    tolerates: tuple[type[NoGpus], ...] = ()

    def needs_gpus(self, settings: Settings, problem: NoGpus | None) -> bool:
        del settings
        return self.gpus_needed and (problem is None or not isinstance(problem, self.tolerates))

    def plan(self, settings: Settings, hardware: Hardware | None) -> tuple[str, int]:
        if hanging := self.hanging.get(settings.kubelet_socket):
            hanging.wait()
        if error := self.plan_errors.get(settings.kubelet_socket):
            raise error
        return settings.kubelet_socket, -1 if hardware is None else len(hardware.inventory.gpus)

    def check(self, plan: tuple[str, int]) -> None:
        if error := self.check_errors.get(plan[0]):
            raise error

    async def apply(self, loaded: Loaded, plan: tuple[str, int]) -> None:
        assert loaded.settings.kubelet_socket == plan[0]
        if self.apply_errors:
            raise self.apply_errors.pop(0)
        self.applied.append(plan)

    def suspend(self, problem: Problem, hardware: Hardware | None) -> None:
        self.suspended.append((problem, hardware))

    def reset(self) -> None:
        self.resets += 1


class Rig:
    """A reconciler with settings, GPUs and triggers that a test changes."""

    def __init__(self, settings: Settings = ONE, check_seconds: float = 30.0) -> None:
        self.settings: Settings | Exception = settings
        self.loads = 0
        self.program = Program()
        self.driver = FakeDriver()
        self.state = NodeState()
        self.triggers = Triggers()
        self.metrics = Recorder()
        self.reconciler = Reconciler(
            target=self.program,
            load=self.load,
            driver=self.driver,
            state=self.state,
            triggers=self.triggers,
            metrics=self.metrics,
            retry_seconds=0.01,
            check_seconds=check_seconds,
        )

    def load(self) -> Loaded:
        self.loads += 1
        if isinstance(self.settings, Exception):
            raise self.settings
        return Loaded(self.settings)

    @property
    def problems(self) -> list[Code]:
        return [problem.code for problem in self.state.current.config_problems]

    async def trigger(self, *triggers: Trigger) -> None:
        """Until the reconciler has done what these ask for."""
        for trigger in triggers:
            self.triggers.add(trigger)
        await self.reconciler._reconcile(await self.triggers.wait())


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 (nothing to wait for: the state is polled)
            await asyncio.sleep(0.005)


def run(
    scenario: Callable[[Rig], Awaitable[None]],
    settings: Settings = ONE,
    check_seconds: float = 30.0,
) -> None:
    async def main() -> None:
        rig = Rig(settings, check_seconds)
        await rig.reconciler.start()
        await scenario(rig)

    asyncio.run(main())
