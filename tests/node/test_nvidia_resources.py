"""GPUs and settings -> resources, ids and sockets, with both names of the program."""

from __future__ import annotations

import pytest

from gpuslice.codes import Code

from .conftest import MakeRig
from .rig import AGENT, ENTRY_POINTS, GPU, PLUGIN, RESOURCE, Listener, Rig, needs_root

# One GPU that is selected for memory units and for replicas.
BOTH_WAYS = (
    "sharing: {memory: {devices: [0]}, "
    "timeSlicing: {resources: [{name: gpu, devices: [0], replicas: 2}]}}"
)
MIXED_MODELS = """
resources:
  gpus:
    - {pattern: "Tesla T4", name: t4}
    - {pattern: "*A100*", name: nvidia.com/a100}
"""


def sharing(strategy: str, *entries: str, **more: str) -> str:
    """The section of a file that replicates resources."""
    options = "".join(f"{key}: {value}, " for key, value in more.items())
    return f"version: v1\nsharing: {{{strategy}: {{{options}resources: [{', '.join(entries)}]}}}}\n"


def uuids(rig: Rig) -> list[str]:
    return [gpu.uuid for gpu in rig.node.gpus()]


def replicas(uuid: str, number: int) -> list[str]:
    return [f"{uuid}::{n}" for n in range(number)]


def counts(rig: Rig) -> dict[str, int]:
    return {name: len(ids) for name, ids in rig.advertised().items()}


@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_whole_gpus_are_advertised_by_uuid_with_nvidias_name_and_socket(
    rig: Rig, entry: str
) -> None:
    with rig.plugin(entry=entry):
        endpoint = rig.kubelet.wait_for(GPU)
        assert endpoint.socket.name == "nvidia-gpu.sock"
        assert endpoint.options.get_preferred_allocation_available
        assert not endpoint.options.pre_start_required
        assert rig.advertised() == {GPU: sorted(uuids(rig))}


def test_the_agent_slices_memory_unless_its_settings_name_devices(rig: Rig) -> None:
    config = rig.config(sharing("timeSlicing", "{name: nvidia.com/gpu, replicas: 3}"))
    with rig.agent(config):
        rig.kubelet.wait_for(GPU)
        assert counts(rig) == {GPU: 6}


@needs_root
@pytest.mark.parametrize(
    ("profile", "strategy", "expected"),
    [
        ("a100x2-mig-single", "none", {GPU: 2}),
        ("a100x2-mig-single", "single", {GPU: 14}),
        ("a100x2-mig-single", "mixed", {"nvidia.com/mig-1g.5gb": 14}),
        ("a100x2-mig-mixed", "none", {GPU: 2}),
        (
            "a100x2-mig-mixed",
            "mixed",
            {
                GPU: 1,
                "nvidia.com/mig-3g.20gb": 1,
                "nvidia.com/mig-2g.10gb": 1,
                "nvidia.com/mig-1g.5gb": 2,
            },
        ),
    ],
)
def test_gpus_in_mig_mode_are_advertised_according_to_the_strategy(
    make_rig: MakeRig, profile: str, strategy: str, expected: dict[str, int]
) -> None:
    rig = make_rig(profile)
    with rig.plugin(f"--mig-strategy={strategy}", places={}):
        advertised = rig.wait_for_resources(*expected)
        assert counts(rig) == expected
        migs = {mig.uuid for gpu in rig.node.gpus() for mig in gpu.mig}
        wholes = {gpu.uuid for gpu in rig.node.gpus() if strategy == "none" or not gpu.mig}
        assert {i for ids in advertised.values() for i in ids} == (
            wholes if strategy == "none" else wholes | migs
        )
        sockets = {rig.kubelet.wait_for(name).socket.name for name in expected}
        assert sockets == {f"nvidia-{name.rpartition('/')[2]}.sock" for name in expected}


@needs_root
def test_mig_devices_have_the_numa_node_of_their_gpu(make_rig: MakeRig) -> None:
    rig = make_rig("a100x2-mig-single")
    with rig.plugin("--mig-strategy=single", places={}):
        with Listener(rig.kubelet.wait_for(GPU)) as listener:
            found = listener.numa_nodes()
        assert found == {mig.uuid: [gpu.numa] for gpu in rig.node.gpus() for mig in gpu.mig}


