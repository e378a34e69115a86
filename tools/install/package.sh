#!/usr/bin/env bash
# Makes Debian packages of what install.sh has installed.
#
# usage: package.sh PREFIX FOLDER
#
# libweft0.2 has the library, libweft-cuda0.2 the backend of GPUs where there is one, libweft-dev what
# programs are built with, weftrun the launcher. They depend on what their files are linked with.
set -euo pipefail
prefix=$1 folder=$(cd "$2" && pwd -P)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
root=$(cd "$here/../.." && pwd -P)
version=$(sed -n 's/.*kVersion = "\(.*\)";/\1/p' "$root/core/base/version.h")
abi=${version%.*}
architecture=$(dpkg --print-architecture)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# part NAME FILE...: files of the prefix become those of a package, in /usr.
part() {
  local name=$1 file
  shift
  for file in "$@"; do
    mkdir -p "$work/$name/usr/$(dirname "$file")"
    cp -a "$prefix/$file" "$work/$name/usr/$file"
  done
  install -D -m 644 "$root/LICENSE" "$work/$name/usr/share/doc/$name/copyright"
}

# What the package's programs and libraries are linked with, by Debian's names; weft's own is given.
linked_with() {
  local files=()
  mapfile -t files < <(find "$work/$1" -type f \( -name '*.so.*' -o -path '*/bin/*' \))
  mkdir -p "$work/debian"
  echo "Source: weft" >"$work/debian/control"
  # It warns of every library that is no package's, weft's own among them.
  (cd "$work" && dpkg-shlibdeps -O --ignore-missing-info -xlibweft"$abi" -l"$prefix/lib" "${files[@]}" 2>"$work/errors") |
    sed -n 's/^shlibs:Depends=//p' || { cat "$work/errors" >&2; return 1; }
}

# package NAME DEPENDS SUMMARY
package() {
  local name=$1 depends=$2 summary=$3
  mkdir "$work/$name/DEBIAN"
  cat >"$work/$name/DEBIAN/control" <<C
Package: $name
Version: $version
Architecture: $architecture
Maintainer: weft <weft@localhost>
Section: libs
Priority: optional
Installed-Size: $(du -sk "$work/$name/usr" | cut -f1)
Depends: $depends
Description: $summary
 weft is a deep-learning mini-framework in C++20 and CUDA: tensors, an autograd tape, layers, data
 parallel, distributed and pipelined training.
C
  [[ $name != libweft* || $name == *-dev ]] || echo "activate-noawait ldconfig" >"$work/$name/DEBIAN/triggers"
  chmod -R u=rwX,go=rX "$work/$name"
  dpkg-deb --root-owner-group -Zxz -z1 --build "$work/$name" "$folder/${name}_${version}_$architecture.deb" >/dev/null
}

part "libweft$abi" "lib/libweft.so.$version" "lib/libweft.so.$abi"
# Not within the commands, which would go on after an error.
depends=$(linked_with "libweft$abi")
package "libweft$abi" "$depends" "deep-learning mini-framework, the library"
if [[ -e $prefix/lib/libweft_cuda.so.$version ]]; then
  part "libweft-cuda$abi" "lib/libweft_cuda.so.$version" "lib/libweft_cuda.so.$abi" lib/libweft_cuda.so
  depends=$(linked_with "libweft-cuda$abi")
  package "libweft-cuda$abi" "libweft$abi (= $version), $depends" \
    "deep-learning mini-framework, the backend of NVIDIA's GPUs"
fi
part libweft-dev include/weft lib/libweft.so lib/cmake/weft lib/pkgconfig/weft.pc lib/pkgconfig/weft_c.pc
# The loader looks in /usr/lib without being told.
sed -i 's/ -Wl,-rpath,[^ ]*//' "$work"/libweft-dev/usr/lib/pkgconfig/*.pc
package libweft-dev "libweft$abi (= $version)" "deep-learning mini-framework, files to build programs with"
part weftrun bin/weftrun
depends=$(linked_with weftrun)
package weftrun "$depends" "launcher of programs of many ranks"
