#!/usr/bin/env bash
# usage: build.sh FOLDER; the site begins at FOLDER/index.html.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
root=$(cd "$here/../.." && pwd -P)
folder=$(realpath -m -- "$1")
# Only a folder with this file in it is made anew: doxygen.css is in the output of every Doxygen.
marker=.weft-docs
if [[ -e $folder && ! -e $folder/$marker && (! -d $folder || -n $(ls -A "$folder")) ]]; then
  echo "docs: $1 is not empty, and has no $marker, which ./weft docs leaves in what it makes since 0.2; remove it yourself, or name another folder" >&2
  exit 1
fi
tree=$(mktemp -d)
# The site is built beside its place: if that fails, the one from before stays.
new=$folder.$$.new old=$folder.$$.old
trap 'rm -rf "$tree" "$new"' EXIT
mkdir -p "$new"
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
export WEFT_TREE=$tree WEFT_INPUT=$input WEFT_PAGES="${pages[*]}" WEFT_OUT=$new
WEFT_VERSION=$(sed -n 's/.*kVersion = "\(.*\)";/\1/p' "$root/core/base/version.h")
export WEFT_VERSION WEFT_THEME=/usr/share/doxygen-awesome-css/doxygen-awesome.css
doxygen "$here/Doxyfile"
touch "$new/$marker"
[[ ! -e $folder ]] || mv -T "$folder" "$old"
mv -T "$new" "$folder"
rm -rf "$old"
