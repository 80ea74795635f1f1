"""Configuration is strict, and names everything that is wrong at once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from ubhost import config
from ubhost.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Pool:
    name: str
    type: Literal["dir", "btrfs"] = "dir"


@dataclass(frozen=True, slots=True)
class Sample:
    period: float = 1.0
    log_level: str = "info"
    pools: tuple[Pool, ...] = ()
    extra: Pool | None = None


def load(tmp_path: Path, text: str) -> Sample:
    (tmp_path / "c.yaml").write_text(text)
    return config.load(tmp_path / "c.yaml", Sample)


def test_no_file_gives_the_defaults() -> None:
    assert config.load(None, Sample) == Sample()


def test_an_empty_file_gives_the_defaults(tmp_path: Path) -> None:
    assert load(tmp_path, "") == Sample()


def test_nested_values_become_dataclasses(tmp_path: Path) -> None:
    assert load(tmp_path, "period: 2\npools: [{name: fast, type: btrfs}]\nextra: {name: e}") == Sample(
        period=2.0, pools=(Pool("fast", "btrfs"),), extra=Pool("e")
    )


def test_all_errors_are_named_at_once_with_their_places(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as error:
        load(tmp_path, "perriod: 1\nperiod: soon\npools: [{type: zfs}, {name: 7}]\nextra: [1]")
    for part in (
        "c.yaml",
        "$.perriod: unknown key",
        "$.period",
        "'soon'",
        "$.pools[0].name: missing",
        "$.pools[0].type",
        "zfs",
        "$.pools[1].name",
        "$.extra",
    ):
        assert part in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "- 1",
        "just words",
        "{",
        "a: b: c",
        "\x00",
        "period: 2020-13-45",
        "[" * 3000,
        "period: 1\nperiod: 2",
        "pools: [{name: a, name: b}]",
        "<<: 1",
        "period: 1\n---\nperiod: 2",
    ],
)
def test_what_is_not_a_yaml_mapping_is_refused_with_the_path(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"c\.yaml"):
        load(tmp_path, text)


def test_a_missing_file_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"none\.yaml"):
        config.load(tmp_path / "none.yaml", Sample)


def test_a_file_that_is_something_else_is_not_repeated_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as error:
        load(tmp_path, "root:x:0:0 " * 1000)
    assert "'root:x:0:0" in str(error.value)
    assert len(str(error.value)) < 250


@pytest.mark.parametrize("word", ["off", "on", "no", "yes", "y", "Off", "1:20", "1:2:3:4:5:6:7:8", "0x", "true-ish"])
def test_a_word_is_a_word(tmp_path: Path, word: str) -> None:
    assert load(tmp_path, f"extra: {{name: {word}}}").extra == Pool(word)


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("False", False), ("7", 7), ("-7", -7), ("0", 0), ("0x1F", 31), ("0755", 493), ("1_000", 1000)],
)
def test_truth_and_numbers_are_what_they_look_like(text: str, value: object) -> None:
    (document,) = config.documents(f"key: {text}", where="here")
    assert document == {"key": value}
    assert type(document["key"]) is type(value)


def bomb(levels: int) -> str:
    """Lines of which each has the one before nine times."""
    lines = ["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels))]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text", [bomb(9), bomb(40), "pools: &p [*p]", "extra: &e {name: *e}", "&a [*a]", "? &a [*a]\n: 1"]
)
def test_aliases_that_stand_for_more_than_a_machine_holds_are_refused_at_once(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"c\.yaml is not YAML: aliases stand for too much, or for themselves"):
        load(tmp_path, text)


def test_an_alias_stands_for_what_it_names() -> None:
    assert config.documents("a: &a {b: 1}\nc: [*a, *a]", where="here") == [{"a": {"b": 1}, "c": [{"b": 1}] * 2}]


def test_a_key_without_end_is_not_repeated_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as error:
        load(tmp_path, f"? {'k' * 900}\n: 1")
    assert len(str(error.value)) < 350
