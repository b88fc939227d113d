"""`gpuslice-sim fault`: the methods of `gpuslice_sim.faults` as commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuslice_sim.node import SimNode

app = typer.Typer(help="Cause faults and other changes on a node. All programs see them at once.")

Directory = Annotated[Path, typer.Argument(help="Directory of the node.", show_default=False)]
Gpu = Annotated[str, typer.Argument(help="Index, UUID or prefix of a UUID.", show_default=False)]
Gi = Annotated[int | None, typer.Option(help="Only this MIG GPU instance.", show_default=False)]
Ci = Annotated[int | None, typer.Option(help="Only this compute instance.", show_default=False)]
Code = Annotated[
    str, typer.Argument(help="NVML error by name or number; `none` ends it.", show_default=False)
]


@app.callback(no_args_is_help=True)
def target(context: typer.Context, directory: Directory) -> None:
    context.obj = directory


def _node(context: typer.Context) -> SimNode:
    return SimNode.open(context.obj)


@app.command()
def xid(
    context: typer.Context,
    gpu: Gpu,
    number: Annotated[int, typer.Argument(help="XID, for example 79.", show_default=False)],
    gi: Gi = None,
    ci: Ci = None,
) -> None:
    """Report an XID error."""
    _node(context).faults.xid(gpu, number, gi, ci)


@app.command()
def lost(context: typer.Context, gpu: Gpu) -> None:
    """Make a GPU fall off the bus."""
    _node(context).faults.lost(gpu)


@app.command()
def restore(context: typer.Context, gpu: Gpu) -> None:
    """Reset a GPU: end its faults."""
    _node(context).faults.restore(gpu)


@app.command()
def ecc(
    context: typer.Context,
    gpu: Gpu,
    corrected: Annotated[int, typer.Option(help="New corrected errors.")] = 0,
    uncorrected: Annotated[int, typer.Option(help="New uncorrected errors.")] = 0,
    sram: Annotated[bool, typer.Option("--sram", help="Errors of SRAM, not DRAM.")] = False,
) -> None:
    """Add memory errors."""
    _node(context).faults.ecc(gpu, corrected=corrected, uncorrected=uncorrected, sram=sram)


@app.command()
def recovery_action(
    context: typer.Context,
    gpu: Gpu,
    action: Annotated[str, typer.Argument(help="Name or number.", show_default=False)],
) -> None:
    """Set the recovery action that a GPU requires (NONE, GPU_RESET, NODE_REBOOT, ...)."""
    _node(context).faults.recovery_action(gpu, action)


@app.command()
def remap_pending(
    context: typer.Context,
    gpu: Gpu,
    rows: Annotated[int, typer.Option(help="Rows to remap; 0 clears.")] = 1,
) -> None:
    """Set the number of rows with a pending remap."""
    _node(context).faults.remap_pending(gpu, rows)


@app.command()
def remap_failure(context: typer.Context, gpu: Gpu) -> None:
    """Make row remapping fail."""
    _node(context).faults.remap_failure(gpu)


@app.command()
def utilization(
    context: typer.Context,
    gpu: Gpu,
    percent: Annotated[int, typer.Argument(show_default=False, min=0, max=100)],
    memory: Annotated[int, typer.Option(help="Memory utilization.", min=0, max=100)] = 0,
) -> None:
    """Set the utilization of a GPU."""
    _node(context).faults.utilization(gpu, percent, memory)


@app.command()
def add_process(
    context: typer.Context,
    gpu: Gpu,
    pid: Annotated[int, typer.Argument(show_default=False)],
    mib: Annotated[int, typer.Argument(help="Memory of the process in MiB.", show_default=False)],
    kind: Annotated[str, typer.Option(help="C, M+C or G.")] = "C",
    sm: Annotated[int, typer.Option(help="Utilization, percent.")] = 0,
    name: Annotated[str, typer.Option(help="Name of the process.")] = "",
    gi: Gi = None,
    ci: Ci = None,
    invented: Annotated[
        bool,
        typer.Option(
            "--invented",
            help="The PID does not have to exist; keep the process until it is removed.",
        ),
    ] = False,
) -> None:
    """Add a process to a GPU."""
    _node(context).faults.add_process(
        gpu, pid, mib << 20, kind=kind, sm_percent=sm, name=name, gi=gi, ci=ci, invented=invented
    )


@app.command()
def remove_process(
    context: typer.Context,
    gpu: Gpu,
    pid: Annotated[int, typer.Argument(show_default=False)],
) -> None:
    """Remove a process from a GPU."""
    _node(context).faults.remove_process(gpu, pid)


@app.command()
def nvml_init(context: typer.Context, code: Code) -> None:
    """Make nvmlInit fail."""
    _node(context).faults.nvml_init(code)


@app.command()
def event_wait(context: typer.Context, code: Code) -> None:
    """Make waits for events fail."""
    _node(context).faults.event_wait(code)


@app.command()
def event_set(context: typer.Context, code: Code) -> None:
    """Make the creation of event sets fail."""
    _node(context).faults.event_set(code)


@app.command()
def call(
    context: typer.Context,
    gpu: Gpu,
    function: Annotated[str, typer.Argument(help="nvmlDeviceGetUUID, ...", show_default=False)],
    code: Code,
) -> None:
    """Make one NVML function fail for one GPU."""
    _node(context).faults.call(gpu, function, code)


@app.command()
def hang(
    context: typer.Context,
    gpu: Annotated[str | None, typer.Option(help="Only calls of this GPU.")] = None,
    function: Annotated[str, typer.Option(help="Only this function, for example nvmlInit.")] = "",
    end: Annotated[bool, typer.Option("--end", help="The calls return.")] = False,
) -> None:
    """Make NVML calls hang."""
    _node(context).faults.hang(gpu, function, hangs=not end)


@app.command()
def unbind(
    context: typer.Context,
    gpu: Gpu,
    driver: Annotated[str, typer.Option(help="New kernel driver; none if empty.")] = "",
) -> None:
    """Unbind a GPU from the NVIDIA driver; `plug` binds it again."""
    _node(context).faults.unbind(gpu, driver)


@app.command()
def unplug(context: typer.Context, gpu: Gpu) -> None:
    """Remove a GPU."""
    _node(context).faults.unplug(gpu)


@app.command()
def plug(context: typer.Context, gpu: Gpu) -> None:
    """Add a removed GPU again."""
    _node(context).faults.plug(gpu)


@app.command()
def add_gpu(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Model, for example t4.", show_default=False)],
) -> None:
    """Add a new GPU and print its UUID."""
    typer.echo(_node(context).faults.add_gpu(model).uuid)


@app.command()
def mig(
    context: typer.Context,
    gpu: Gpu,
    layout: Annotated[
        list[str] | None,
        typer.Argument(help="Profiles, for example 3g.20gb 1g.5gb.", show_default=False),
    ] = None,
) -> None:
    """Change the MIG layout. Without profiles, disable MIG."""
    _node(context).faults.mig(gpu, layout or [])
