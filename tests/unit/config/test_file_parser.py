"""The configuration file: its keys, the settings they become, and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuslice.config.errors import ConfigError
from gpuslice.config.file_schema import ConfigFile
from gpuslice.config.load import load_settings
from gpuslice.config.settings import (
    DeviceList,
    LabelSettings,
    MemoryMps,
    MpsCheck,
    MpsNamespaces,
    Settings,
)
from gpuslice.config.unknown_keys import all_keys
from gpuslice.slicing.rules import (
    ALL,
    Advertise,
    DaemonLimits,
    IdForm,
    MemoryRule,
    NamedShare,
    NameRule,
    Overcommit,
    ReplicaRule,
    Selection,
    SharingStrategy,
)
from gpuslice.slicing.threads import Multiprocessors, Percent, ThreadStrategy
from gpuslice.slicing.units import MemoryUnit

from .conftest import Read

TIME, MPS = SharingStrategy.TIME_SLICING, SharingStrategy.MPS
UUID = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"


WHOLE = """
version: v1
flags:
  migStrategy: single
  failOnInitError: false
  mpsRoot: /run/nvidia/mps
  nvidiaDriverRoot: /run/nvidia/driver
  nvidiaDevRoot: /
  gdrcopyEnabled: true
  gdsEnabled: true
  mofedEnabled: true
  useNodeFeatureAPI: false
  deviceDiscoveryStrategy: nvml
  bind: env
  threadAnnotations: off
  memoryLimits: driver
  cgroupRoot: /host/cgroup
  nested: guest
  nestedEnv: /etc/gpu.env
  nestedFile: /list
  nestedDir: /var/nested
  plugin:
    passDeviceSpecs: true
    deviceListStrategy: [volume-mounts, cdi-cri]
    deviceIDStrategy: index
    cdiAnnotationPrefix: example.com/
    nvidiaCTKPath: /opt/nvidia-ctk
    containerDriverRoot: /host
    sharedDevicesAllocationPolicy: packed
  gfd:
    oneshot: true
    noTimestamp: true
    sleepInterval: 1m30s
    outputFile: /out
    machineTypeFile: /machine
resources:
  gpus:
    - {pattern: "*A100*", name: a100}
    - {pattern: "*T4*", name: nvidia.com/t4, nested: true}
  mig:
    - {pattern: 1g.*, name: small}
sharing:
  memory:
    resource: example.com/gpu-mem
    devices: [1, 2]
    unit: 512MiB
    reserve: 1GiB
    threads: none
    advertise: all
    ids: short
    mps: {mode: external, pipeDirectory: /run/mps, check: auto, shm: /run/shm, namespaces: off}
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources:
      - {name: a100, devices: 2, replicas: 4}
      - {name: t4, rename: t4.tiny, replicas: 10, nested: false}
  mps:
    failRequestsGreaterThanOne: false
    reserve: 512MiB
    advertise: all
    daemonLimits: none
    overcommit: warn
    resources:
      - {name: gpu, devices: ["0"], replicas: 3, threads: 20 SMs}
      - {name: gpu, devices: ["1"], shares: [{name: a, threads: 30%, memory: 1GiB, count: 2}]}
