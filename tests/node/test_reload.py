"""Settings of an agent with several resources change: only the affected ones are restarted."""

from __future__ import annotations

import signal

import pytest

from gpuslice.codes import Code
from gpuslice_sim.kubelet import Container, Pod
from gpuslice_sim.process import BackgroundProcess

from .conftest import MakeRig
from .rig import AGENT, ENTRY_POINTS, GPU, Rig, needs_root

T4, A100 = "nvidia.com/t4", "nvidia.com/a100"
MODELS = 'resources: {gpus: [{pattern: "*T4", name: t4}, {pattern: "*A100*", name: %s}]}\n'
# One GPU that is selected for memory units and for replicas.
BOTH_WAYS = (
    "sharing: {memory: {devices: [0]}, "
    "timeSlicing: {resources: [{name: gpu, devices: [0], replicas: 2}]}}"
)


def replicated(number: int) -> str:
    return f"sharing: {{timeSlicing: {{resources: [{{name: gpu, replicas: {number}}}]}}}}\n"


def change_config(agent: BackgroundProcess, rig: Rig, text: str, *, by_signal: bool) -> None:
    """A changed file is also read without the signal."""
    rig.config(text)
    if by_signal:
        agent.send(signal.SIGHUP)


@pytest.mark.parametrize("by_signal", [True, False], ids=["SIGHUP", "the file alone"])
@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_a_renamed_resource_is_registered_and_the_others_are_not_affected(
    make_rig: MakeRig, entry: str, by_signal: bool
) -> None:
    rig = make_rig("mixed")
    with rig.plugin(rig.config(MODELS % "a100"), entry=entry) as agent:
        rig.wait_for_resources(T4, A100, GPU)
        kept = {name: rig.kubelet.wait_for(name) for name in (T4, GPU)}
        assert rig.kubelet.registrations == 3
        change_config(agent, rig, MODELS % "ampere", by_signal=by_signal)
        rig.kubelet.wait_for("nvidia.com/ampere")
        rig.kubelet.wait_until(
            lambda: rig.kubelet.allocatable(A100) == 0, "the end of the old name"
        )
        assert rig.kubelet.registrations == 4
        assert {name: rig.kubelet.endpoint(name) for name in kept} == kept
        assert [endpoint.lists for endpoint in kept.values()] == [1, 1]
        assert sorted(path.name for path in rig.kubelet.directory.glob("nvidia-*")) == [
            "nvidia-ampere.sock",
            "nvidia-gpu.sock",
            "nvidia-t4.sock",
        ]


def test_another_number_of_replicas_is_sent_on_the_open_stream(rig: Rig) -> None:
    with rig.plugin(rig.config(replicated(2))):
        rig.kubelet.wait_for(GPU)
        rig.config(replicated(5))
        rig.kubelet.wait_until(lambda: rig.kubelet.capacity(GPU) == 10, "ten replicas")
        assert rig.kubelet.registrations == 1
        assert rig.allocate(GPU, f"{rig.node.gpus()[0].uuid}::4")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 0}]}}", "replicas"),
        ("flags: {migStrategy: twofold}", "flags.migStrategy"),
        ("sharing: {timeSlicing: {renameByDefualt: true}}", "renameByDefault"),
        ("sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}", "mps-root"),
        (
            BOTH_WAYS,
            "sharing.memory devices",
        ),
    ],
    ids=["value", "choice", "typo", "missing", "contradiction"],
)
def test_an_invalid_file_changes_nothing_and_the_field_is_named(
    rig: Rig, text: str, field: str
) -> None:
    with rig.run(
        [*rig.program("nvidia-device-plugin"), rig.config(replicated(3))], name="plugin"
    ) as plugin:
        endpoint = rig.kubelet.wait_for(GPU)
        rig.config(text)
        [line] = plugin.wait_for_code(Code.CONFIGURATION_INVALID)
        assert field in line
        assert rig.kubelet.allocatable(GPU) == 6
        assert rig.kubelet.endpoint(GPU) is endpoint
        rig.config(replicated(4))
        rig.kubelet.wait_until(lambda: rig.kubelet.allocatable(GPU) == 8, "the next good file")
        assert rig.kubelet.registrations == 1
        assert "Traceback" not in plugin.output()


@pytest.mark.parametrize(
    "text",
    [
        (
            "flags: {deviceDiscoveryStrategy: tegra, mpsRoot: /run/mps}\n"
            "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}"
        ),
        (
            "flags: {plugin: {containerDriverRoot: /nowhere}, mpsRoot: /run/mps}\n"
            "sharing: {mps: {resources: [{name: gpu, replicas: 49}]}}"
        ),
    ],
    ids=["another discovery", "another root"],
)
def test_settings_that_find_no_gpus_elsewhere_leave_the_devices_healthy(
    rig: Rig, text: str
) -> None:
    with rig.plugin(rig.config(replicated(3))) as plugin:
        rig.kubelet.wait_for(GPU)
        rig.config(text)
        plugin.wait_for_code(Code.CONFIGURATION_INVALID)
        plugin.wait_for_code(Code.RECONCILED)
        assert rig.kubelet.allocatable(GPU) == 6
        assert rig.allocate(GPU, f"{rig.node.gpus()[0].uuid}::0")


def test_a_driver_that_was_replaced_ends_the_agent_so_that_a_new_process_loads_it(rig: Rig) -> None:
    with rig.plugin("--fail-on-init-error=false") as plugin:
        rig.kubelet.wait_for(GPU)
        rig.node.faults.nvml_init("LIB_RM_VERSION_MISMATCH")
        plugin.send(signal.SIGHUP)
        assert plugin.wait() == 1
        assert "the driver was replaced" in plugin.output()


