import json

import pytest

from gpuslice.config.errors import ConfigError
from gpuslice.config.load import load_settings
from gpuslice.config.option_values import OptionValue
from gpuslice.config.settings import ContainerSettings, MemoryMps, Settings, socket_name
from gpuslice.slicing.rules import MemoryRule, NameRule, ReplicaRule, Rules, SharingStrategy

TIME = SharingStrategy.TIME_SLICING


@pytest.mark.parametrize(
    ("resource", "socket"),
    [
        ("aliyun.com/gpu-mem", "aliyungpushare.sock"),
        ("nvidia.com/gpu", "nvidia-gpu.sock"),
        ("nvidia.com/gpu.shared", "nvidia-gpu.shared.sock"),
        ("nvidia.com/mig-1g.5gb", "nvidia-mig-1g.5gb.sock"),
        ("example.com/gpu-mem", "gpuslice-example.com_gpu-mem.sock"),
    ],
)
def test_sockets_have_the_names_that_tools_expect(resource: str, socket: str) -> None:
    assert socket_name(resource) == socket


@pytest.mark.parametrize(
    ("resource", "because"),
    [
        ("gpu-mem", "resource: 'gpu-mem' is not valid: use domain/name"),
        ("a.kubernetes.io/x", "kubernetes.io is reserved"),
        ("kubernetes.io/x", "kubernetes.io is reserved"),
        (f"a.com/{'x' * 64}", "1 to 63 characters"),
    ],
)
def test_an_invalid_resource_is_rejected(resource: str, because: str) -> None:
    with pytest.raises(ConfigError, match=because):
        load_settings({"resource": OptionValue(resource, "resource")})


def test_the_longest_pipe_directory_that_fits_is_accepted() -> None:
    assert MemoryMps(pipe="/" + "x" * 86)
    with pytest.raises(ConfigError, match="it has 88 bytes, and MPS accepts 87"):
        MemoryMps(pipe="/" + "x" * 87)


def test_a_relative_pipe_directory_is_rejected() -> None:
    with pytest.raises(ConfigError, match="mps-pipe: 'mps' is not valid: use an absolute path"):
        MemoryMps(pipe="mps")


def test_a_path_with_a_zero_byte_is_rejected() -> None:
    with pytest.raises(ConfigError, match="zero byte"):
        MemoryMps(pipe="/a\0b")


def test_sockets_of_every_resource_that_is_known_must_fit() -> None:
    directory = "/" + "d" * 60
    replica = ReplicaRule(TIME, "nvidia.com/gpu", 2, rename="nvidia.com/" + "x" * 40)
    for rules in (
        Rules(replicas=(replica,)),
        Rules(gpus=(NameRule("*", "nvidia.com/" + "x" * 40),)),
        Rules(mig=(NameRule("*", "nvidia.com/" + "x" * 40),)),
    ):
        assert Settings(rules=rules)
        with pytest.raises(ConfigError, match=r"kubelet-socket: .*107 is the maximum"):
            Settings(rules=rules, kubelet_socket=f"{directory}/kubelet.sock")


def test_the_socket_of_memory_units_is_checked_only_if_they_are_on() -> None:
    memory = MemoryRule(resource="example.com/" + "x" * 63)
    socket = f"/{'d' * 40}/kubelet.sock"
    assert Settings(rules=Rules(), kubelet_socket=socket)
    with pytest.raises(ConfigError, match=r"kubelet-socket: .*107 is the maximum"):
        Settings(rules=Rules(memory=memory), kubelet_socket=socket)


def test_an_agent_that_never_registers_needs_no_socket() -> None:
    assert Settings(kubelet_socket="").kubelet_socket == ""


def test_at_least_one_device_list_strategy_is_required() -> None:
    with pytest.raises(ConfigError, match="choose at least one of envvar, volume-mounts"):
        ContainerSettings(device_list=frozenset())


def test_the_advertised_name_of_replicas_is_the_new_one() -> None:
    assert ReplicaRule(TIME, "nvidia.com/gpu", 2).resource == "nvidia.com/gpu"
    renamed = ReplicaRule(TIME, "nvidia.com/gpu", 2, rename="nvidia.com/a")
    assert renamed.resource == "nvidia.com/a"


def test_the_description_has_the_layout_of_the_file_and_is_json() -> None:
    described = json.loads(json.dumps(Settings().describe()))
    assert list(described) == [
        "version", "flags", "resources", "sharing", "imex", "health", "mps", "watchdog", "agent",
    ]  # fmt: skip
    assert described["flags"]["plugin"]["deviceListStrategy"] == ["envvar"]
    assert described["resources"] == {"gpus": [{"pattern": "*", "name": "nvidia.com/gpu"}]}
    assert described["sharing"]["memory"]["devices"] == "all"


def test_equal_settings_have_equal_descriptions() -> None:
    assert json.dumps(Settings().describe()) == json.dumps(Settings().describe())
