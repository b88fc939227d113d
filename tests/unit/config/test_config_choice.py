import pytest

from gpuslice.config.config_choice import Fallback, choose_config
from gpuslice.config.errors import ConfigError

NAMED, SINGLE, EMPTY = Fallback.NAMED, Fallback.SINGLE, Fallback.EMPTY


def test_the_label_names_the_configuration() -> None:
    assert choose_config(["a", "b"], "b", "a", [EMPTY]) == "b"


def test_a_label_without_a_configuration_is_an_error_even_with_fallbacks() -> None:
    with pytest.raises(ConfigError, match=r"node label: 'c' .*choose one of a, b"):
        choose_config(["b", "a"], "c", "a", [NAMED, SINGLE, EMPTY])


@pytest.mark.parametrize("label", [None, ""])
def test_without_a_label_the_default_is_used(label: str | None) -> None:
    assert choose_config(["a", "default"], label, "a", [NAMED]) == "a"


def test_a_default_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"default-config: 'c' .*choose one of a"):
        choose_config(["a"], None, "c", [EMPTY])


@pytest.mark.parametrize(
    ("available", "fallbacks", "expected"),
    [
        (["a", "default"], [NAMED, SINGLE], "default"),
        (["a"], [NAMED, SINGLE], "a"),
        (["a", "b"], [NAMED, SINGLE, EMPTY], None),
        ([], [NAMED, SINGLE, EMPTY], None),
        (["default"], [EMPTY, NAMED], None),
    ],
)
def test_fallbacks_are_tried_in_order(
    available: list[str], fallbacks: list[Fallback], expected: str | None
) -> None:
    assert choose_config(available, None, "", fallbacks) == expected


def test_the_error_lists_the_fallbacks_that_do_not_apply() -> None:
    with pytest.raises(
        ConfigError, match=r"no fallback strategy applies \(named, single\); .*one of a, b"
    ):
        choose_config(["a", "b"], None, "", [NAMED, SINGLE])
    with pytest.raises(ConfigError, match=r"\(none is set\); add a configuration"):
        choose_config([], None)
