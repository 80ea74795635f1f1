"""The schema of the chart's values is the one that the code gives now."""

import subprocess
import sys

from tests.packaging.conftest import ROOT


def test_the_schema_of_the_values_is_made_from_the_configurations() -> None:
    made = subprocess.run(
        [sys.executable, ROOT / "packaging" / "values_schema.py"], capture_output=True, text=True, check=True
    )
    committed = (ROOT / "packaging/chart/ub-node/values.schema.json").read_text()
    assert committed == made.stdout, "run make docs and commit"
