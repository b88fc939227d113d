"""Which file configures the node, and when it changes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from gpuslice.config.config_choice import Fallback
from gpuslice.config.errors import ConfigError
from gpuslice.config.startup_options import StartupOptions
from gpuslice.config.timing import Timing
from gpuslice.node.config_source import ConfigSource
from gpuslice.node.state import NodeState
from gpuslice.telemetry.metrics import Recorder
from tests.unit.cluster.kubernetes import ConfigMap

from .config_reader import Reader, eventually, run

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
            ConfigSource(
                StartupOptions(config_file=file), None, NodeState(), Recorder(), Timing()
            ).first()
        )


def _first(path: Path) -> Path | None:
    options = StartupOptions(config_file=path)
    return asyncio.run(ConfigSource(options, None, NodeState(), Recorder(), Timing()).first())


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
        asyncio.run(ConfigSource(options, None, NodeState(), Recorder(), Timing()).first())
