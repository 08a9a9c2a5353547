#!/usr/bin/env bash
# Two hours of a training, a process of which is killed once a minute, and as many steps undisturbed after
# that, which take about as long: see scripts/demo_restart.sh.
#
#   scripts/soak.sh [KILLS]     default 120; needs a build
exec "$(dirname "$0")/demo_restart.sh" "${1:-120}" 60
