"""Options of the table as the parameters of a Typer command."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, Signature
from typing import Annotated

import typer

from gpuslice.config.option_definition import Option, OptionKind


def takes(
    options: Iterable[Option],
) -> Callable[[Callable[[Mapping[str, str]], None]], Callable[..., None]]:
    """The decorated function gets the flags that were given, text by the name of the option.

    Typer reads a command's signature, so the command is given the one that the table describes.
    Variables are not left to Typer: they are read in one place, by Go's rules for booleans.
    """
    parameters = [_parameter(option) for option in options if option.is_flag]

    def decorate(run: Callable[[Mapping[str, str]], None]) -> Callable[..., None]:
        def command(**values: object) -> None:
            run({name.replace("_", "-"): _text(v) for name, v in values.items() if v is not None})

        command.__name__, command.__doc__ = run.__name__, run.__doc__
        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def _parameter(option: Option) -> Parameter:
    names = [_dashed(name) for name in (option.name, *option.aliases)]
    if option.kind is OptionKind.SWITCH:
        names = [f"{name}/--no-{name.removeprefix('--')}" for name in names]
    kinds = {OptionKind.SWITCH: bool | None, OptionKind.LIST: list[str] | None}
    info = typer.Option(*names, help=f"{option.explained} [{', '.join(option.variables)}]")
    return Parameter(
        option.name.replace("-", "_"),
        Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kinds.get(option.kind, str | None), info],
    )


def _dashed(name: str) -> str:
    return f"-{name}" if len(name) == 1 else f"--{name}"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
