"""Every page is found from the index, links lead somewhere, and what the guides show is what the programs accept."""

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cni_ub.agent import config as agent_config
from cni_ub.protocol import read_conf
from csi_ub import config as csi_config
from csi_ub import parameters
from csi_ub.model import VolumeType
from csi_ub.models.inline import model_named
from nri_qos import config as qos_config
from nri_qos import manifests
from nri_qos.model import OWN_KEY, QosClass
from ubhost import config
from ubnode.__main__ import COMMANDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GUIDES = sorted((DOCS / "howto").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "README.zh.md", *sorted(DOCS.rglob("*.md"))]


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def objects(kind: str) -> Iterator[tuple[str, Any]]:
    """Yield page and document for each object of a kind in the guides."""
    for page in GUIDES:
        for block in blocks(page):
            for document in yaml.safe_load_all(block):
                if document.get("kind") == kind:
                    yield page.name, document


def test_the_index_names_every_page() -> None:
    index = (DOCS / "README.md").read_text()
    named = {DOCS / link for link in re.findall(r"\]\(([^)#]+\.md)", index)}
    pages = {*DOCS.glob("*.md"), *GUIDES} - {DOCS / "README.md"}
    assert pages - named == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in link:
            continue
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (heading and heading not in headings(target)):
            broken.append(link)
    assert broken == []


def headings(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    ("name", "begins", "kind"),
    [
        ("device-plugin.md", "resources:", agent_config.AgentConfig),
        ("csi.md", "log_level: info\npools:", csi_config.Config),
        ("qos.md", "log_level: info\nperiod:", qos_config.Config),
    ],
)
def test_a_configuration_that_is_shown_is_accepted(name: str, begins: str, kind: type[object]) -> None:
    text = (DOCS / name).read_text()
    shown = [*re.findall(r"^```yaml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE), *indented(text)]
    (block,) = [block for block in shown if block.startswith(begins)]
    whole = "\n".join(line for line in block.splitlines() if "…" not in line)
    assert config.parse(whole, kind, where=name)


def indented(text: str) -> list[str]:
    found = re.findall(r"^(?:    .*\n|\n(?=    ))+", text, re.MULTILINE)
    return [textwrap.dedent(block).strip("\n") for block in found]


def test_networks_of_the_guides_are_accepted_by_ub_cni() -> None:
    found = list(objects("NetworkAttachmentDefinition"))
    assert found
    for _, network in found:
        assert read_conf(json.loads(network["spec"]["config"])).isolation == "exclusive"


def test_classes_of_the_guides_are_accepted_by_ub_csi() -> None:
    found = list(objects("StorageClass"))
    assert found
    for _, kind in found:
        assert parameters.parse(kind["parameters"], frozenset()).type.value == kind["parameters"]["type"]


def test_pods_of_the_guides_mean_something_to_the_plugins() -> None:
    found = list(objects("Pod"))
    assert len(found) >= 6
    classes = {qos.value for qos in QosClass}
    for page, pod in found:
        assert manifests.pods([pod]), page
        annotations = pod["metadata"].get("annotations", {})
        assert annotations.get(OWN_KEY, QosClass.LS.value) in classes
        for volume in pod["spec"].get("volumes", ()):
            if "csi" in volume:
                assert model_named(volume["csi"]["volumeAttributes"])


def test_values_of_the_guides_set_what_the_chart_knows() -> None:
    """Helm refuses unknown values by the same schema; here it is read without Helm."""
    schema = json.loads((ROOT / "packaging/chart/ub-node/values.schema.json").read_text())
    found = [block for page in GUIDES for block in blocks(page) if block.startswith("# values.yaml")]
    assert len(found) >= 4
    for block in found:
        assert list(unknown(yaml.safe_load(block), schema)) == []


def unknown(values: Any, schema: Any, path: str = "") -> Iterator[str]:
    known = schema.get("properties")
    if not isinstance(values, dict) or known is None:
        return
    for key, value in values.items():
        if key in known:
            yield from unknown(value, known[key], f"{path}.{key}")
        elif schema.get("additionalProperties") is False:
            yield f"{path}.{key}"


def test_commands_of_the_guides_exist() -> None:
    said = [found for page in PAGES for found in re.findall(r"\bubnode ([a-z-]+)(?= |`|$)", page.read_text())]
    assert len(said) > 50
    assert set(said) - COMMANDS.keys() <= {"volume"}


def test_the_guides_know_every_type_of_volume() -> None:
    assert {kind.value for kind in VolumeType} <= set(re.findall(r"\w+", (DOCS / "csi.md").read_text()))
