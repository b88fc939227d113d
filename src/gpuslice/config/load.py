"""Loads the settings. Order of precedence: flag, environment variable, file, default."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpuslice.config.build_settings import build_settings
from gpuslice.config.config_choice import check_config_file
from gpuslice.config.errors import ConfigError
from gpuslice.config.file_content import FileContent
from gpuslice.config.option_values import OptionReader, OptionValues, with_source
from gpuslice.config.settings import Settings
from gpuslice.config.settings_warnings import settings_warnings


@dataclass(frozen=True, slots=True)
class Loaded:
    settings: Settings
    # For the log.
    warnings: tuple[str, ...] = ()


def load_settings(
    values: OptionValues, defaults: Settings | None = None, config_file: Path | None = None
) -> Loaded:
    """Read and validate all settings.

    `values` are those of flags and environment variables. `config_file` is the file to read now;
    without it, the file counts as empty. Raises ConfigError, which names the flag, the variable, or
    the file and its key.
    """
    file = FileContent()
    try:
        if config_file is not None:
            file = _read_file(config_file, lenient=OptionReader(values).switch("lenient", False))
        options = OptionReader({**file.values, **values})
        settings = build_settings(options, file, defaults or Settings())
    except ConfigError as error:
        raise _with_source(error, {**file.values, **values}, config_file) from error
    return Loaded(settings, (*file.warnings, *settings_warnings(options, settings)))


def _read_file(path: Path, *, lenient: bool) -> FileContent:
    check_config_file(path)
    # Imported here: an agent without a file saves the memory of the YAML parser.
    from gpuslice.config.file_parser import parse_config_file

    return parse_config_file(path, lenient=lenient)


def _with_source(error: ConfigError, values: OptionValues, file: Path | None) -> ConfigError:
    found = with_source(error, values)
    if found is not error or file is None:
        return found
    from gpuslice.config.file_schema import is_file_key

    if is_file_key(error.field):
        return ConfigError(error.field, error.value, error.remedy, file)
    return error