imex: {channelIDs: [0], required: true}
health: {enabled: false}
mps: {hidePrivilegedSocket: false, pipeReadOnly: true}
watchdog: {mode: evict, grace: 5s, slack: 1GiB, containerLogs: /logs}
"""


def test_a_file_with_every_key(read: Read) -> None:
    settings = read(WHOLE)
    assert settings.rules.gpus == (
        NameRule("*A100*", "nvidia.com/a100"),
        NameRule("*T4*", "nvidia.com/t4", nested=True),
        NameRule("*", "nvidia.com/gpu"),
    )
    assert settings.rules.mig == (NameRule("1g.*", "nvidia.com/small"),)
    assert settings.rules.replicas == (
        ReplicaRule(TIME, "nvidia.com/a100", 4, "nvidia.com/a100.shared", Selection(count=2), True),
        ReplicaRule(TIME, "nvidia.com/t4", 10, "nvidia.com/t4.tiny", ALL, True, nested=False),
        ReplicaRule(
            MPS,
            "nvidia.com/gpu",
            3,
            None,
            Selection(references=("0",)),
            False,
            reserve_mib=512,
            advertise=Advertise.ALL,
            threads=Multiprocessors(20),
            daemon_limits=DaemonLimits.NONE,
            overcommit=Overcommit.WARN,
        ),
        ReplicaRule(
            MPS,
            "nvidia.com/gpu",
            2,
            None,
            Selection(references=("1",)),
            False,
            reserve_mib=512,
            advertise=Advertise.ALL,
            daemon_limits=DaemonLimits.NONE,
            shares=(NamedShare("a", 1024, Percent(30), 2),),
            overcommit=Overcommit.WARN,
        ),
    )
    assert settings.rules.memory == MemoryRule(
        Selection(references=("1", "2")),
        "example.com/gpu-mem",
        MemoryUnit(512),
        1024,
        ThreadStrategy.NONE,
        advertise=Advertise.ALL,
        ids=IdForm.SHORT,
        limited=True,
    )
    assert settings.memory_mps == MemoryMps(
        "/run/mps", MpsCheck.AUTO, "/run/shm", namespaces=MpsNamespaces.OFF
    )
    assert settings.containers.device_list == {DeviceList.VOLUME_MOUNTS, DeviceList.CDI_CRI}
    assert settings.nested_file == "/list"
    assert settings.labels == LabelSettings(True, True, 90.0, "/out", "/machine", False)


def test_the_description_of_settings_is_a_valid_file(read: Read) -> None:
    for settings in (Settings(), read(WHOLE)):
        described = settings.describe()
        del described["agent"]
        again = read(json.dumps(described))
        assert again == settings


def test_the_file_with_every_key_is_complete() -> None:
    for path in all_keys(ConfigFile):
        assert f"{path.rpartition('.')[2]}:" in WHOLE, path


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("60s", 60.0), ("1m30s", 90.0), ("1.5h", 5400.0), ("100ms", 0.1), ("infinite", None),
        ("60000000000", 60.0), (".5s", 0.5),
    ],
)  # fmt: skip
def test_sleep_interval(read: Read, text: str, seconds: float | None) -> None:
    found = read(f"flags: {{gfd: {{sleepInterval: {text}}}}}").labels.sleep_seconds
    assert found == pytest.approx(seconds)


def test_the_device_list_strategy_can_be_one_word(read: Read) -> None:
    settings = read("flags: {plugin: {deviceListStrategy: cdi-cri}}")
    assert settings.containers.device_list == {DeviceList.CDI_CRI}


@pytest.mark.parametrize(
    ("word", "nested"),
    [
        ("host", True), ("true", True), ("on", True),
        ("off", False), ('"off"', False), ("false", False),
    ],
)  # fmt: skip
def test_a_resource_is_nested_with_host_or_a_boolean(
    read: Read, word: str, *, nested: bool
) -> None:
    settings = read(
        f"resources: {{gpus: [{{pattern: '*T4', name: t4, nested: {word}}}]}}\n"
        f"sharing: {{timeSlicing: {{resources: [{{name: gpu, replicas: 2, nested: {word}}}]}}}}"
    )
    assert settings.rules.gpus[0].nested is nested
    assert settings.rules.replicas[0].nested is nested


REPLICAS = "sharing: {timeSlicing: {resources: [{%s}]}}"
WITH_DEVICES = REPLICAS % "name: gpu, replicas: 2, devices: %s"
RESERVED = "sharing: {mps: {reserve: %s, resources: [{name: gpu, replicas: 2}]}}"
LONG = "x" * 53


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("version: v2", "version: 'v2' is not valid: unknown version"),
        ("sharing: [", "is not valid YAML"),
        ("- a", "^config-file: .*it is a list; use a section with these keys: version, flags"),
        ("just words", "^config-file: .*single value 'just words'; use a section with these keys"),
        (
            "flags: {migStrategy: none, migStrategy: mixed}",
            "duplicate key 'migStrategy' in line 1",
        ),
        ('{"flags": {}, "flags": {}}', "duplicate key 'flags'"),
        # Unknown keys, and where they belong
        ("sharing: {memory: {untis: GiB}}", r"`sharing.memory.untis`; did you mean `unit`\?"),
        ("shraing: {}", r"unknown key `shraing`; did you mean `sharing`\?"),
        ("zzz: 1", "unknown key `zzz`; remove it"),
        ("1: 1", "unknown key `1`; remove it"),
        ("flags: {migstrategy: single}", r"`flags.migstrategy`; did you mean `migStrategy`\?"),
        (
            "flags: {renameByDefault: true}",
            (
                "`flags.renameByDefault`; it belongs at `sharing.timeSlicing.renameByDefault` "
                "or `sharing.mps.renameByDefault`"
            ),
        ),
        ("migStrategy: single", "it belongs at `flags.migStrategy`"),
        ("flags: {passDeviceSpecs: true}", "it belongs at `flags.plugin.passDeviceSpecs`"),
        (REPLICAS % "name: gpu, replica: 2", r"resources\[0\]\.replica`; did you mean `replicas`"),
        ("a: 1\nb: 2", "unknown key `a`; .*unknown key `b`"),
        # Wrong types
        ("version: 1", "yaml: version: 1 is not valid: unknown version; use v1"),
        ("sharing: {memory: {unit: 512}}", r"yaml: sharing\.memory\.unit: 512 .*256MiB or 2GiB"),
        ("sharing: {memory: {unit: 0.5}}", r"yaml: sharing\.memory\.unit: 0.5 .*256MiB or 2GiB"),
        ("sharing: {memory: {mps: {check: on}}}", "mps.check: true .*require, auto, off"),
        (REPLICAS % "name: gpu, replicas: 2, nested: guest", r"nested: 'guest' .*flags\.nested"),
        (REPLICAS % "name: gpu, replicas: 2, nested: inside", r"'inside' .*one of host, off"),
        ("sharing: {memory: {reserve: 512}}", r"sharing\.memory\.reserve: 512 .*256MiB or 2GiB"),
        (RESERVED % "512", r"sharing\.mps\.reserve: '512' is not valid.*256MiB or 2GiB"),
        (RESERVED % "-1MiB", r"sharing\.mps\.reserve: '-1MiB' is not valid.*256MiB or 2GiB"),
        (RESERVED % "10%", r"sharing\.mps\.reserve: '10%' is not valid.*256MiB or 2GiB"),
        (RESERVED % "1.5", r"mps\.reserve: '1\.5' is not valid.*256MiB or 2GiB"),
        (RESERVED % "true", r"mps\.reserve: true is not valid: use a string or a number"),
        (
            "sharing: {timeSlicing: {reserve: 1GiB, resources: [{name: gpu, replicas: 2}]}}",
            r"`sharing\.timeSlicing\.reserve`; it belongs at .* or `sharing\.mps\.reserve`",
        ),
        # Names
        ("resources: {gpus: [{name: a}]}", r"resources\.gpus\[0\]\.pattern: .*no pattern"),
        ("resources: {mig: [{pattern: a}]}", r"resources\.mig\[0\]\.name: .*no name"),
        (
            f"resources: {{gpus: [{{pattern: '*', name: {LONG}}}]}}",
            "has 64 characters: use a name of at most 63",
        ),
        ("resources: {gpus: [{pattern: '*', name: Big}]}", "lower case letters"),
        ("resources: {gpus: [{pattern: '*', name: a.com/gpu}]}", "use nvidia.com/"),
        ("resources: {gpus: [{pattern: '*', name: -gpu}]}", "lower case letters"),
        # Replicas
        ("sharing: {timeSlicing: }", r"timeSlicing\.resources: .*no resources specified"),
        ("sharing: {timeSlicing: {}}", r"timeSlicing\.resources: .*no resources specified"),
        ("sharing: {mps: {resources: []}}", r"sharing\.mps\.resources: .*no resources specified"),
        (REPLICAS % "replicas: 2", r"resources\[0\]\.name: null .*no name"),
        (REPLICAS % "name: gpu", r"replicas: null .*number of replicas must be >= 1"),
        (REPLICAS % "name: gpu, replicas: 0", "replicas: 0 .*number of replicas must be >= 1"),
        (REPLICAS % "name: gpu, replicas: 2, rename: A", r"resources\[0\]\.rename: 'A'"),
        (
            "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: %s, replicas: 2}]}}"
            % ("x" * 50),
            r"\.rename: .*has 68 characters: use a name of at most 63",
        ),
        (WITH_DEVICES % "some", r"devices: 'some' .*use all, a number"),
        (WITH_DEVICES % "'2'", "devices: '2' .*use all, a number"),
        (WITH_DEVICES % "0", "devices: 0 .*at least 1 device"),
        (WITH_DEVICES % "[]", r"devices: \[\] .*name at least one"),
        (WITH_DEVICES % "[-1]", r"devices\[0\]: -1 .*use an index"),
        (WITH_DEVICES % "[0, GPU-1]", r"devices\[1\]: 'GPU-1' .*use an index"),
        (
            REPLICAS % "name: gpu, replicas: 2}, {name: nvidia.com/gpu, devices: [0], replicas: 3",
            r"sharing: 'nvidia\.com/gpu' .*one of them selects all; list devices",
        ),
        (
            REPLICAS % "name: gpu, devices: [0], replicas: 2}, "
            "{name: gpu, rename: x, devices: [1, 0], replicas: 3",
            r"sharing: '0' .*two rules for nvidia\.com/gpu use this device",
        ),
        (
            (
                "sharing: {timeSlicing: {resources: [{name: gpu, devices: [0], replicas: 2}]}, "
                "mps: {resources: [{name: gpu, devices: [1], replicas: 2}]}}"
            ),
            r"sharing\.mps: 'nvidia\.com/gpu' .*set rename",
        ),
        ("flags: {gfd: {sleepInterval: soon}}", r"sleepInterval: 'soon' .*60s or 1m30s"),
        ("flags: {gfd: {sleepInterval: -1}}", r"sleepInterval: -1 .*60s or 1m30s"),
        ("flags: {gfd: {sleepInterval: '60'}}", r"sleepInterval: '60' .*60s or 1m30s"),
        ("flags: {gfd: {sleepInterval: 60}}", r"sleepInterval: 60 .*counts nanoseconds"),
        ("flags: {gfd: {sleepInterval: 2us}}", r"sleepInterval: '2us' .*at least 100ms"),
        ("flags: {gfd: {sleepInterval: .inf}}", r"sleepInterval: '.inf' .*at least 100ms"),
        ("resources: {gpus: &l [*l]}", "alias in line 1 refers to a section that contains it"),
        ("imex: {channelIDs: [0, 1]}", r"imex\.channelIDs: \[0, 1\] .*use 0"),
    ],
)
def test_an_invalid_file_is_rejected_with_field_and_remedy(
    read: Read, text: str, because: str
) -> None:
    with pytest.raises(ConfigError, match=f"(?s){because}"):
        read(text)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00binary", b"[" * 3000, b"a: " + b"9" * 5000])
def test_content_that_cannot_be_parsed_is_a_config_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"^config-file: "):
        load_settings({}, None, path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml.*No such file"):
        load_settings({}, None, tmp_path / "nowhere.yaml")


def test_a_machine_type_file_can_be_empty(read: Read) -> None:
    assert read("flags: {gfd: {machineTypeFile: ''}}").labels.machine_type_file == ""
