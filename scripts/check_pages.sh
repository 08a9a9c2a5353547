#!/bin/bash
# Says how many commits of the code each page of results is older than: the page names the commit that it was made on.
set -euo pipefail
cd "$(dirname "$0")/.."
report() { # PAGE PATH...
  local page=$1 commit
  shift
  commit=$(sed -n 's/^Made on commit `\([0-9a-f]*\)`\.$/\1/p' "$page")
  if ! git cat-file -e "${commit:-none}^{commit}" 2>/dev/null; then
    echo "$page: made on an unknown commit"
  elif newer=$(git rev-list --count "$commit..HEAD" -- "$@") && [ "$newer" != 0 ]; then
    echo "$page: $newer commits older than what it speaks of"
  fi
}
report docs/internals/mutation.md include lib schema test/Mutation
report docs/internals/soundness.md include lib schema test/Mutation
report docs/models.md include lib schema python-bindings test/Zoo
