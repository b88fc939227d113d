from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from gpuslice.cluster.events import NodeEvents, NoEvents
from gpuslice.config.config_choice import Fallback
from gpuslice.config.errors import ConfigError
from gpuslice.config.startup_options import StartupOptions
from gpuslice.node.config_source import ConfigSource
from gpuslice.node.event_recorder import EventRecorder
from gpuslice.node.state import NodeState
from gpuslice.programs.api_server import connect_if_needed
from gpuslice.telemetry.metrics import Recorder
from tests.unit.cluster.kubernetes import ConfigMap, Kubernetes

LABEL = "nvidia.com/device-plugin.config"


class Reader:
    """What an agent reads when it is told to."""

    def __init__(self, source: ConfigSource, metrics: Recorder, state: NodeState) -> None:
        self.source = source
        self.metrics = metrics
        self.state = state
        self.first: Path | None = None
        self.read: list[str] = []

    def changed(self) -> None:
        path = self.source.current
        self.read.append("" if path is None else path.read_text())

    async def until(self, *read: str) -> None:
        await eventually(lambda: self.read == list(read), lambda: self.read)


async def eventually(holds: Callable[[], bool], what: Callable[[], object] = lambda: "") -> None:
    for _ in range(4500):
        if holds():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"it did not come to pass: {what()}")


@contextlib.asynccontextmanager
async def reading(options: StartupOptions, label_timeout: float = 10.0) -> AsyncIterator[Reader]:
    api = connect_if_needed(options)
    metrics, state = Recorder(), NodeState()
    recorder = EventRecorder(NodeEvents(api, options.node_name or "") if api else NoEvents())
    state.subscribe(recorder.read)
    source = ConfigSource(options, api, state, metrics, label_timeout_seconds=label_timeout)
    reader = Reader(source, metrics, state)
    try:
        reader.first = await source.first()
        task = asyncio.gather(source.run(reader.changed), recorder.run())
        # The watch begins in a thread.
        await asyncio.sleep(0.3)
        yield reader
        task.cancel()
        await asyncio.wait([task])
    finally:
        if api:
            await api.close()


def run(
    options: StartupOptions,
    scenario: Callable[[Reader], Awaitable[None]],
    label_timeout: float = 10.0,
) -> None:
    async def main() -> None:
        async with reading(options, label_timeout) as reader:
            await scenario(reader)

    asyncio.run(main())


@pytest.fixture
def kubernetes() -> Iterator[Kubernetes]:
    cluster = Kubernetes()
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
def configs(tmp_path: Path) -> ConfigMap:
    return ConfigMap(tmp_path / "configs", a="version: v1 # a", b="version: v1 # b")


@pytest.fixture
def labelled(kubernetes: Kubernetes, configs: ConfigMap, tmp_path: Path) -> StartupOptions:
    """Options of an agent on a node whose label chooses the configuration."""
    return StartupOptions(
        config_dir=configs.directory,
        node_name="n1",
        kubeconfig=kubernetes.kubeconfig(tmp_path / "kubeconfig"),
    )


def set_label(kubernetes: Kubernetes, value: str | None) -> None:
    labels = {} if value is None else {LABEL: value}
    kubernetes.put("nodes", "n1", metadata={"labels": labels})


# A single file


def test_without_any_source_the_configuration_is_empty() -> None:
    async def scenario(reader: Reader) -> None:
        assert reader.first is None
        assert reader.read == []

    run(StartupOptions(), scenario)


def test_a_file_that_is_written_anew_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("old")

    async def scenario(reader: Reader) -> None:
        assert reader.first == file
        file.write_text("new")
        await reader.until("new")

    run(StartupOptions(config_file=file), scenario)


def test_a_file_that_is_replaced_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("old")

    async def scenario(reader: Reader) -> None:
        for text in ("new", "newer"):
            fresh = tmp_path / "config.yaml.tmp"
            fresh.write_text(text)
            fresh.rename(file)
            await eventually(lambda text=text: reader.read[-1:] == [text])  # type: ignore[misc]

    run(StartupOptions(config_file=file), scenario)


