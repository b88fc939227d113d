"""The directory of a node."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpuslice_sim.errors import SimError
from gpuslice_sim.node import SimNode, create

from .conftest import MakeNode

SIM = [sys.executable, "-m", "gpuslice_sim"]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def sim(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*SIM, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_equal_arguments_give_equal_gpus_and_seeds_vary_them(tmp_path: Path) -> None:
    def cards(name: str, seed: int = 0) -> list[str]:
        return [gpu.uuid for gpu in create(tmp_path / name, "h100x8", seed=seed).gpus()]

    first = cards("a")
    assert cards("b") == first
    assert not set(cards("c", seed=1)) & set(first)


def test_a_directory_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    for force in (False, True):
        with pytest.raises(SimError, match="not a simulated node"):
            create(tmp_path, "t4x2", force=force)
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_an_existing_node_is_replaced_only_by_force(make_node: MakeNode) -> None:
    node = make_node("t4x2")
    node.faults.lost(0)
    with pytest.raises(SimError, match="--force"):
        create(node.directory, "t4x2")
    assert node.gpus()[0].lost
    again = create(node.directory, "h100x8", force=True)
    assert len(again.gpus()) == 8
    assert not again.gpus()[0].lost


def test_unknown_profiles_drivers_and_nodes_are_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(SimError, match=r"'t5x2' is unknown.*t4x2"):
        create(tmp_path / "n", "t5x2")
    with pytest.raises(SimError, match=r"driver 571 is unknown.*570"):
        create(tmp_path / "n", "t4x2", driver=571)
    with pytest.raises(SimError, match="gpuslice-sim create"):
        SimNode.open(tmp_path)


def test_a_gpu_is_named_by_index_or_the_start_of_its_uuid(make_node: MakeNode) -> None:
    node = make_node("t4x2")
    second = node.gpus()[1]
    for name in (1, "1", second.uuid, second.uuid[:10], second.uuid[4:12]):
        assert node.gpu(name) == second
    for name, problem in ((2, "0 to 1"), ("GPU-", "several"), ("GPU-x", "no GPU")):
        with pytest.raises(SimError, match=problem):
            node.gpu(name)


def test_the_driver_root_holds_what_nvidias_toolkit_looks_for(make_node: MakeNode) -> None:
    root = make_node("a100x2-mig-mixed").root
    (libraries,) = (root / "usr" / "lib").iterdir()
    names = {
        path.name: str(path.readlink()) if path.is_symlink() else "" for path in libraries.iterdir()
    }
    assert names == {
        "libnvidia-ml.so.570.124.06": "",
        "libnvidia-ml.so.1": "libnvidia-ml.so.570.124.06",
        "libcuda.so.570.124.06": "",
        "libcuda.so.1": "libcuda.so.570.124.06",
        "libcuda.so": "libcuda.so.1",
    }
    driver = root / "proc" / "driver"
    assert "570.124.06" in (driver / "nvidia" / "version").read_text()
    information = (driver / "nvidia" / "gpus" / "0000:87:00.0" / "information").read_text()
    assert "Device Minor: \t 1\n" in information
    minors = dict(map(str.split, (driver / "nvidia-caps" / "mig-minors").read_text().splitlines()))
    assert minors["gpu0/gi0/access"] == "3"
    assert minors["gpu0/gi1/ci0/access"] == "13"
    assert minors["gpu1/gi0/access"] == "138"
    access = driver / "nvidia" / "capabilities" / "gpu0" / "mig" / "gi1" / "ci0" / "access"
    assert access.read_text().startswith("DeviceFileMinor: 13\n")
    pci = root / "sys" / "bus" / "pci" / "devices" / "0000:87:00.0"
    files = {name: (pci / name).read_text().strip() for name in ("numa_node", "vendor", "device")}
    assert files == {"numa_node": "1", "vendor": "0x10de", "device": "0x20b0"}
    assert len((pci / "config").read_bytes()) == 256


@needs_root
def test_device_nodes_are_those_of_the_driver(make_node: MakeNode) -> None:
    dev = make_node("mixed").root / "dev"

    def number(name: str) -> tuple[int, int]:
        status = (dev / name).stat()
        assert stat.S_ISCHR(status.st_mode)
        return os.major(status.st_rdev), os.minor(status.st_rdev)

    gpus = {name: (195, int(name[6:])) for name in ("nvidia0", "nvidia1", "nvidia3", "nvidia4")}
    assert {name: number(name) for name in gpus} == gpus
    assert number("nvidiactl") == (195, 255)
    assert not (dev / "nvidia2").exists()
    assert number("nvidia-uvm-tools")[1] == number("nvidia-uvm")[1] + 1
    assert (dev / "nvidia-caps" / "nvidia-cap1").exists()


@needs_root
def test_without_root_a_node_has_no_device_nodes_and_says_so(short_path: Path) -> None:
    short_path.chmod(0o777)
    # What create() needs is loaded first: the interpreter may be out of reach for others.
    script = f"""
