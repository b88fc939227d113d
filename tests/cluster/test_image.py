"""The container image: built from nothing, and entered as a read-only root file system."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.image import ImageBuildError, build_image, image_name, read_project
from deploy.image.cache import Cache, cache_directory
from deploy.image.sysroot import Sysroot
from gpuslice_sim.node import create

# Two lower directories and no upper one: nothing can be written anywhere.
_ENTER = """
mount -t overlay overlay -o "lowerdir=$1:$2" "$3"
mount -t proc proc "$3/proc"
root=$3; shift 3
exec chroot "$root" "$@"
"""


@dataclass(frozen=True)
class Image:
    archive: Path
    config: dict[str, Any]
    root: Path
    """Its files, as an engine unpacks them."""

    @property
    def environment(self) -> dict[str, str]:
        return dict(variable.split("=", 1) for variable in self.config["Env"])

    @property
    def libraries(self) -> Path:
        [loader] = self.root.glob("usr/lib/*-linux-gnu/ld-linux-*.so.*")
        return loader.parent.relative_to(self.root)

    def run(
        self, *argv: str, over: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """In a container as far as files go; those in `over` come in addition."""
        with tempfile.TemporaryDirectory() as scratch:
            nothing, mount = Path(scratch) / "nothing", Path(scratch) / "mount"
            nothing.mkdir()
            mount.mkdir()
            places = [over or nothing, self.root, mount]
            return subprocess.run(
                [
                    "unshare",
                    "--mount",
                    "--pid",
                    "--fork",
                    "sh",
                    "-ec",
                    _ENTER,
                    "sh",
                    *places,
                    *argv,
                ],
                env=self.environment | variables,
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory, image_archive: Path) -> Iterator[Image]:
    directory = tmp_path_factory.mktemp("unpacked")
    root = directory / "root"
    root.mkdir()
    with tarfile.open(image_archive) as tar:
        tar.extractall(directory, filter="fully_trusted")
    [docker] = json.loads((directory / "manifest.json").read_text())
    for layer in docker["Layers"]:
        subprocess.run(["tar", "-xzpf", directory / layer, "-C", root], check=True)
    config = json.loads((directory / docker["Config"]).read_text())["config"]
    yield Image(image_archive, config, root)
    shutil.rmtree(directory)


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_building_it_anew_elsewhere_gives_the_same_bytes(
    image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path / "cache")
    shutil.copytree(Cache(cache_directory()).packages, cache.packages)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    said: list[str] = []
    again = build_image(tmp_path / "again.tar", cache=cache.directory, say=said.append)
    assert "installing wheels …" in said
    assert digest(again) == digest(image.archive)


def test_building_it_again_makes_nothing(image: Image, tmp_path: Path) -> None:
    said: list[str] = []
    again = build_image(tmp_path / "again.tar", say=said.append)
    assert [line.partition(" ")[0] for line in said] == ["wrote"]
    assert digest(again) == digest(image.archive)


def test_it_has_the_name_that_manifests_use(image: Image) -> None:
    with tarfile.open(image.archive) as tar:
        index = tar.extractfile("index.json")
        assert index is not None
        [record] = json.load(index)["manifests"]
    name = image_name(read_project())
    assert record["annotations"]["io.containerd.image.name"] == name
    manifests = Path(__file__).parents[2].glob("deploy/manifests/*.yaml")
    named = {found for text in manifests for found in re.findall(r"image: (.+)", text.read_text())}
    assert named == {name}


@pytest.mark.parametrize("place", ["", "/usr/bin/"], ids=["by name", "by path"])
@pytest.mark.parametrize(
    ("program", "argument", "answer"),
    [
        ("gpuslice", "version", "{version}\n"),
        ("gpuslice", "--help", "Usage: gpuslice"),
        ("nvidia-device-plugin", "--version", "nvidia-device-plugin of gpuslice {version}\n"),
        ("gpu-feature-discovery", "--version", "gpu-feature-discovery of gpuslice {version}\n"),
        ("gpushare-device-plugin-v2", "--help", "Usage: gpushare-device-plugin-v2"),
        ("config-manager", "--help", "Usage: config-manager"),
        ("mps-control-daemon", "--version", "mps-control-daemon of gpuslice {version}\n"),
    ],
)
def test_every_program_answers(
    image: Image, place: str, program: str, argument: str, answer: str
) -> None:
    done = image.run(f"{place}{program}", argument)
    assert done.stdout.startswith(answer.format(version=read_project().version)), done.stderr
    assert done.returncode == 0


def test_all_programs_of_the_project_are_in_it(image: Image) -> None:
    for name in read_project().programs:
        assert (image.root / "usr/bin" / name).stat().st_mode & 0o777 == 0o755


def test_without_a_command_it_is_nvidias_device_plugin(image: Image) -> None:
    done = image.run(*image.config["Entrypoint"], "--version")
    assert done.stdout.startswith("nvidia-device-plugin of gpuslice ")


@pytest.mark.parametrize("command", [("gpuslice", "agent"), ("nvidia-device-plugin",)])
def test_without_a_driver_the_agent_says_so_in_one_sentence(
    image: Image, command: tuple[str, ...]
) -> None:
    done = image.run(*command)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        f"{' '.join(command)}: NoDriver: the NVIDIA driver cannot be used (nvmlInit: NVML Shared "
        "Library Not Found): "
    )


def test_a_driver_library_is_found_where_nvidias_runtime_puts_it(
    image: Image, tmp_path: Path
) -> None:
    """Without a cache of the loader, in which it would not be."""
    node = create(tmp_path / "node", "t4x2")
    over = tmp_path / "over"
    (over / image.libraries).mkdir(parents=True)
    shutil.copytree(node.directory / "state", over / "sim/state")
    for library in node.lib.glob("libnvidia-ml.so.*"):
        shutil.copy(library, over / image.libraries, follow_symlinks=False)
    script = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"
    done = image.run("python3", "-c", script, over=over, GPUSLICE_SIM_NODE="/sim")
    assert (done.stdout, done.stderr) == ("2\n", "")
    assert not (image.root / "etc/ld.so.cache").exists()


def test_every_module_loads_but_the_demo_which_needs_the_simulator(image: Image) -> None:
    script = """
