"""The agent says at its start what the doctor finds, where an operator looks: in its log."""

import logging

import pytest

from cni_ub.agent.checkup import tell
from ubhost.doctor.findings import note, ok, problem, warning


def test_what_needs_doing_is_logged_with_cause_and_next_step(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    tell(
        (
            problem("kernel", "it is old", "1.0", "update it"),
            warning("nri", "off", "a", "b"),
            note("n", "x"),
            ok("o", "y"),
        )
    )
    first, second = caplog.records
    assert (first.levelname, second.levelname) == ("ERROR", "WARNING")
    assert (first.__dict__["check"], first.__dict__["cause"], first.__dict__["next"]) == ("kernel", "1.0", "update it")
