"""The command `gpuslice-sim`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from gpuslice_sim import namespace, profiles
from gpuslice_sim.errors import SimError
from gpuslice_sim.faults_cli import app as faults_app
from gpuslice_sim.node import DEFAULT_DRIVER, SimGpu, SimNode, create

app = typer.Typer(
    help="Simulate NVIDIA GPU nodes. Only the driver is simulated; programs that use it are real.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)
app.add_typer(faults_app, name="fault")

Directory = Annotated[Path, typer.Argument(help="Directory of the node.", show_default=False)]


@app.command("create")
def create_command(
    directory: Directory,
    profile: Annotated[
        str, typer.Option(help="Profile of the node; `gpuslice-sim profiles` lists them.")
    ] = "t4x2",
    driver: Annotated[
        int, typer.Option(help=f"Driver branch: {', '.join(map(str, profiles.DRIVERS))}.")
    ] = DEFAULT_DRIVER,
    seed: Annotated[int, typer.Option(help="Seed of UUIDs and serial numbers.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing node.")] = False,
) -> None:
    """Create a node.

    Any program finds its driver with
    [bold]LD_LIBRARY_PATH=DIR/lib PATH=DIR/bin:$PATH[/bold].
    """
    node = create(directory, profile, driver=driver, seed=seed, force=force)
    version = node.state.values()["driver.version"]
    typer.echo(f"{node.directory}: {_summary(node.gpus())}, driver {version}")
    typer.echo(f"export LD_LIBRARY_PATH={node.lib} PATH={node.bin}:$PATH")
    if not (node.root / "dev" / "nvidiactl").exists():
        typer.echo(
            "warning: no device nodes in root/dev: run this as root to create them", err=True
        )


@app.command("profiles")
def profiles_command() -> None:
    """List the profiles of nodes."""
    table = Table("name", "GPUs", "memory", "MIG", "notes", box=None, pad_edge=False)
    for profile in profiles.profiles().values():
        names = [slot.model.name for slot in profile.slots]
        memory = [slot.model.memory["total"] for slot in profile.slots]
        sizes = dict.fromkeys(f"{size / 1024:.0f} GiB" for size in memory)
        mig = [len(slot.mig) for slot in profile.slots if slot.mig]
        capable = any(slot.model.mig for slot in profile.slots)
        table.add_row(
            profile.name,
            "\n".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)),
            ", ".join(sizes),
            f"{sum(mig)} devices" if mig else "off" if capable else "-",
            profile.about,
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)


@app.command("show")
def show_command(directory: Directory) -> None:
    """Show the current state of a node: GPUs, MIG devices, processes."""
    node = SimNode.open(directory)
    values = node.state.values()
    typer.echo(
        f"{node.directory}: profile {values['node.profile']}, driver {values['driver.version']}"
    )
    table = Table(
        "GPU", "UUID", "name", "minor", "bus", "NUMA", "memory", "state", box=None, pad_edge=False
    )
    for gpu in node.gpus():
        table.add_row(
            str(gpu.index), gpu.uuid, gpu.name, str(gpu.minor), gpu.pci, str(gpu.numa),
            f"{gpu.memory_total_bytes >> 20} MiB", _state(gpu, values),
        )  # fmt: skip
        for mig in gpu.mig:
            profile = mig.profile
            where = f"gi {mig.gi} ci {mig.ci}"
            table.add_row(
                "", mig.uuid, profile.name, "", where, "", f"{profile.memory_mib} MiB", ""
            )
    Console(width=None if sys.stdout.isatty() else 180).print(table)
    for process in node.state.processes():
        used = process.used_bytes >> 20
        typer.echo(
            f"process {process.pid} {process.kind} {used} MiB on {process.gpu} {process.name}"
        )


@app.command("run")
def run_command(
    directory: Directory,
    command: Annotated[list[str], typer.Argument(help="Command to run.", show_default=False)],
    bind: Annotated[
        list[str] | None,
        typer.Option(
            help="/PATH=DIRECTORY: mount a directory at a path, which does not have to exist.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a program that sees the node's /dev/nvidia*, /proc/driver and /sys/bus/pci (needs root).

    Write the command after --: [bold]gpuslice-sim run DIR -- nvidia-ctk cdi generate[/bold]
    """
    namespace.run(SimNode.open(directory), command, namespace.parse_binds(bind or []))


def main() -> None:
    try:
        app()
    except SimError as error:
        sys.exit(f"gpuslice-sim: {error}")


def _summary(gpus: list[SimGpu]) -> str:
    names = [gpu.name for gpu in gpus]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _state(gpu: SimGpu, values: dict[str, str]) -> str:
    words = []
    if not gpu.present:
        words.append("unplugged")
    if gpu.lost:
        words.append("lost")
    if gpu.compute_mode:
        words.append({2: "PROHIBITED", 3: "EXCLUSIVE_PROCESS"}.get(gpu.compute_mode, "?"))
    if values.get(f"gpu.{gpu.index}.recovery_action", "0") != "0":
        words.append(f"recovery action {values[f'gpu.{gpu.index}.recovery_action']}")
    if gpu.mig:
        words.append("MIG")
    return ", ".join(words) or "ok"
