#!/usr/bin/env bash
# usage: install.sh PREFIX WEFTRUN LIBRARY...
set -euo pipefail
prefix=$1 weftrun=$2 libraries=("${@:3}")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
root=$(cd "$here/../.." && pwd -P)
version=$(sed -n 's/.*kVersion = "\(.*\)";/\1/p' "$root/core/base/version.h")

rm -rf "$prefix/include/weft"  # a header dropped since the last time must not linger
for header in $("$root/tools/public_headers") weft_c.h; do
  install -D -m 644 "$root/$header" "$prefix/include/weft/$header"
done

for library in "${libraries[@]}"; do
  name=$(basename "$library")
  soname=$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
  [[ $soname == "$name.${version%.*}" ]] ||
    { echo "install: the library is $soname, weft is $version: //BUILD and core/base/version.h disagree" >&2; exit 1; }
  # Running programs have the old library mapped, so never write into that file.
  install -D -m 755 "$library" "$prefix/lib/$name.new"
  mv -f "$prefix/lib/$name.new" "$prefix/lib/$name.$version"
  ln -sfn "$name.$version" "$prefix/lib/$soname"
  ln -sfn "$soname" "$prefix/lib/$name"
done
# A CUDA library of an earlier installation would belong to another version of weft.
[[ " ${libraries[*]} " == *libweft_cuda.so* ]] || rm -f "$prefix"/lib/libweft_cuda.so*
install -D -m 755 "$weftrun" "$prefix/bin/weftrun"
install -D -m 644 "$root/LICENSE" "$prefix/share/doc/weft/LICENSE"
install -D -m 644 "$here/weftConfig.cmake" "$prefix/lib/cmake/weft/weftConfig.cmake"
install -d "$prefix/lib/pkgconfig"
sed "s/@VERSION@/$version/" "$here/weftConfigVersion.cmake.in" >"$prefix/lib/cmake/weft/weftConfigVersion.cmake"
sed "s/@VERSION@/$version/" "$here/weft.pc.in" >"$prefix/lib/pkgconfig/weft.pc"
# For compilers of C, which do not know the flag.
sed 's/-std=c++20 //; s/^Name: weft/&_c/' "$prefix/lib/pkgconfig/weft.pc" >"$prefix/lib/pkgconfig/weft_c.pc"
