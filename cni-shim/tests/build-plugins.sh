#!/bin/sh
# Builds the CNI plugins that the tests use into <target dir>/cni-bin: pinned, from their Go module.
set -eu
target=$1
mkdir -p "$target/cni-bin"
export GOFLAGS=-mod=mod GOPATH="$target/go" GOCACHE="$target/gocache" GOBIN="$target/cni-bin" CGO_ENABLED=0
plugins=v1.9.1 # as in hack/peers
set --
for plugin in main/bridge main/loopback main/ptp ipam/host-local meta/portmap meta/firewall meta/bandwidth; do
    set -- "$@" "github.com/containernetworking/plugins/plugins/$plugin@$plugins"
done
go install "$@"
