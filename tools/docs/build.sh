#!/usr/bin/env bash
# usage: build.sh FOLDER; the site begins at FOLDER/index.html.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
root=$(cd "$here/../.." && pwd -P)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
ln -s "$root" "$tree/weft"
headers="$("$root/tools/public_headers") weft_c.h"
# In the order in which README.md names them, which is the order to learn.
mapfile -t pages < <(cd "$root" && {
  echo README.md
  grep -o '([a-zA-Z_/]*\.md' README.md | cut -c2-
  ls CONTRIBUTING.md CHANGELOG.md docs/*.md */README.md
} | awk '!seen[$0]++')
input=''
for file in "${pages[@]}" $headers; do input+=" $tree/weft/$file"; done
mkdir -p "$1"
if [[ -e $1/doxygen.css ]]; then
  rm -rf "$1"  # pages dropped since the last time must not linger
elif [[ -n $(ls -A "$1") ]]; then
  echo "docs: $1 is not empty, and no earlier ./weft docs has made it" >&2
  exit 1
fi
mkdir -p "$1"
export WEFT_TREE=$tree WEFT_INPUT=$input WEFT_PAGES="${pages[*]}" WEFT_OUT=$1
WEFT_VERSION=$(sed -n 's/.*kVersion = "\(.*\)";/\1/p' "$root/core/base/version.h")
export WEFT_VERSION WEFT_THEME=/usr/share/doxygen-awesome-css/doxygen-awesome.css
doxygen "$here/Doxyfile"
