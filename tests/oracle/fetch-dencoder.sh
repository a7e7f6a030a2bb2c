#!/bin/sh
# Fetches a ceph-dencoder that knows Ceph's types, for the tests in crates/wire/types.
#
# Usage: fetch-dencoder.sh [DIR]      (default: target/oracle in this checkout)
#
# Since 16.2 ceph-dencoder loads its types from plugins, and Debian's packages of 16.2, 18.2 and 20.2
# contain none: their program ends at once. The last one that is whole is 14.2 of Debian 11. It and
# the libraries it needs are unpacked into DIR, beside the system and without installing anything,
# and DIR/ceph-dencoder starts it. The system's own package state is not touched.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
dir=${1:-$here/../../target/oracle}
# The mirror that this machine already uses.
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' | grep -v security | head -n 1)}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
if [ -x "$dir/ceph-dencoder" ] && "$dir/ceph-dencoder" version >/dev/null 2>&1; then
    echo "$dir/ceph-dencoder"
    exit 0
fi

apt=$dir/apt
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
: > "$apt/status"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keyring] $mirror bullseye main" > "$apt/sources.list"
cat > "$apt/apt.conf" <<CONF
Dir::State::Lists "$apt/lists";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
Dir::Etc::SourceList "$apt/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Parts "/dev/null";
APT::Architecture "amd64";
APT::Sandbox::User "root";
CONF
APT_CONFIG=$apt/apt.conf
export APT_CONFIG
apt-get -q update >&2
apt-get -q install -y --no-install-recommends --download-only ceph-base >&2
for deb in "$apt"/cache/archives/*.deb; do
    dpkg-deb -x "$deb" "$dir/root"
done
rm -rf "$apt"

lib=$dir/root/usr/lib/x86_64-linux-gnu:$dir/root/lib/x86_64-linux-gnu:$dir/root/usr/lib/x86_64-linux-gnu/ceph
# The old program runs with its own loader and C library.
cat > "$dir/ceph-dencoder" <<RUN
#!/bin/sh
exec "$dir/root/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2" --library-path "$lib" "$dir/root/usr/bin/ceph-dencoder" "\$@"
RUN
chmod +x "$dir/ceph-dencoder"
"$dir/ceph-dencoder" version >/dev/null
echo "$dir/ceph-dencoder"
