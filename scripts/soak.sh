#!/usr/bin/env bash
# Two hours of a training whose processes are killed once a minute: see scripts/demo_restart.sh.
#
#   scripts/soak.sh [STEPS [KILLS]]     default 40000 steps and 120 kills; needs a build
exec "$(dirname "$0")/demo_restart.sh" "${1:-40000}" "${2:-120}" 60