@needs_root
def test_strategy_single_skips_gpus_that_differ(make_rig: MakeRig) -> None:
    rig = make_rig("a100x2-mig-mixed")
    [whole] = [gpu.uuid for gpu in rig.node.gpus() if not gpu.mig]
    with rig.plugin("--mig-strategy=single", places={}) as plugin:
        assert rig.wait_for_resources(GPU) == {GPU: [whole]}
        assert plugin.logged(Code.MIG_NOT_UNIFORM) == 1


@needs_root
def test_strategy_single_waits_if_no_gpu_can_be_advertised(make_rig: MakeRig) -> None:
    rig = make_rig("a100x2-mig-mixed")
    for gpu in (0, 1):
        rig.node.faults.mig(gpu, ["3g.20gb", "1g.5gb"])
    with rig.plugin("--mig-strategy=single", places={}) as plugin:
        plugin.wait_for_code(Code.WAITING_FOR_GPUS, "migStrategy single needs identical GPUs")
        assert rig.kubelet.registrations == 0
        for gpu in (0, 1):
            rig.node.faults.mig(gpu, ["3g.20gb"] * 2)
        rig.wait_for_resources(GPU)
        assert rig.kubelet.allocatable(GPU) == 4


@needs_root
def test_mig_that_is_enabled_on_one_of_eight_gpus_leaves_seven(make_rig: MakeRig) -> None:
    rig = make_rig("a100-40x8")
    changed, *others = (gpu.uuid for gpu in rig.node.gpus())
    with rig.plugin("--mig-strategy=single", places={}) as plugin:
        rig.wait_for_healthy(GPU, {changed, *others})
        rig.node.faults.mig(0, ["1g.5gb"] * 7)
        rig.wait_for_healthy(GPU, set(others))
        plugin.wait_for_code(Code.MIG_NOT_UNIFORM)
        assert all(rig.allocate(GPU, uuid) for uuid in others)


@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_time_slicing_advertises_numbered_replicas(rig: Rig, entry: str) -> None:
    config = rig.config(sharing("timeSlicing", "{name: nvidia.com/gpu, replicas: 4}"))
    with rig.plugin(config, entry=entry):
        one, two = uuids(rig)
        assert rig.wait_for_resources(GPU) == {GPU: sorted(replicas(one, 4) + replicas(two, 4))}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            sharing("timeSlicing", "{name: nvidia.com/gpu, replicas: 2}", renameByDefault="true"),
            "nvidia.com/gpu.shared",
        ),
        (
            sharing("timeSlicing", "{name: gpu, rename: gpu-slice, replicas: 2}"),
            "nvidia.com/gpu-slice",
        ),
    ],
    ids=["by default", "by name"],
)
def test_replicas_can_have_their_own_name(rig: Rig, text: str, name: str) -> None:
    with rig.plugin(rig.config(text)):
        endpoint = rig.kubelet.wait_for(name)
        assert endpoint.socket.name == f"nvidia-{name.rpartition('/')[2]}.sock"
        assert counts(rig) == {name: 4}


@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_every_gpu_can_have_its_own_number_of_replicas(make_rig: MakeRig, entry: str) -> None:
    rig = make_rig("v100x4")
    gpus = uuids(rig)
    text = sharing(
        "timeSlicing",
        "{name: nvidia.com/gpu, devices: [0], replicas: 2}",
        f"{{name: nvidia.com/gpu, devices: [{gpus[1]}], replicas: 5}}",
        "{name: nvidia.com/gpu, devices: [2], replicas: 3, rename: nvidia.com/gpu.small}",
    )
    with rig.plugin(rig.config(text), entry=entry):
        advertised = rig.wait_for_resources(GPU, "nvidia.com/gpu.small")
        assert advertised == {
            GPU: sorted([*replicas(gpus[0], 2), *replicas(gpus[1], 5), gpus[3]]),
            "nvidia.com/gpu.small": replicas(gpus[2], 3),
        }