import importlib.readers, os
from pathlib import Path
from gpuslice_sim import node, profiles
profiles.profiles()
os.setuid(65534)
made = node.create(Path({str(short_path / "node")!r}), "a100x2-mig-single")
print(len(made.gpus()), [path.name for path in (made.root / "dev").iterdir()])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout == "2 ['README']\n", done.stderr


def test_the_driver_root_follows_hot_plug(make_node: MakeNode) -> None:
    node = make_node("t4x2")
    pci = node.root / "sys" / "bus" / "pci" / "devices"
    node.faults.unplug(0)
    assert sorted(path.name for path in pci.iterdir()) == ["0000:d8:00.0"]
    new = node.faults.add_gpu("a10")
    node.faults.plug(0)
    names = [gpu.pci[4:].lower() for gpu in node.gpus()]
    assert sorted(path.name for path in pci.iterdir()) == sorted(names)
    assert (new.name, new.minor, new.index) == ("NVIDIA A10", 2, 2)


def test_the_driver_root_shows_which_kernel_driver_a_gpu_has(make_node: MakeNode) -> None:
    node = make_node("t4x2")
    driver = node.root / "sys" / "bus" / "pci" / "devices" / "0000:3b:00.0" / "driver"
    assert driver.readlink().name == "nvidia"
    node.faults.unbind(0, "vfio-pci")
    assert driver.readlink().name == "vfio-pci"
    node.faults.unbind(0)
    assert driver.parent.exists()
    assert not driver.is_symlink()
    node.faults.plug(0)
    assert driver.readlink().name == "nvidia"
    node.faults.unplug(0)
    assert not driver.parent.exists()


