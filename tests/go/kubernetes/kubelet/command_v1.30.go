//go:build v1.30

package main

import (
	"github.com/spf13/cobra"
	"k8s.io/kubernetes/cmd/kubelet/app"
)

func command() *cobra.Command {
	return app.NewKubeletCommand()
}
