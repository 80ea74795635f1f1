"""docs/reference.md says what the code says."""

from cni_ub.agent.config import AgentConfig
from csi_ub.config import Config as CsiConfig
from docs import reference
from nri_qos.config import Config as NriConfig


def test_the_page_is_what_the_code_gives_now() -> None:
    assert reference.page().read_text() == reference.document(), "run make docs and commit"


def test_every_key_label_and_metric_is_explained() -> None:
    rows = [line.split(" | ") for line in reference.document().splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    # What it may be says enough of a key, where nobody wrote a sentence.
    assert [row for row in rows if not row[-1].strip(" |") and not row[1].strip()] == []


def test_every_sentence_is_about_a_key_that_exists() -> None:
    for kind, sentences in (
        (AgentConfig, reference.AGENT),
        (CsiConfig, reference.CSI),
        (NriConfig, reference.NRI),
    ):
        assert sentences.keys() <= {path for path, *_ in reference.walk(kind)}
