"""Every case of reference/cni.md, section 4, has a test that says so in its name, or is listed here with its place."""

import re
from pathlib import Path

HERE = Path(__file__).parent
CASES = {
    *(1, 2, 4, 5, 6, 7, 10, 11, 13, 14, 15, 17, 18, 19, 20, 21, 23, 25, 26, 27, 29, 30, 32, 34, 35, 36, 37, 38, 39, 40),
    *(41, 43, 45, 47, 48, 50, 51, 52, 53),
}
ELSEWHERE = {  # they need more than an executable and a node
    29: "test_crash.py::test_an_add_that_is_killed_at_any_moment_is_made_whole",
    47: "agent/test_conf.py::test_killed_at_any_step_the_folder_is_never_wrong_and_the_next_run_puts_it_right",
}


def test_every_case_has_a_test_of_its_own() -> None:
    cases = "".join(path.read_text() for path in (HERE / "cases").glob("test_*.py"))
    names = re.findall(r"^def test_((?:h\d+_)+)", cases, re.MULTILINE)
    named = {int(number) for name in names for number in re.findall(r"\d+", name)}
    assert named | set(ELSEWHERE) == CASES


def test_the_tests_that_are_elsewhere_are_there() -> None:
    for place in ELSEWHERE.values():
        file, _, test = place.partition("::")
        assert f"def {test}(" in (HERE / file).read_text()