def test_pods_keep_their_devices_across_a_reload(rig: Rig) -> None:
    with rig.plugin(rig.config(replicated(2)), entry=AGENT):
        rig.kubelet.wait_for(GPU)
        pod = Pod("p", [Container("main", {GPU: 1})])
        [held] = rig.kubelet.admit(pod)
        rig.config(replicated(4))
        rig.kubelet.wait_until(lambda: rig.kubelet.capacity(GPU) == 8, "more replicas")
        assert held.ids[0] in rig.healthy(GPU)
        assert rig.kubelet.start_container(pod, "main") == held.response


def test_every_resource_is_registered_with_a_restarted_kubelet(make_rig: MakeRig) -> None:
    rig = make_rig("mixed")
    with rig.plugin(rig.config(MODELS % "a100")):
        before = rig.wait_for_resources(T4, A100, GPU)
        rig.kubelet.restart()
        assert rig.wait_for_resources(T4, A100, GPU) == before
        assert rig.kubelet.registrations == 6


def test_after_kill_9_the_next_agent_takes_over_every_resource(make_rig: MakeRig) -> None:
    rig = make_rig("mixed")
    config = rig.config(MODELS % "a100")
    with rig.plugin(config, name="first") as first:
        before = rig.wait_for_resources(T4, A100, GPU)
        first.kill()
    with rig.plugin(config, name="second") as second:
        rig.kubelet.wait_until(lambda: rig.kubelet.registrations == 6, "all to register again")
        assert rig.wait_for_resources(T4, A100, GPU) == before
        assert second.stop() == 0
        assert not list(rig.kubelet.directory.glob("nvidia-*"))


def test_sighup_clears_faults_and_reads_the_driver_again(rig: Rig) -> None:
    with rig.plugin() as plugin:
        rig.kubelet.wait_for(GPU)
        plugin.wait_for_code(Code.REGISTERED)
        one, two = (gpu.uuid for gpu in rig.node.gpus())
        rig.node.faults.xid(0, 79)
        rig.wait_for_healthy(GPU, {two})
        plugin.send(signal.SIGHUP)
        rig.wait_for_healthy(GPU, {one, two})
        assert rig.kubelet.registrations == 1
        rig.node.faults.xid(1, 79)  # it is watched as before
        rig.wait_for_healthy(GPU, {one})


@needs_root
def test_replicas_that_become_limited_are_registered_again(rig: Rig) -> None:
    """The kubelet reads only at registration whether it must call PreStartContainer."""
    mps = "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}"
    places = {"/mps": rig.mps_root}
    root = f"--mps-root={rig.mps_root}"
    with (
        rig.mps_daemon(GPU),
        rig.plugin(root, rig.config(replicated(2)), places=places),
    ):
        assert not rig.kubelet.wait_for(GPU).options.pre_start_required
        rig.config(mps)
        rig.kubelet.wait_until(lambda: rig.kubelet.registrations == 2, "a new registration")
        assert rig.kubelet.wait_for(GPU).options.pre_start_required
        rig.kubelet.wait_until(lambda: rig.kubelet.allocatable(GPU) == 4, "limited replicas")


def test_a_mig_strategy_that_does_not_fit_is_rejected_and_the_old_one_stays(
    make_rig: MakeRig,
) -> None:
    rig = make_rig("a100x2-mig-mixed")
    for gpu in (0, 1):
        rig.node.faults.mig(gpu, ["3g.20gb", "1g.5gb"])
    with rig.plugin(rig.config("flags: {migStrategy: none}")) as plugin:
        rig.kubelet.wait_for(GPU)
        rig.config("flags: {migStrategy: single}")
        plugin.wait_for_code(Code.CONFIGURATION_INVALID)
        assert rig.kubelet.allocatable(GPU) == 2


@pytest.mark.parametrize("text", ["flags: {migStrategy: twofold}", BOTH_WAYS], ids=["file", "node"])
@pytest.mark.parametrize("by_signal", [True, False], ids=["SIGHUP", "the file alone"])
def test_rejected_settings_are_never_logged_as_applied(
    rig: Rig, text: str, by_signal: bool
) -> None:
    with rig.plugin(rig.config(replicated(3))) as plugin:
        rig.kubelet.wait_for(GPU)
        change_config(plugin, rig, text, by_signal=by_signal)
        plugin.wait_for_code(Code.RECONCILED, "last good settings")
        assert plugin.logged(Code.CONFIGURATION_INVALID) == 1
        assert plugin.logged(Code.SETTINGS_APPLIED) == 1  # at the start
        assert plugin.logged(Code.ADVERTISED) == 2  # each GPU once, at the start
        change_config(plugin, rig, replicated(4), by_signal=by_signal)
        plugin.wait_for_code(Code.RECONCILED, "reconciled with the configuration")
        assert plugin.logged(Code.SETTINGS_APPLIED) == 2
        assert plugin.logged(Code.ADVERTISED) == 4


@needs_root
def test_cdi_specifications_of_earlier_settings_are_removed_at_the_end(rig: Rig) -> None:
    by_cdi = "flags: {plugin: {deviceListStrategy: cdi-cri}}"
    directory = rig.directory / "cdi"
    flags = (
        "--cdi-remove-on-exit=true",
        f"--cdi-directory={directory}",
        f"--driver-root-ctr-path={rig.node.root}",
    )
    with rig.plugin(*flags, rig.config(by_cdi), places={}) as plugin:
        rig.kubelet.wait_for(GPU)
        written = list(directory.iterdir())
        assert len(written) == 1
        rig.config("flags: {plugin: {deviceListStrategy: envvar}}")
        plugin.wait_for_code(Code.RECONCILED)
        # Containers that restart still use the specification of their first start.
        assert list(directory.iterdir()) == written
        assert plugin.stop() == 0
        assert list(directory.iterdir()) == []