@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_models_of_one_node_can_have_different_names(make_rig: MakeRig, entry: str) -> None:
    rig = make_rig("mixed")
    with rig.plugin(rig.config(MIXED_MODELS), entry=entry):
        rig.wait_for_resources("nvidia.com/t4", "nvidia.com/a100", GPU)
        assert counts(rig) == {"nvidia.com/t4": 2, "nvidia.com/a100": 1, GPU: 1}


@needs_root
def test_mig_profiles_can_have_other_names(make_rig: MakeRig) -> None:
    rig = make_rig("a100x2-mig-mixed")
    text = 'resources: {mig: [{pattern: "1g.*", name: small}, {pattern: "*", name: large}]}\n'
    with rig.plugin("--mig-strategy=mixed", rig.config(text), places={}):
        rig.wait_for_resources("nvidia.com/small", "nvidia.com/large", GPU)
        assert counts(rig) == {GPU: 1, "nvidia.com/small": 2, "nvidia.com/large": 2}


@needs_root
@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_memory_replicas_mig_and_whole_gpus_can_be_combined(make_rig: MakeRig, entry: str) -> None:
    rig = make_rig("a100-40x8")
    rig.node.faults.mig(0, ["3g.20gb", "2g.10gb"])
    text = """
flags: {migStrategy: mixed}
sharing:
  memory: {devices: [1, 2]}
  timeSlicing:
    resources: [{name: nvidia.com/gpu, devices: [3], replicas: 4, rename: nvidia.com/gpu.shared}]
"""
    expected = {
        RESOURCE: 80,
        GPU: 4,
        "nvidia.com/gpu.shared": 4,
        "nvidia.com/mig-3g.20gb": 1,
        "nvidia.com/mig-2g.10gb": 1,
    }
    program = rig.program(entry)
    with rig.run([*program, rig.config(text)], name="plugin", places={}):
        rig.wait_for_resources(*expected)
        assert counts(rig) == expected
        gpus = uuids(rig)
        assert rig.advertised()[GPU] == sorted(gpus[4:])
        envs = rig.admit(6).response.envs
        assert envs["NVIDIA_VISIBLE_DEVICES"] in gpus[1:3]
        shared = rig.allocate("nvidia.com/gpu.shared", f"{gpus[3]}::1")
        assert dict(shared.envs) == {"NVIDIA_VISIBLE_DEVICES": gpus[3]}


@pytest.mark.parametrize(
    ("text", "because"),
    [
        (
            sharing(
                "timeSlicing",
                "{name: gpu, devices: [0], replicas: 2}",
                "{name: gpu, devices: 2, replicas: 3}",
            ),
            "List different devices in each rule",
        ),
        (
            BOTH_WAYS,
            "a GPU can be shared in one way only",
        ),
        (sharing("timeSlicing", "{name: gpu, replicas: 40000}"), "Use at most"),
        (sharing("mps", "{name: gpu, replicas: 2}"), "mps-root"),
    ],
    ids=["two claims", "memory too", "too many", "mps without root"],
)
def test_rules_that_do_not_fit_the_node_are_rejected_before_registration(
    rig: Rig, text: str, because: str
) -> None:
    with rig.run([*rig.program(PLUGIN), rig.config(text)], name="plugin") as plugin:
        assert plugin.wait() == 1
        assert because in plugin.output()
        assert "Traceback" not in plugin.output()
    assert rig.kubelet.registrations == 0


def test_a_configured_gpu_that_the_node_lacks_is_a_warning(rig: Rig) -> None:
    config = rig.config(sharing("timeSlicing", "{name: gpu, devices: [1, 7], replicas: 2}"))
    with rig.plugin(config) as plugin:
        one, two = uuids(rig)
        assert rig.wait_for_resources(GPU) == {GPU: sorted([one, *replicas(two, 2)])}
        plugin.wait_for_code(Code.DEVICE_NOT_FOUND, "sharing.timeSlicing nvidia.com/gpu devices: 7")


def test_the_settings_in_force_are_logged_once(rig: Rig) -> None:
    with rig.plugin("--mig-strategy=mixed", entry=AGENT) as agent:
        rig.kubelet.wait_for(GPU)
        [line] = agent.lines(Code.SETTINGS_APPLIED)
        assert '"migStrategy":"mixed"' in line
