#!/usr/bin/env bash
# usage: install.sh LIBWEFT PREFIX
set -euo pipefail
library=$1 prefix=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
root=$(cd "$here/../.." && pwd -P)
version=$(sed -n 's/.*kVersion = "\(.*\)";/\1/p' "$root/core/version.h")

soname=$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
[[ $soname == "libweft.so.${version%.*}" ]] ||
  { echo "install: the library is $soname, weft is $version: //:weft and core/version.h disagree" >&2; exit 1; }

rm -rf "$prefix/include/weft"  # a header dropped since the last time must not linger
for header in $("$root/tools/public_headers"); do
  install -D -m 644 "$root/$header" "$prefix/include/weft/$header"
done

# A running program keeps the library it has mapped: never write into that file.
install -D -m 755 "$library" "$prefix/lib/libweft.so.new"
mv -f "$prefix/lib/libweft.so.new" "$prefix/lib/libweft.so.$version"
ln -sfn "libweft.so.$version" "$prefix/lib/$soname"
ln -sfn "$soname" "$prefix/lib/libweft.so"
install -D -m 644 "$root/LICENSE" "$prefix/share/doc/weft/LICENSE"
install -D -m 644 "$here/weftConfig.cmake" "$prefix/lib/cmake/weft/weftConfig.cmake"
install -d "$prefix/lib/pkgconfig"
sed "s/@VERSION@/$version/" "$here/weftConfigVersion.cmake.in" >"$prefix/lib/cmake/weft/weftConfigVersion.cmake"
sed "s/@VERSION@/$version/" "$here/weft.pc.in" >"$prefix/lib/pkgconfig/weft.pc"
