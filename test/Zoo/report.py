"""docs/models.md, out of the outcomes of a run."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

HEAD = """# Models

Made on commit `{commit}`.

What was tried from module to trained plan, and what came of it. Each model has random weights and sizes that are small; each
is captured, planned with {sets} random sets of options (ranks from 1 to {ranks}, strategy, units, prefetch, buckets, presets,
recomputation), and run with another batch on every rank: one step, whose loss and every gradient are compared with eager
PyTorch, and {steps} steps of AdamW, whose losses are. A model agrees if all of that does under every set, or it is rejected
with the sentence that stands here. A tenth of the table is made again by every `scripts/check.sh`, all of it, and this file, by

```sh
.venv/bin/python -m pytest -n auto test/Zoo --all-models
```

and the rows of some models by adding `-k NAME`.

Gradients may differ by 1e-5 of their largest element, losses by 1e-5; what computes in bf16 by 3e-2, and one by 5e-5, for the reason that stands at it.
{summary}
"""


def summary(outcomes: list[dict[str, Any]]) -> str:
    agree = sum(not o["sentence"] for o in outcomes)
    return f"{agree} of {len(outcomes)} models agree ({agree / len(outcomes):.1%}), {len(outcomes) - agree} are rejected."


def earlier(document: str) -> list[dict[str, Any]]:
    """The outcomes in a document that was written before."""
    outcomes, library = [], ""
    for line in document.splitlines():
        if line.startswith("## "):
            library = "plain" if line == "## Hand-written modules" else line[3:]
        row = re.fullmatch(r"\| (.+) \| ([\d,]+) \| (\d*) \| (?:agrees|([^:]+): (.*)) \|", line)
        if row:
            name, parameters, nodes, stage, sentence = row.groups()
            sentence = (sentence or "").replace("\\|", "|")
            parameters, nodes = int(parameters.replace(",", "")), int(nodes or 0)
            outcomes.append(dict(name=name, library=library, parameters=parameters, nodes=nodes, stage=stage or "", sentence=sentence))
    return outcomes


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def document(outcomes: list[dict[str, Any]], commit: str) -> str:
    from runner import RANKS, SETS, STEPS

    written = [o for o in outcomes if o["library"] != "plain"]
    both = f"{summary(outcomes)}\nOf the libraries' own: {summary(written)}\nSome of the hand-written ones are there to be rejected."
    lines = [HEAD.format(commit=commit, sets=SETS, ranks=RANKS, steps=STEPS, summary=both)]
    libraries = Counter(o["library"] for o in outcomes)
    for library in libraries:
        rows = [o for o in outcomes if o["library"] == library]
        lines += [f"## {'Hand-written modules' if library == 'plain' else library}\n", f"{summary(rows)}\n"]
        lines += ["| model | parameters | nodes | result |", "|---|---:|---:|---|"]
        for o in sorted(rows, key=lambda o: o["name"].lower()):
            result = f"{o['stage']}: {cell(o['sentence'])}" if o["sentence"] else "agrees"
            lines.append(f"| {o['name']} | {o['parameters']:,} | {o['nodes'] or ''} | {result} |")
        lines.append("")
    return "\n".join(lines)
