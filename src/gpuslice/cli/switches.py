"""Switches that have a value after an equals sign, as Go's have, beside Typer's `--no-…`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import typer
from typer.core import TyperCommand, TyperOption

from gpuslice.config.value_parsers import parse_boolean

SWITCHES_HELP = (
    "A switch may have a value after an equals sign: --switch=true, --switch=false. "
    "Without one it is true; --no-switch is false."
)


class SwitchCommand(TyperCommand):
    """Reads `--switch=true` as `--switch`, and `--switch=false` as `--no-switch`."""

    def parse_args(
        self,
        ctx: typer.Context,  # type: ignore[override]  # the type that Typer names is private
        args: list[str],
    ) -> list[str]:
        options = [param for param in self.params if isinstance(param, TyperOption)]
        return super().parse_args(ctx, list(_without_values(options, args)))


def _without_values(options: Sequence[TyperOption], args: Sequence[str]) -> Iterator[str]:
    # What has no negative form (--help) is no switch.
    switches = {
        name: (option.opts[0], option.secondary_opts[0])
        for option in options
        if option.is_flag and option.secondary_opts
        for name in option.opts
    }
    with_values = {name for option in options if not option.is_flag for name in option.opts}
    before = ""
    for word in args:
        name, equals, text = word.partition("=")
        if before in switches and parse_boolean(word) is not None:
            raise typer.BadParameter(
                f"a value follows after an equals sign: {before}={word}", param_hint=f"'{before}'"
            )
        is_value = before in with_values
        has_value = equals and name in switches and not is_value
        yield _switched(name, text, *switches[name]) if has_value else word
        before = "" if is_value else word


def _switched(name: str, text: str, positive: str, negative: str) -> str:
    value = parse_boolean(text)
    if value is None:
        raise typer.BadParameter(f"{text!r}: use true or false", param_hint=f"'{name}'")
    return positive if value else negative
