#!/usr/bin/env bash
# cni-shim/tests/containerd.sh: containerd gives its pods their network by cairn-bridge. Needs root, and what
# hack/contract needs. Ends with "containerd: ok".
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
say() { printf 'containerd: %s\n' "$*"; }
die() {
	say "$@" >&2
	exit 1
}

if [ "${1:-}" != --inside ]; then
	scratch=$(mktemp -d "${TMPDIR:-/tmp}/cairn-bridge-XXXXXX")
	trap 'rm -rf "$scratch"' EXIT
	cat >"$scratch/bridge.conflist" <<-J
		{"cniVersion": "1.1.0", "name": "net", "plugins": [
		 {"type": "cairn-bridge", "dataDir": "$scratch/data", "subnets": ["10.91.0.0/24", "fd91::/64"],
		  "capabilities": {"portMappings": true, "bandwidth": true}}]}
	J
	CNI_CONFLIST=$scratch/bridge.conflist SCRATCH=$scratch "$here/../../hack/contract" containerd --run "$0" --inside
	exit
fi

# ---- inside the namespaces of the run, beside containerd
cri() { crictl --config /dev/null -r "$CRI" -i "$CRI" -t 60s "$@"; }
records() { find "$SCRATCH/data/net/attachments" -name '*.json' | wc -l; }
until_ok() {
	for _ in $(seq 100); do
		! "$@" || return 0
		sleep 0.1
	done
	die "never: $*"
}
pod() {
	cat >"$SCRATCH/$1.json" <<-J
		{"metadata": {"name": "$1", "namespace": "default", "uid": "uid-$1", "attempt": 0},
		 "annotations": {"kubernetes.io/ingress-bandwidth": "80M", "kubernetes.io/egress-bandwidth": "80M"},
		 "port_mappings": [{"protocol": 0, "container_port": 80, "host_port": $2, "host_ip": ""}],
		 "linux": {}}
	J
	cri runp "$SCRATCH/$1.json"
}
sysctl -qw net.bridge.bridge-nf-call-ip6tables=0 || true
busybox=$(command -v busybox)

cri info | grep -A1 '"NetworkReady"' | grep -q '"type": "NetworkReady"\|"status": true' || die "not ready: $(cri info)"
web=$(pod web 8080)
cat >"$SCRATCH/container.json" <<-J
	{"metadata": {"name": "c", "attempt": 0}, "image": {"image": "$IMAGE"}, "linux": {},
	 "command": ["sh", "-c", "while :; do echo hello | nc -l -p 80; done"]}
J
cri start "$(cri create "$web" "$SCRATCH/container.json" "$SCRATCH/web.json")" >/dev/null
status=$(cri inspectp "$web")
grep -q '"ip": "10.91.0.2"' <<<"$status" || die "another address: $status"
grep -q '"ip": "fd91::2"' <<<"$status" || die "no IPv6 address: $status"
answers() { [ "$("$busybox" nc -w 2 "$1" "$2" 2>/dev/null </dev/null)" = hello ]; }
for at in "10.91.0.2 80" "fd91::2 80" "127.0.0.1 8080" "::1 8080"; do
	# shellcheck disable=SC2086
	until_ok answers $at
done
say "the pod answers at its addresses, and at 127.0.0.1 and ::1 by its host port"
tc qdisc | grep -q tbf || die "no limit: $(tc qdisc)"
ip -br link | grep -q '^ifb' || die "no ifb device: $(ip -br link)"
say "its bandwidth is limited"

text=$(pod rival 8080 2>&1) && die "a host port was given twice"
grep -q 'host port 8080/tcp is taken by another sandbox' <<<"$text" || die "another reason: $text"
[ "$(records)" = 1 ] || die "the pod that failed has left a record"
other=$(pod other 8081)
[ "$(records)" = 2 ] || die "records: $(records)"
"$RESTART"
until_ok cri pods -q >/dev/null
until_ok answers 127.0.0.1 8080
say "a restart of containerd changes nothing"
cri stopp "$web" "$other" >/dev/null
cri rmp "$web" "$other" >/dev/null
[ "$(records)" = 0 ] || die "a record was left"
! ip -br link | grep -q '^\(veth\|ifb\)' || die "a link was left: $(ip -br link)"
! nft list ruleset | grep -q '10\.91\.0\.[2-9]' || die "a rule was left: $(nft list ruleset)"
say "nothing is left of pods that went"
say ok
