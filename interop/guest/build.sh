#!/bin/bash
# Makes the guest that cargo xtask interop boots: Debian's own kernel with rdma_rxe and siw, and
# Debian's own verbs programs. Nothing is installed on this machine: packages are downloaded with a
# private apt state and unpacked. Debian leaves siw out of its kernels, so it is compiled here from
# Debian's source of the same version.
#
#   build.sh FOLDER     fills FOLDER with vmlinuz, initrd.cpio and root/, the guest's file system
#
# Needs apt, dpkg, cpio, gcc-12, kmod, make and xz-utils. No root.
# A finished FOLDER is left alone until this script changes; remove it to get newer packages.
set -euo pipefail

out=$(mkdir -p "$1" && cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
stamp=$(cat "$here/build.sh" "$here/init" | sha256sum | cut -d' ' -f1)
if [ -e "$out/stamp" ] && [ "$(cat "$out/stamp")" = "$stamp" ]; then
  echo "guest: $out is up to date"
  exit 0
fi
rm -f "$out/stamp"

packages=(bash busybox-static coreutils ethtool grep ibverbs-providers ibverbs-utils iproute2 kmod perftest
  rdma-core rdmacm-utils sed tcpdump)
# What the first file system needs to reach root/ over 9p, and what is loaded from there.
early_modules=(virtio_pci 9pnet_virtio 9p)
modules=(virtio_net ib_uverbs rdma_ucm rdma_rxe crc32_generic crc32-pclmul veth af_packet sch_netem
  libcrc32c crc32c_generic)
# siw has constants where other drivers have parameters: each variant has one of them changed.
siw_variants=('crc mpa_crc_required = true' 'v1 mpa_version = MPA_REVISION_1'
  'p2p peer_to_peer = true' 'gso try_gso = true' 'plain')

# A private apt: this machine's mirror and keyring, our own lists and cache.
# shellcheck disable=SC2016 # apt expands these, not the shell
mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' |
  awk '$2 == "bookworm" { print $1; exit }')
mirror=${mirror:-http://deb.debian.org/debian/}
mkdir -p "$out"/apt/{lists,archives}/partial
: > "$out/apt/status"
use_suites() { # the package lists of these suites, the first one preferred
  local suite
  for suite in "$@"; do
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main"
  done > "$out/apt/sources.list"
  preferred=$1
  private_apt get update
}
private_apt() { # private_apt get|cache ARGUMENT...
  "apt-$1" -qq -o Dir::Etc::SourceList="$out/apt/sources.list" \
    -o Dir::Etc::SourceParts=/dev/null -o Dir::State="$out/apt" \
    -o Dir::State::status="$out/apt/status" -o Dir::Cache="$out/apt" \
    -o APT::Sandbox::User=root -o APT::Default-Release="$preferred" -o APT::Update::Error-Mode=any \
    -o Acquire::Retries=3 -o Debug::NoLocking=1 "${@:2}"
}
unpack() { # unpack FOLDER PACKAGE...: without their scripts
  local package to=$1
  shift
  (cd "$out/debs" && rm -f ./*.deb && private_apt get download "$@")
  for package in "$out"/debs/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$to"
    dpkg-deb --show "$package" >> "$out/versions"
  done
  rm -f "$out"/debs/*.deb
}
dependency() { # dependency PACKAGE PATTERN: the first one of its dependencies that matches
  private_apt cache depends "$1" | awk -v pattern="$2" '/Depends:/ && $2 ~ pattern { print $2; exit }'
}

rm -rf "$out/root" "$out/early" "$out/siw" "$out/versions"
mkdir -p "$out"/debs "$out"/root/{dev,host,proc,run,sys,tmp} "$out"/root/usr/{bin,lib,lib64,sbin}
for folder in bin lib lib64 sbin; do ln -s "usr/$folder" "$out/root/$folder"; done

echo "guest: package lists"
use_suites bookworm-backports bookworm bookworm-updates 2> "$out/apt/errors" || {
  echo "guest: no backports, taking the kernel of bookworm ($(tail -n 1 "$out/apt/errors"))"
  use_suites bookworm bookworm-updates
}
image=$(dependency linux-image-amd64 '^linux-image')
release=${image#linux-image-}
echo "guest: kernel $release"
unpack "$out/root" "$image"
echo "guest: user space"
mapfile -t closure < <(
  private_apt get install --yes --no-install-recommends --print-uris "${packages[@]}" |
    awk '{ sub(/_.*/, "", $2); print $2 }'
)
unpack "$out/root" "${closure[@]}"

