"""A log line is one JSON object, whatever was logged."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from ubhost import log


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    log.set_up("info", stream)
    yield stream
    root.handlers[:], root.level = handlers, level


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_extra_data_and_ids_are_keys_of_the_line(out: io.StringIO) -> None:
    with log.ids(pod="p1"), log.ids(container="c1"):
        logging.getLogger("cni").info("attached", extra={"device": "urma_1"})
    (line,) = lines(out)
    assert (line["message"], line["pod"], line["container"], line["device"]) == ("attached", "p1", "c1", "urma_1")


def test_ids_end_with_the_request(out: io.StringIO) -> None:
    with log.ids(pod="p1"):
        pass
    logging.getLogger("cni").info("idle")
    assert "pod" not in lines(out)[0]


def test_newlines_quotes_and_odd_values_stay_inside_one_line(out: io.StringIO) -> None:
    logging.getLogger("cni").warning('a "quoted"\nvalue', extra={"path": io.StringIO, "bytes": b"\xff"})
    assert len(lines(out)) == 1


def test_an_exception_is_logged_with_its_trace(out: io.StringIO) -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("cni").exception("failed")
    assert "ValueError: broken" in str(lines(out)[0]["trace"])


def test_debug_lines_are_left_out_at_info(out: io.StringIO) -> None:
    logging.getLogger("cni").debug("detail")
    assert lines(out) == []