import importlib, pkgutil, gpuslice
for module in pkgutil.walk_packages(gpuslice.__path__, "gpuslice."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            print(module.name, error)
"""
    done = image.run("python3", "-c", script)
    assert done.returncode == 0, done.stderr
    failed = done.stdout.splitlines()
    assert failed
    for line in failed:
        assert re.fullmatch(r"gpuslice\.report\.demo\.\w+ No module named 'gpuslice_sim'", line)
    done = image.run("gpuslice", "demo")
    assert "gpuslice_sim is not installed" in done.stderr


def test_no_module_is_compiled_at_the_start(image: Image) -> None:
    done = image.run("python3", "-v", "-c", "import gpuslice.cli.main, lightkube, grpc")
    loaded = re.findall(r"^# code object from '?([^'\n]+?)'?$", done.stderr, re.M)
    assert len(loaded) > 200
    assert [path for path in loaded if not path.endswith(".pyc")] == []


def test_certificates_of_public_authorities_are_where_python_looks(image: Image) -> None:
    script = "import ssl; print(len(ssl.create_default_context().get_ca_certs()))"
    assert int(image.run("python3", "-c", script).stdout) > 100


def test_there_is_a_shell_to_look_around_with(image: Image) -> None:
    done = image.run("sh", "-c", "id -u; ls /usr/bin/gpuslice; touch /file || echo read-only")
    assert done.stdout == "0\n/usr/bin/gpuslice\nread-only\n"


@pytest.mark.parametrize(
    "pattern",
    [
        *("*gpuslice_sim*", "*simcuda*", "libnvidia-ml*", "numpy", "_pytest", "pip"),
        *("*.a", "*.pyx", "*.h", "bin/cc", "bin/*gcc*", "*.opt-?.pyc"),
        *("dpkg*", "apt*", "debconf*", "man", "locale", "gconv", "test"),
    ],
)
def test_what_a_node_does_not_need_is_not_in_it(image: Image, pattern: str) -> None:
    assert list(image.root.rglob(pattern)) == []


def test_nothing_in_it_gives_rights_and_all_of_it_is_roots(image: Image) -> None:
    for path in image.root.rglob("*"):
        facts = path.lstat()
        assert (facts.st_uid, facts.st_gid) == (0, 0), path
        assert not facts.st_mode & (stat.S_ISUID | stat.S_ISGID), path
        writable = facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not path.is_symlink()
        assert not writable or facts.st_mode & stat.S_ISVTX, path


def test_every_link_leads_somewhere(image: Image) -> None:
    for path in image.root.rglob("*"):
        if path.is_symlink():
            target = str(path.readlink())
            base = image.root if target.startswith("/") else path.parent
            assert (base / target.lstrip("/")).exists(), path


def test_it_is_small(image: Image) -> None:
    sizes = [path.lstat().st_size for path in image.root.rglob("*") if path.is_file()]
    assert sum(sizes) < 120e6
    assert image.archive.stat().st_size < 45e6


def test_a_library_that_the_image_lacks_is_named(image: Image, tmp_path: Path) -> None:
    shutil.copytree(image.root / "usr", tmp_path / "usr", symlinks=True)
    python = (tmp_path / "usr/bin/python3").readlink().name
    sysroot = Sysroot(tmp_path, image.libraries.name, python)
    [module] = (tmp_path / "usr/lib" / python / "lib-dynload").glob("_ctypes.*.so")
    names = {path.name for path in sysroot.libraries(module)}
    [needed] = {name for name in names if name.startswith("libffi.so")}
    (tmp_path / image.libraries / needed).unlink()
    with pytest.raises(ImageBuildError, match=rf"_ctypes\S+ needs {needed}, which the image lacks"):
        sysroot.libraries(module)
