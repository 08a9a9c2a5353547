"""Which cases run, and the table of what came of them."""

import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import report

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "models.md"


def pytest_addoption(parser):
    parser.addoption("--all-models", action="store_true", help="try all models, not one in ten (with -k: those), and write docs/models.md")


# Which of ten: scripts/check.sh has it follow the commit.
FIRST = int(os.environ.get("FSDP_SAMPLE", 0)) % 10


def pytest_report_header(config):
    return "" if config.option.all_models or config.option.keyword else f"models: every tenth from number {FIRST} on (FSDP_SAMPLE={FIRST})"


def pytest_collection_modifyitems(config, items):
    """One case in ten, unless all or some are asked for."""
    if not config.option.all_models and not config.option.keyword:
        config.hook.pytest_deselected(items=[item for i, item in enumerate(items) if i % 10 != FIRST])
        items[:] = items[FIRST::10]


def pytest_terminal_summary(terminalreporter, config):
    """Writes the document once all of its rows are there; those of models that were not tried now are the earlier ones."""
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.stats.get(kind, [])]
    outcomes = [value for r in reports for key, value in r.user_properties if key == "zoo"]
    if not config.option.all_models:
        return
    from test_zoo import CASES

    earlier = DOCUMENT.read_text() if DOCUMENT.exists() else ""
    before = report.earlier(earlier)
    known = {(o["library"], o["name"]): o for o in before + outcomes}
    names = [(case.library, case.name) for case in CASES]
    if all(name in known for name in names):
        tried = {(o["library"], o["name"]) for o in outcomes}
        outcomes = [known[name] for name in names]
        made_on = re.search(r"^Made on commit `(.*)`", earlier, re.MULTILINE)
        # Some rows of an earlier commit make the page one of that.
        commit = made_on[1] if made_on and not tried.issuperset(names) else subprocess.run(
            ["git", "rev-parse", "--short=7", "HEAD"], cwd=DOCUMENT.parent, capture_output=True, text=True, check=True).stdout.strip()
        DOCUMENT.write_text(report.document(outcomes, commit))
        terminalreporter.write_line(f"wrote {DOCUMENT}: {report.summary(outcomes)}")