# What the packages' own scripts would have done.
echo 'root:x:0:0::/root:/bin/bash' > "$out/root/etc/passwd"
echo 'root:x:0:' > "$out/root/etc/group"
printf '127.0.0.1 localhost\n::1 localhost\n' > "$out/root/etc/hosts"
install -m 755 "$here/init" "$out/root/init"

# Of the kernel's modules keep those that are needed, uncompressed: loading is then quick.
with_dependencies() { # with_dependencies MODULE...: their files, in the order of loading
  local module
  for module in "$@"; do
    modprobe -d "$out/root" -S "$release" --show-depends "$module" |
      awk '$1 == "insmod" { print $2 }'
  done | awk '!seen[$0]++'
}
depmod -b "$out/root" "$release"
mapfile -t early < <(with_dependencies "${early_modules[@]}")
mapfile -t keep < <(with_dependencies "${modules[@]}")
mkdir -p "$out"/early/{bin,modules,root} "$out/keep"
number=10
for file in "${early[@]}"; do cp "$file" "$out/early/modules/$((number++))-${file##*/}"; done
cp "${early[@]}" "${keep[@]}" "$out/keep/"
find "$out/early/modules" "$out/keep" -name '*.xz' -exec xz -d {} +
rm -rf "$out/root/lib/modules/$release/kernel"
mv "$out/keep" "$out/root/lib/modules/$release/kernel"
depmod -b "$out/root" "$release"

echo "guest: siw"
headers=linux-headers-$release
source=linux-source-$(cut -d. -f1,2 <<< "$release")
mkdir -p "$out/siw" "$out/root/lib/siw"
unpack "$out/siw" "$headers" "$(dependency "$headers" '^linux-headers')" \
  "$(dependency "$headers" '^linux-kbuild')" "$source"
(
  cd "$out/siw"
  # the headers name the place where the packages would be installed
  sed -i "s#/usr/src#$PWD/usr/src#" "usr/src/$headers/Makefile"
  rm -f "usr/src/$headers/vmlinux" # only for BTF, which wants another program
  tar -xJf usr/src/linux-source-*.tar.xz --strip-components=5 --wildcards \
    '*/drivers/infiniband/sw/siw/*'
  cp siw_main.c unchanged.c
  for variant in "${siw_variants[@]}"; do
    read -r name constant value <<< "$variant"
    sed -E "s/^(const bool|u_char) ${constant:-none}\>.*/\1 $constant $value;/" unchanged.c > siw_main.c
    [ "$name" = plain ] || ! cmp -s unchanged.c siw_main.c || { echo "siw has no $constant"; exit 1; }
    make -C "usr/src/$headers" M="$PWD" CONFIG_RDMA_SIW=m CC=gcc-12 modules > log 2>&1 || {
      tail -n 30 log
      exit 1
    }
    strip --strip-debug -o "$out/root/lib/siw/$name.ko" siw.ko
  done
)

# The first file system: busybox, the modules for 9p, and the same init.
cp "$out/root/bin/busybox" "$out/early/bin/"
cp "$here/init" "$out/early/init"
cp "$out/root/boot/vmlinuz-$release" "$out/vmlinuz"
(cd "$out/early" && find . | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0) > "$out/initrd.cpio"
rm -rf "$out/early" "$out/siw" "$out/debs" "$out/apt" "$out"/root/usr/share/{doc,man,locale}
echo "$stamp" > "$out/stamp"
echo "guest: ready, $(du -sh "$out" | cut -f1)"
