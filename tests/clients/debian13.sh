#!/bin/sh
# Unpacks Debian 13's Ceph clients and gateway (18.2) with all they need into DIR, for the tests in
# tests/clients. Further packages are unpacked too.
#
# Usage: debian13.sh DIR [PACKAGE ...]      then: SIPHON_TEST_CHROOT=DIR python3 -m pytest tests/clients
#
# A DIR that has all of them, and the PACKAGEs, stays as it is.
#
# Packages are unpacked, not installed: no maintainer script runs, so neither mounts nor user
# namespaces are needed, only root for chroot. DIR's own absolute path exists inside DIR too, as a
# link to its root: a file below DIR has one name, inside and outside of the chroot.
set -eu

dir=${1:?usage: debian13.sh DIR [PACKAGE ...]}
shift
# The mirror that this machine already uses.
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' | grep -v security | head -n 1)}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd -P)
packages="ceph-common ceph-base radosgw python3-rados python3-rbd python3-cephfs ceph-fuse python3-pytest fio
    coreutils bash dash libc-bin diffutils git mount tar $*"
unpacked=$dir/var/siphon-packages
missing=
for package in $packages; do
    grep -qx "$package" "$unpacked" 2>/dev/null || missing="$missing $package"
done
if [ -z "$missing" ] && chroot "$dir" ceph --version >/dev/null 2>&1; then
    echo "$dir"
    exit 0
fi

apt=$dir/var/siphon-apt
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
: > "$apt/status"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
trixie=/usr/share/keyrings/debian-archive-trixie-automatic.gpg
[ -e $trixie ] && keyring=$keyring,$trixie
echo "deb [signed-by=$keyring] $mirror trixie main" > "$apt/sources.list"
cat > "$apt/apt.conf" <<CONF
Dir::State::Lists "$apt/lists";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
Dir::Etc::SourceList "$apt/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Parts "/dev/null";
APT::Architecture "amd64";
APT::Sandbox::User "root";
Acquire::Languages "none";
CONF
APT_CONFIG=$apt/apt.conf
export APT_CONFIG
apt-get -q update >&2
apt-get -q install -y --no-install-recommends --download-only \
    $packages >&2

# Debian 13 is a merged /usr: the links must be there before a package puts files below them.
mkdir -p "$dir/usr/bin" "$dir/usr/sbin" "$dir/usr/lib" "$dir/usr/lib64"
for name in bin sbin lib lib64; do
    [ -e "$dir/$name" ] || ln -s "usr/$name" "$dir/$name"
done
for deb in "$apt"/cache/archives/*.deb; do
    dpkg-deb -x "$deb" "$dir"
done
rm -rf "$apt"

mkdir -p "$dir/tmp" "$dir/dev" "$dir/proc" "$dir/etc"
chmod 1777 "$dir/tmp"
[ -e "$dir/dev/null" ] || mknod -m 666 "$dir/dev/null" c 1 3
[ -e "$dir/dev/urandom" ] || mknod -m 666 "$dir/dev/urandom" c 1 9
[ -e "$dir/dev/random" ] || mknod -m 666 "$dir/dev/random" c 1 8
ln -sfn /proc/self/fd "$dir/dev/fd"
cp /etc/passwd /etc/group "$dir/etc/"
printf '127.0.0.1 localhost\n' > "$dir/etc/hosts"
[ -e "$dir/bin/sh" ] || ln -s dash "$dir/bin/sh"
mkdir -p "$dir$(dirname "$dir")"
[ -e "$dir$dir" ] || ln -s / "$dir$dir"
ldconfig -r "$dir"
# Byte code is made by the packages' scripts otherwise; without it each start of `ceph` is slow.
chroot "$dir" python3 -m compileall -q /usr/lib/python3 /usr/lib/python3.13 >/dev/null 2>&1 || true
chroot "$dir" ceph --version >&2
printf '%s\n' $packages >> "$unpacked"
echo "$dir"
