"""``ubnode doctor``: exit code 0 when the node is fit, 1 when there is a problem."""

import json
from collections.abc import Callable, Iterable, Sequence

from ubhost.arguments import Parser
from ubhost.doctor import report
from ubhost.doctor.findings import Finding
from ubhost.doctor.look import look
from ubhost.roots import Roots


def main(argv: Sequence[str], more: Callable[[Roots], Iterable[Finding]] = lambda _: ()) -> int:
    """Tell what is found on this host, and by ``more``, who knows more than this library does."""
    parser = Parser(
        prog="ubnode doctor",
        description="Check whether UB pods can run on this node. Changes nothing; exits with 1 if there is a problem.",
    )
    parser.add_argument("--json", action="store_true", help="for programs: stable names, one document")
    arguments = parser.parse_args(argv)
    roots = Roots.from_environ()
    findings = report.examine(look(roots), more(roots))
    if arguments.json:
        print(json.dumps(report.document(findings), indent=1, ensure_ascii=False))
    else:
        print(report.text(findings))
    return 1 if report.has_problem(findings) else 0
