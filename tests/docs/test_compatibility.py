"""docs/compatibility.md says what `ubnode doctor` checks."""

from docs import compatibility


def test_the_page_is_what_the_code_gives_now() -> None:
    assert compatibility.page().read_text() == compatibility.document(), "run make docs and commit"
