#!/usr/bin/env python3
"""Writes the picture in CONTRIBUTING.md of which room uses which, out of the #include lines.

A room is a folder of lib/ with its headers in include/fsdp/, or a tool. ROOMS lists them from the top down: a room includes
what stands below it, and nothing else but EXCEPTIONS. What does not hold is said, and the exit status is 1.
`test/Python/test_rooms.py` holds that the picture is current.
"""

import pathlib
import re
import subprocess
import sys

import networkx

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- rooms: scripts/draw_rooms.py -->\n", "<!-- end of rooms -->\n"

ROOMS = {
    "Tools": [
        "tools/fsdp-opt",
        "tools/fsdp-plan",
        "tools/fsdp-translate",
        "tools/fsdp-lsp-server",
        "tools/fsdp-reduce",
        "tools/fsdp-run",
        "tools/fsdp-ckpt",
        "tools",
    ],
    "Compiler": [
        "Pipelines",
        "Target/Plan",
        "Conversion/FSDPToPlan",
        "Dialect/Plan/Transforms",
        "Dialect/Plan/IR",
        "Dialect/FSDP/Transforms/Verify",
        "Dialect/FSDP/Transforms/Scheduled",
        "Dialect/FSDP/Transforms/Logical",
        "Dialect/FSDP/Transforms",
        "Dialect/FSDP/Transforms/Options",
        "Analysis",
        "Dialect/FSDP/IR",
        "Import/PT2",
        "Dialect/ATen/Transforms",
        "Dialect/ATen/IR",
    ],
    "Runtime": [
        "Runtime/Training",
        "Runtime/Tracing",
        "Runtime/Checkpoints",
        "Runtime/Data",
        "Runtime/Execution",
        "Runtime/Comm",
        "Runtime/Device",
        "Runtime/Processes",
        "Runtime/Support",
    ],
    "Shared": ["Symbolic", "PlanFile", "Operators", "Planner", "Archive"],
}

# (room, header or room): why it may.
EXCEPTIONS: dict[tuple[str, str], str] = {}

INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def room_of(path: pathlib.PurePosixPath) -> str | None:
    """The room of a file that is named from the project's root: the innermost listed folder that holds it."""
    parts = path.parts
    if parts[0] == "lib":
        parts = parts[1:]
    elif parts[:2] == ("include", "fsdp"):
        parts = parts[2:]
    elif parts[0] != "tools":
        return None
    known = {room for rooms in ROOMS.values() for room in rooms}
    for length in range(len(parts) - 1, 0, -1):
        if (room := "/".join(parts[:length])) in known:
            return room
    return "/".join(parts[:-1])


def find_uses() -> dict[tuple[str, str], list[str]]:
    """By (room, room that it uses): the lines of sources that say so, as "file includes header"."""
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "lib", "include", "tools"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    uses: dict[tuple[str, str], list[str]] = {}
    for name in names:
        path = pathlib.PurePosixPath(name)
        if path.suffix not in (".h", ".cpp") or not (ROOT / path).exists():
            continue
        user = room_of(path)
        for header in INCLUDE.findall((ROOT / path).read_text()):
            if header.startswith("fsdp/"):
                used = room_of(pathlib.PurePosixPath("include") / header)
            elif header.startswith("."):
                used = room_of(pathlib.PurePosixPath(*(ROOT / path.parent / header).resolve().relative_to(ROOT).parts))
            else:
                continue
            if user and used and user != used and used != "Schema":
                uses.setdefault((user, used), []).append(f"{name} includes {header}")
    return uses


def find_faults(uses: dict[tuple[str, str], list[str]]) -> list[str]:
    """What goes upwards, and rooms that nobody has listed or that are no more."""
    order = {room: place for place, room in enumerate(room for rooms in ROOMS.values() for room in rooms)}
    faults = []
    for room in sorted({room for edge in uses for room in edge} - set(order)):
        faults.append(f"{room}: a room that scripts/draw_rooms.py does not list")
    for room in order:
        if not (ROOT / (room if room.startswith("tools") else f"lib/{room}")).is_dir():
            faults.append(f"{room}: scripts/draw_rooms.py lists a room that does not exist")
    for (user, used), lines in sorted(uses.items()):
        if user in order and used in order and order[used] < order[user] and (user, used) not in EXCEPTIONS:
            faults += [f"{line}: {user} stands below {used}" for line in lines]
    for edge in EXCEPTIONS:
        if edge not in uses:
            faults.append(f"{edge[0]} does not use {edge[1]}: an exception that nothing needs")
    return faults


def draw(uses: dict[tuple[str, str], list[str]]) -> str:
    """Mermaid's text of the picture. Arrows that follow from others are left out."""
    graph = networkx.DiGraph([edge for edge in sorted(uses) if edge not in EXCEPTIONS])
    names = {room: f"r{place}" for place, room in enumerate(room for rooms in ROOMS.values() for room in rooms)}
    lines = ["```mermaid", "flowchart TD"]
    for group, rooms in ROOMS.items():
        lines.append(f"  subgraph {group}")
        lines += [f'    {names[room]}["{room.removeprefix("tools/")}"]' for room in rooms]
        lines.append("  end")
    for user, used in sorted(networkx.transitive_reduction(graph).edges, key=lambda edge: [int(names[room][1:]) for room in edge]):
        lines.append(f"  {names[user]} --> {names[used]}")
    for (user, used), _ in EXCEPTIONS.items():
        lines.append(f"  {names[user]} -.-> {names[used]}")
    lines.append("```\n")
    if EXCEPTIONS:
        lines += ["Dashed, the exceptions:\n"]
        lines += [f"* `{user}` uses `{used}`: {reason}" for (user, used), reason in EXCEPTIONS.items()]
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    uses = find_uses()
    if faults := find_faults(uses):
        print(*faults, sep="\n", file=sys.stderr)
        return 1
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(before + BEGIN + draw(uses) + END + rest.split(END)[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
