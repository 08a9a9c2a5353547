"""Damages a legal schedule in every way of a few kinds; the verifiers must object to each.

usage: mutate.py SCHEDULE.mlir FSDP_OPT
"""

import re
import subprocess
import sys

VERIFIERS = ["--fsdp-verify-scheduled", "--fsdp-verify-futures"]
LAUNCH = re.compile(r"(\s*%\S+ = fsdp\.async\.unshard @)(\S+)( <)(\w+)(> )(%\S+)(.*)")
WAIT = re.compile(r"(\s*)(%\S+)( = fsdp\.async\.wait )(%\S+)( : .*)")


def mutants(lines):
    """Pairs of what was done and the damaged program."""
    body = range(next(i for i, l in enumerate(lines) if "@step(" in l) + 1,
                 next(i for i, l in enumerate(lines) if l.strip().startswith("return")))
    asynchronous = [i for i in body if "fsdp.async." in lines[i]]
    for i in asynchronous:
        yield f"delete line {i + 1}", lines[:i] + lines[i + 1:]
        copy = re.sub(r"^(\s*)%\S+ =", r"\1%copy =", lines[i])
        yield f"duplicate line {i + 1}", lines[:i + 1] + [copy] + lines[i + 1:]

    # End each gathered unit where it has just arrived.
    for i in asynchronous:
        if "async.reshard" in lines[i]:
            full = re.search(r"reshard (%\S+)", lines[i]).group(1)
            wait = next(j for j in asynchronous if lines[j].strip().startswith(full + " ="))
            rest = lines[:i] + lines[i + 1:]
            yield f"move the reshard of line {i + 1} up", rest[:wait + 1] + [lines[i]] + rest[wait + 1:]

    launches = {i: LAUNCH.match(lines[i]) for i in asynchronous if LAUNCH.match(lines[i])}
    for i, match in launches.items():
        part = list(match.groups())
        part[3] = {"forward": "backward", "backward": "forward"}[part[3]]
        if part[1] != "root":  # which serves both
            yield f"gather line {i + 1} in the other phase", lines[:i] + ["".join(part)] + lines[i + 1:]
        for j, other in launches.items():
            if i < j and match.group(2) != other.group(2):
                damaged = list(lines)
                for k, mine, yours in ((i, match, other), (j, other, match)):
                    damaged[k] = "".join(mine.group(1, 2, 3, 4, 5)) + yours.group(6) + mine.group(7)
                yield f"swap the shards of lines {i + 1} and {j + 1}", damaged

    # Wait for another gather than the one that is viewed.
    waits = {i: WAIT.match(lines[i]) for i in asynchronous
             if WAIT.match(lines[i]) and "gathered" in lines[i]}
    unit = {m.group().split(" = ")[0].strip(): m.group(2) for m in launches.values()}
    for i, mine in waits.items():
        for j, yours in waits.items():
            if i < j and unit[mine.group(4)] != unit[yours.group(4)]:
                damaged = list(lines)
                damaged[i] = "".join(mine.group(1, 2, 3)) + yours.group(4) + mine.group(5)
                damaged[j] = "".join(yours.group(1, 2, 3)) + mine.group(4) + yours.group(5)
                yield f"swap the waits of lines {i + 1} and {j + 1}", damaged


def accepts(tool, text):
    return subprocess.run([*tool, *VERIFIERS, "-o", "/dev/null"], input=text, text=True,
                          stderr=subprocess.DEVNULL).returncode == 0


def main(path, *tool):
    text = open(path).read()
    assert accepts(tool, text), "the schedule itself is refused"
    tried = {name: accepts(tool, "\n".join(lines)) for name, lines in mutants(text.split("\n"))}
    survivors = [name for name, accepted in tried.items() if accepted]
    print(f"{len(tried)} mutants, {len(survivors)} survived", *survivors, sep="\n")
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
