#!/usr/bin/env bash
# Three of containerd's red cells without nri-contract: by crictl and a Go plugin (tests/go/nri-logger, which prints what
# it is told, and answers the event of -refuse with an error).
#
#   hack/contract containerd --run nri/contract/known/containerd.sh
#
# Elsewhere: CRI, NRI and IMAGE name the two sockets and an image that is there, RESTART kills the runtime without
# warning and starts it again; crictl and nri-logger are on the PATH. Exit code 0 if all three show.
set -euo pipefail
dir=$(mktemp -d)
plugins=()
ended() { [ ${#plugins[@]} = 0 ] || kill "${plugins[@]}" 2>/dev/null || true; plugins=(); }
trap 'ended; rm -r "$dir"' EXIT
cri() { crictl --config /dev/null -r "$CRI" "$@" 2>>"$dir/crictl.log"; }
# plugin INDEX NAME [-refuse EVENT]: connected and synchronised; what it is told is in $dir/NAME.
plugin() {
	nri-logger -idx "$1" -name "$2" -socket "$NRI" "${@:3}" >"$dir/$2" 2>"$dir/$2.log" &
	plugins+=($!)
	for _ in $(seq 200); do ! grep -q synchronised "$dir/$2.log" || return 0; sleep 0.05; done
	echo "plugin $2 is not synchronised" >&2
	exit 2
}
pod() { echo '{"metadata":{"name":"'$1'","namespace":"steps","uid":"'$1'"},"log_directory":"'$dir'"}' >"$dir/$1.json"; cri runp "$dir/$1.json"; }
missing=0
# shows POINT FILE EVENT: the plugin should have been told of it, and was not.
shows() {
	printf '\n%s\n  %s was told:\n' "$1" "$2"
	sed 's/^/    /' "$dir/$2"
	if grep -q "^$3" "$dir/$2"; then echo "  $3 is there: it holds now"; else echo "  $3 is missing"; missing=$((missing + 1)); fi
}

plugin 10 first -refuse StopPodSandbox
plugin 20 second
id=$(pod one)
cri stopp "$id" >/dev/null || true
cri rmp "$id" >/dev/null || true
shows "C-02.8/error: the first of two plugins answers StopPodSandbox with an error" second StopPodSandbox
ended

plugin 10 third
id=$(pod two)
echo '{"metadata":{"name":"c"},"image":{"image":"'$IMAGE'"},"command":["/no/such/program"],"log_path":"c.log"}' >"$dir/c.json"
container=$(cri create "$id" "$dir/c.json" "$dir/two.json")
cri start "$container" >/dev/null || true
shows "C-06.3/a-failed-start: crictl start of a program that is not there" third StopContainer
cri rmp -f "$id" >/dev/null
ended

id=$(pod three)
"$RESTART"
for _ in $(seq 200); do ! cri pods -q >/dev/null || break; sleep 0.05; done
plugin 10 fourth
cri stopp "$id" >/dev/null
cri rmp "$id" >/dev/null
shows "C-02.7/an-older-pod: kill -9 and start, then crictl stopp, crictl rmp" fourth StopPodSandbox

printf '\n%s of 3 show\n' "$missing"
[ $missing = 3 ]
