"""Prints a plan's launches in order, on one line per phase: G(unit) a gather, R(unit) a reduction, F and B computation; [ ] is one call.

usage: launches.py < plan.mlir
"""

import re
import sys

phases, group = {"forward": [], "backward": []}, None
for line in sys.stdin:
    found = re.search(r"plan\.(all_gather|reduce_scatter) .* of @(\S+)(?: group (\d+))? <(\w+)>", line)
    matrix = re.search(r'plan\.launch "(?:add)?mm.*<(forward|backward)>', line)
    if group is not None and (found and found[3] != group or matrix):
        phases[phase][-1] += "]"
        group = None
    if found:
        kind, unit, number, phase = found.groups()
        phases[phase].append(("[" if number and number != group else "") + f"{'G' if kind == 'all_gather' else 'R'}({unit})")
        group = number
    elif matrix:
        event = matrix[1][0].upper()
        phase = matrix[1]
        if phases[phase][-1:] != [event]:
            phases[phase].append(event)
if group is not None:
    phases[phase][-1] += "]"
for phase, events in phases.items():
    print(f"{phase}:", *events)