def test_the_same_content_again_is_no_change(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("same")

    async def scenario(reader: Reader) -> None:
        file.write_text("same")
        os.utime(file)
        await asyncio.sleep(1)
        file.write_text("other")
        await reader.until("other")

    run(StartupOptions(config_file=file), scenario)


def test_a_file_is_not_taken_while_it_is_being_written(tmp_path: Path) -> None:
    """Half a file is often valid, and an empty one always is."""
    file = tmp_path / "config.yaml"
    file.write_text("old")

    async def scenario(reader: Reader) -> None:
        with file.open("w") as writing:
            for letter in "slowly":
                writing.write(letter)
                writing.flush()
                await asyncio.sleep(0.1)
        await reader.until("slowly")

    run(StartupOptions(config_file=file), scenario)


def test_a_file_of_a_mounted_config_map_is_followed_through_its_links(configs: ConfigMap) -> None:
    async def scenario(reader: Reader) -> None:
        configs.update(a="edited", b="")
        await reader.until("edited")

    run(StartupOptions(config_file=configs.directory / "a"), scenario)


def test_a_file_that_goes_away_leaves_the_last_one_in_force(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("old")

    async def scenario(reader: Reader) -> None:
        reader.metrics.reloaded(True)
        file.unlink()
        await eventually(lambda: reader.metrics.last_reload_ok is False)
        assert reader.read == []
        file.write_text("new")
        await reader.until("new")

    run(StartupOptions(config_file=file), scenario)


def test_when_a_problem_is_over_the_agent_reads_again_even_what_it_knew(tmp_path: Path) -> None:
    """Else the agent would go on to say that its configuration is wrong."""
    file = tmp_path / "config.yaml"
    file.write_text("old")

    async def scenario(reader: Reader) -> None:
        file.unlink()
        await eventually(lambda: reader.metrics.last_reload_ok is False)
        file.write_text("old")
        await reader.until("old")

    run(StartupOptions(config_file=file), scenario)


def test_a_missing_file_is_named_at_start(tmp_path: Path) -> None:
    file = tmp_path / "nowhere.yaml"
    with pytest.raises(ConfigError, match=r"config-file: '.*nowhere.yaml'"):
        asyncio.run(
            ConfigSource(StartupOptions(config_file=file), None, NodeState(), Recorder()).first()
        )


def _first(path: Path) -> Path | None:
    options = StartupOptions(config_file=path)
    return asyncio.run(ConfigSource(options, None, NodeState(), Recorder()).first())


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, kind in (
        (pipe, "a pipe"),
        (tmp_path, "a directory"),
        (Path("/dev/zero"), "a device"),
    ):
        with pytest.raises(ConfigError, match=f"config-file: '{path}'.*it is {kind}.*regular file"):
            _first(path)


def test_the_null_device_is_the_empty_configuration(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/null")
    for path in (Path("/dev/null"), tmp_path / "link"):
        assert _first(path) == path


def test_a_pipe_that_takes_the_files_place_leaves_the_last_one_in_force(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("old")

    async def scenario(reader: Reader) -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        pipe.rename(file)
        await eventually(lambda: reader.metrics.last_reload_ok is False)
        assert reader.read == []
        file.unlink()
        file.write_text("new")
        await reader.until("new")

    run(StartupOptions(config_file=file), scenario)


# A directory without a label


def test_the_default_is_taken_where_no_node_is_named(configs: ConfigMap) -> None:
    async def scenario(reader: Reader) -> None:
        assert reader.first == configs.directory / "b"
        configs.update(a="new a", b="version: v1 # b")
        configs.update(a="new a", b="new b")
        await reader.until("new b")

    run(StartupOptions(config_dir=configs.directory, default_config="b"), scenario)


def test_an_entry_that_appears_can_change_the_choice(configs: ConfigMap) -> None:
    options = StartupOptions(
        config_dir=configs.directory, fallbacks=(Fallback.NAMED, Fallback.EMPTY)
    )

    async def scenario(reader: Reader) -> None:
        assert reader.first is None
        configs.update(a="a", default="now there")
        await reader.until("now there")
        configs.update(a="a")
        await reader.until("now there", "")
        assert reader.source.current is None

    run(options, scenario)


def test_directories_and_the_kubelets_own_names_are_no_configurations(tmp_path: Path) -> None:
    configs = ConfigMap(tmp_path / "configs", only="x")
    (configs.directory / "folder").mkdir()
    (configs.directory / "..left").write_text("x")

    async def scenario(reader: Reader) -> None:
        assert reader.first == configs.directory / "only"

    run(StartupOptions(config_dir=configs.directory, fallbacks=(Fallback.SINGLE,)), scenario)


def test_a_directory_that_is_not_mounted_is_named(tmp_path: Path) -> None:
    options = StartupOptions(config_dir=tmp_path / "nowhere", default_config="a")
    with pytest.raises(ConfigError, match=r"config-file-srcdir: '.*nowhere'.*mount"):
        asyncio.run(ConfigSource(options, None, NodeState(), Recorder()).first())


# A directory and the node's label


def test_the_label_chooses_and_its_moves_are_followed(
    kubernetes: Kubernetes, configs: ConfigMap, labelled: StartupOptions
) -> None:
    set_label(kubernetes, "a")

    async def scenario(reader: Reader) -> None:
        assert reader.first == configs.directory / "a"
        set_label(kubernetes, "b")
        await reader.until("version: v1 # b")
        configs.update(a="version: v1 # a", b="edited")
        await reader.until("version: v1 # b", "edited")

    run(labelled, scenario)


def test_a_move_to_an_equal_configuration_is_told_too(
    kubernetes: Kubernetes, configs: ConfigMap, labelled: StartupOptions
) -> None:
    configs.update(a="same", b="same", c="other")
    set_label(kubernetes, "a")

    async def scenario(reader: Reader) -> None:
        set_label(kubernetes, "b")
        await reader.until("same")
        assert reader.source.current == configs.directory / "b"
        set_label(kubernetes, "c")
        await reader.until("same", "other")

    run(labelled, scenario)


def test_a_label_that_names_nothing_keeps_the_last_good_one_and_is_told_of(
    kubernetes: Kubernetes, configs: ConfigMap, labelled: StartupOptions
) -> None:
    set_label(kubernetes, "a")

    async def scenario(reader: Reader) -> None:
        set_label(kubernetes, "typo")
        await eventually(lambda: reader.metrics.last_reload_ok is False)
        assert reader.source.current == configs.directory / "a"
        await eventually(lambda: any(kind == "events" for kind, _ in kubernetes.objects))
        set_label(kubernetes, "b")
        await reader.until("version: v1 # b")

    run(labelled, scenario)
    (event,) = [found for (kind, _), found in kubernetes.objects.items() if kind == "events"]
    assert event["reason"] == "ConfigurationNotFound"
    assert "'typo'" in event["message"]
    assert "choose one of a, b" in event["message"]


def test_at_start_a_label_that_names_nothing_ends_the_agent(
    kubernetes: Kubernetes, labelled: StartupOptions
) -> None:
    set_label(kubernetes, "typo")

    async def scenario(_: Reader) -> None:
        raise AssertionError

    with pytest.raises(ConfigError, match="'typo'"):
        run(labelled, scenario)


def test_an_api_server_that_is_away_at_start_means_the_default_until_it_is_back(
    kubernetes: Kubernetes, configs: ConfigMap, tmp_path: Path
) -> None:
    options = StartupOptions(
        config_dir=configs.directory,
        node_name="n1",
        kubeconfig=kubernetes.kubeconfig(tmp_path / "kubeconfig"),
        default_config="a",
    )
    set_label(kubernetes, "b")
    kubernetes.refuse_with = 503

    async def scenario(reader: Reader) -> None:
        assert reader.first == configs.directory / "a"
        kubernetes.refuse_with = None
        await reader.until("version: v1 # b")

    run(options, scenario, label_timeout=0.5)


def test_without_a_default_the_agent_waits_for_the_api_server(
    kubernetes: Kubernetes, configs: ConfigMap, labelled: StartupOptions
) -> None:
    set_label(kubernetes, "b")
    kubernetes.refuse_with = 503

    async def main() -> None:
        asyncio.get_running_loop().call_later(1, setattr, kubernetes, "refuse_with", None)
        async with reading(labelled, label_timeout=0.2) as reader:
            assert reader.first == configs.directory / "b"

    asyncio.run(main())


def test_a_label_that_goes_away_gives_the_default_its_turn(
    kubernetes: Kubernetes, configs: ConfigMap, tmp_path: Path
) -> None:
    options = StartupOptions(
        config_dir=configs.directory,
        node_name="n1",
        kubeconfig=kubernetes.kubeconfig(tmp_path / "kubeconfig"),
        default_config="a",
    )
    set_label(kubernetes, "b")

    async def scenario(reader: Reader) -> None:
        assert reader.first == configs.directory / "b"
        set_label(kubernetes, None)
        await reader.until("version: v1 # a")
        set_label(kubernetes, "")
        await asyncio.sleep(0.3)
        assert reader.read == ["version: v1 # a"]

    run(options, scenario)


# Whether there is an API server to talk to


def test_a_node_without_credentials_goes_without_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert connect_if_needed(StartupOptions()) is None
    assert connect_if_needed(StartupOptions(node_name="n1")) is None


def test_a_label_cannot_be_read_without_credentials(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match=r"node-name: 'n1'.*set kubeconfig"):
        connect_if_needed(StartupOptions(node_name="n1", config_dir=tmp_path))
