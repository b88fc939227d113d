"""Settings are checked without regard to where they come from; who reads of an error wants that."""

from __future__ import annotations

from pathlib import Path

from gpuslice.config.errors import ConfigError
from gpuslice.config.load import Loaded, load_settings
from gpuslice.config.option_table import OPTIONS
from gpuslice.config.option_values import OptionValues, with_source
from gpuslice.config.settings import Settings


def load_attributed(
    given: OptionValues, defaults: Settings | None = None, config_file: Path | None = None
) -> Loaded:
    """As `load_settings`; its errors name the flag, the variable, or the key and the file."""
    try:
        return load_settings(given, defaults, config_file)
    except ConfigError as error:
        raise _attributed(error, given, config_file) from error


def _attributed(error: ConfigError, given: OptionValues, file: Path | None) -> ConfigError:
    if file is None or error.field in given:
        return with_source(error, given)
    # Imported here, as the reader of the file is: an agent without one does without its memory.
    from gpuslice.config.file_schema import is_key

    option = next((o for o in OPTIONS if o.key and error.field in (o.name, o.key)), None)
    value = None if option is None else _value_in(file, option.key)
    if option is not None and value is not None:
        return ConfigError(option.key, value, error.remedy, file)
    if is_key(error.field):
        return ConfigError(error.field, error.value, error.remedy, file)
    return error


def _value_in(file: Path, key: str) -> object:
    """As it is written there; None: the file does not speak of it, or is not what it was."""
    from gpuslice.config.file_flags import file_value
    from gpuslice.config.file_schema import read_config_file

    if not file.is_file():  # a pipe has nothing to say a second time
        return None
    try:
        content, _ = read_config_file(file, lenient=True)
    except ConfigError:
        return None
    return file_value(content, key)
