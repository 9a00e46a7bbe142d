#!/bin/bash
# Boots the guest of build.sh in the foreground; its console is our standard output.
#
#   run.sh GUEST SHARE [TAP MTU ADDRESS/LENGTH...]
#
# GUEST is the folder that build.sh filled. SHARE is /host inside: a script written there as
# NAME.job runs, NAME.out and NAME.code appear, and a file named stop switches the machine off.
# With TAP the guest has an eth0 with these addresses and an rxe0 on it.
set -euo pipefail

guest=$1 share=$2 tap=${3:-} mtu=${4:-1500}
shift $(($# < 4 ? $# : 4))
arguments="console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off guest_mtu=$mtu"
network=()
if [ -n "$tap" ]; then
  arguments+=" guest_address=\"$*\""
  network=(-netdev "tap,id=n0,ifname=$tap,script=no,downscript=no,vhost=off"
    -device "virtio-net-pci,netdev=n0,mac=52:54:00:77:00:02,romfile=")
fi
share() { echo "local,path=$1,mount_tag=$2,security_model=none,multidevs=remap${3:-}"; }

# TCG, not KVM: it works on every host, nested and in containers, and always the same way.
exec qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 1024 -nodefaults -no-user-config \
  -display none -no-reboot -serial stdio -kernel "$guest/vmlinuz" -initrd "$guest/initrd.cpio" \
  -append "$arguments" -virtfs "$(share "$guest/root" root ,readonly=on)" \
  -virtfs "$(share "$share" host)" "${network[@]}" < /dev/null
