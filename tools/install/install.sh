#!/usr/bin/env bash
# usage: install.sh LIBWEFT PREFIX
set -euo pipefail
library=$1 prefix=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
root=$(cd "$here/../.." && pwd -P)
version=$(sed -n 's/.*kVersion = "\(.*\)";/\1/p' "$root/core/version.h")

# Public are weft.h and whatever it includes: ask the compiler, through a folder in which the tree is
# called weft.
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
ln -s "$root" "$tree/weft"
headers=$(g++ -std=c++20 -MM -I "$tree" "$tree/weft/weft.h" | tr ' \\' '\n\n' | sed -n "s|^$tree/weft/||p" | sort -u)
rm -rf "$prefix/include/weft"  # a header dropped since the last time must not linger
for header in $headers; do
  install -D -m 644 "$root/$header" "$prefix/include/weft/$header"
done

# A running program keeps the library it has mapped: never write into that file.
install -D -m 755 "$library" "$prefix/lib/libweft.so.new"
mv -f "$prefix/lib/libweft.so.new" "$prefix/lib/libweft.so"
install -D -m 644 "$here/weftConfig.cmake" "$prefix/lib/cmake/weft/weftConfig.cmake"
install -d "$prefix/lib/pkgconfig"
sed "s/@VERSION@/$version/" "$here/weftConfigVersion.cmake.in" >"$prefix/lib/cmake/weft/weftConfigVersion.cmake"
sed "s/@VERSION@/$version/" "$here/weft.pc.in" >"$prefix/lib/pkgconfig/weft.pc"
