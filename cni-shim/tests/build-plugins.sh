#!/bin/sh
# Builds the CNI plugins that the tests use into <target dir>/cni-bin, from the newest release of their Go module.
set -eu
target=$1
mkdir -p "$target/cni-go" "$target/cni-bin"
cd "$target/cni-go"
export GOFLAGS=-mod=mod GOPATH="$target/go" GOCACHE="$target/gocache"
[ -f go.mod ] || go mod init plugins.test
go get github.com/containernetworking/plugins@latest
for plugin in main/bridge main/loopback main/ptp ipam/host-local meta/portmap meta/firewall meta/bandwidth; do
    go build -o "$target/cni-bin/" "github.com/containernetworking/plugins/plugins/$plugin"
done