@needs_root
def test_a_program_in_the_namespace_sees_hot_plug(make_node: MakeNode) -> None:
    node = make_node("t4x2")
    script = "echo up; while read _; do ls /sys/bus/pci/devices | tr '\\n' ' '; echo; done"
    process = subprocess.Popen(
        node.namespace_command(["sh", "-c", script]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    seen = []
    for change in (node.faults.unplug, node.faults.plug):
        change(0)
        process.stdin.write("\n")
        process.stdin.flush()
        seen.append(process.stdout.readline().split())
    process.communicate()
    assert seen == [["0000:d8:00.0"], ["0000:3b:00.0", "0000:d8:00.0"]]


def test_programs_work_without_environment_from_anywhere_and_through_links(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node("t4x2")
    link = tmp_path / "smi"
    link.symlink_to(node.bin / "nvidia-smi")
    for program in (node.bin / "nvidia-smi", node.root / "usr" / "bin" / "nvidia-smi", link):
        done = subprocess.run(
            [program, "-L"], env={}, cwd="/", capture_output=True, text=True, check=True
        )
        assert done.stdout.count("Tesla T4") == 2


def test_a_node_in_a_path_with_spaces_and_quotes_works(tmp_path: Path) -> None:
    node = create(tmp_path / "it's a node", "t4x2")
    done = subprocess.run([node.bin / "nvidia-smi", "-L"], capture_output=True, check=True)
    assert done.stdout.count(b"GPU-") == 2


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_plain_c_program_finds_the_driver_by_the_library_path_alone(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node("mixed")
    source = tmp_path / "count.c"
    source.write_text(
        "#include <stdio.h>\n"
        "int nvmlInit_v2(void); int nvmlDeviceGetCount_v2(unsigned *); int nvmlShutdown(void);\n"
        "int main(void) {\n"
        "    unsigned n = 0;\n"
        "    if (nvmlInit_v2() || nvmlDeviceGetCount_v2(&n)) return 1;\n"
        '    printf("%u", n);\n'
        "    return nvmlShutdown(); }\n"
    )
    (library,) = node.lib.glob("libnvidia-ml.so.1")
    program = tmp_path / "count"
    subprocess.run(["cc", source, library, "-o", program], check=True)
    env = {"LD_LIBRARY_PATH": str(node.lib)}
    done = subprocess.run([program], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "4"


def test_the_environment_puts_the_node_first(make_node: MakeNode) -> None:
    node = make_node("t4x2")
    env = node.env({"PATH": "/usr/bin", "HOME": "/x"})
    assert env == {
        "PATH": f"{node.bin}:/usr/bin",
        "LD_LIBRARY_PATH": str(node.lib),
        "HOME": "/x",
    }


@needs_root
def test_a_program_in_the_namespace_sees_the_nodes_kernel_view(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node("mixed")
    before = sorted(path.name for path in Path("/dev").iterdir())
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "kubelet.sock").touch()
    script = (
        "ls /dev/nvidia? /var/lib/kubelet/device-plugins; cat /sys/bus/pci/devices/*/numa_node; "
        "ls /proc/driver/nvidia/gpus; test -c /dev/null -a -c /dev/nvidiactl; nvidia-smi -L; "
        "touch /no/such/place/file; echo $#; exit 7"
    )
    places = {"/var/lib/kubelet/device-plugins": plugins, "/no/such/place": tmp_path / "made"}
    command = node.namespace_command(["sh", "-c", script, "--", "a", "--"], places)
    environment = os.environ | {"TMPDIR": str(scratch)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 7, done.stderr
    for minor in (0, 1, 3, 4):
        assert f"/dev/nvidia{minor}\n" in done.stdout
    assert "kubelet.sock" in done.stdout
    assert "0\n0\n1\n1\n" in done.stdout
    assert "0000:3b:00.0" in done.stdout
    assert done.stdout.count("UUID: GPU-") == 4
    assert done.stdout.endswith("2\n")
    assert (tmp_path / "made" / "file").exists()
    assert not Path("/no").exists()
    assert sorted(path.name for path in Path("/dev").iterdir()) == before
    assert list(scratch.iterdir()) == []


@needs_root
def test_signals_reach_the_program_in_the_namespace(make_node: MakeNode) -> None:
    node = make_node("t4x2")
    script = "import signal, sys\nsignal.signal(15, lambda *_: sys.exit(42))\n"
    script += "print('up', flush=True)\nsignal.pause()"
    command = node.namespace_command([sys.executable, "-c", script])
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.terminate()
    process.communicate(timeout=90)
    assert process.returncode == 42


def test_the_command_line_makes_shows_and_changes_a_node(tmp_path: Path) -> None:
    directory = tmp_path / "node"
    made = sim("create", directory, "--profile", "a100x2-mig-mixed", "--driver", 590)
    assert made.returncode == 0, made.stderr
    assert "2 x NVIDIA A100-SXM4-40GB, driver 590.48.01" in made.stdout
    node = SimNode.open(directory)
    for arguments in (
        ("xid", 1, 79),
        ("lost", node.gpus()[1].uuid),
        ("recovery-action", 0, "NODE_REBOOT"),
        ("add-process", 0, 4242, 512, "--kind", "M+C", "--gi", 1, "--ci", 0, "--invented"),
        ("mig", 0, "7g.40gb"),
        ("call", 0, "nvmlDeviceGetUUID", "UNKNOWN"),
        ("unbind", 1, "--driver", "vfio-pci"),
    ):
        done = sim("fault", directory, *arguments)
        assert done.returncode == 0, done.stderr
    shown = sim("show", directory).stdout
    assert "lost" in shown
    assert "recovery action 2" in shown
    assert "process 4242 M+C 512 MiB" in shown
    assert "7g.40gb" in shown
    assert (directory / "state" / "events").read_text().startswith("1 8 79 - -\n")
    assert "t4x2" in sim("profiles").stdout


def test_the_command_line_explains_what_is_wrong(tmp_path: Path, make_node: MakeNode) -> None:
    node = make_node("t4x2")
    for arguments, text in (
        (("create", tmp_path / "x", "--profile", "nope"), "'nope' is unknown"),
        (("fault", tmp_path, "lost", 0), "not a simulated node"),
        (("fault", node.directory, "lost", 9), "GPU 9 does not exist"),
        (("fault", node.directory, "remove-process", 0, 5), "process 5 is not on GPU 0"),
    ):
        done = sim(*arguments)
        assert done.returncode == 1
        assert text in done.stderr
        assert "Traceback" not in done.stderr
