"""What all tests share: kernel tests skip at home when they cannot run, and fail in CI."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

SECTIONS = {"kernel", "binary", "chart", "apiserver"}
settings.register_profile("default", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A marker names the one section that runs a test: with two it would run twice, or where it cannot."""
    for item in items:
        if len(marks := SECTIONS & {mark.name for mark in item.iter_markers()}) > 1:
            raise pytest.UsageError(
                f"{item.nodeid} has the markers {', '.join(sorted(marks))}: one section runs a test"
            )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A skip is allowed at home; in CI it hides a broken set-up, so it is a failure."""
    report = yield
    if os.environ.get("CI") and getattr(report, "skipped", False) and not hasattr(report, "wasxfail"):
        report.outcome = "failed"  # type: ignore[attr-defined]
        report.longrepr = f"skipped in CI: {report.longrepr}"  # type: ignore[attr-defined]
    return report
