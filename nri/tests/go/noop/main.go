// A Go plugin for benchmarks: takes every event and does nothing; says only when it is
// synchronised. Validation is another kind of event, which it takes only if asked to: one more call
// for each container.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
)

type (
	pod = *api.PodSandbox
	ctr = *api.Container
	res = *api.LinuxResources
	ups = []*api.ContainerUpdate
)

type plugin struct{}

func (plugin) Synchronize(context.Context, []pod, []ctr) (ups, error) {
	fmt.Println("synchronized")
	return nil, nil
}

func (plugin) RunPodSandbox(context.Context, pod) error                    { return nil }
func (plugin) UpdatePodSandbox(context.Context, pod, res, res) error       { return nil }
func (plugin) PostUpdatePodSandbox(context.Context, pod) error             { return nil }
func (plugin) StopPodSandbox(context.Context, pod) error                   { return nil }
func (plugin) RemovePodSandbox(context.Context, pod) error                 { return nil }
func (plugin) PostCreateContainer(context.Context, pod, ctr) error         { return nil }
func (plugin) StartContainer(context.Context, pod, ctr) error              { return nil }
func (plugin) PostStartContainer(context.Context, pod, ctr) error          { return nil }
func (plugin) UpdateContainer(context.Context, pod, ctr, res) (ups, error) { return nil, nil }
func (plugin) PostUpdateContainer(context.Context, pod, ctr) error         { return nil }
func (plugin) StopContainer(context.Context, pod, ctr) (ups, error)        { return nil, nil }
func (plugin) RemoveContainer(context.Context, pod, ctr) error             { return nil }
func (plugin) CreateContainer(context.Context, pod, ctr) (*api.ContainerAdjustment, ups, error) {
	return nil, nil, nil
}

type validator struct{ plugin }

func (validator) ValidateContainerAdjustment(context.Context, *api.ValidateContainerAdjustmentRequest) error {
	return nil
}

func main() {
	name := flag.String("name", "noop", "plugin name")
	idx := flag.String("idx", "00", "plugin index")
	socket := flag.String("socket", "", "where to connect")
	validate := flag.Bool("validate", false, "take the validation of adjustments too")
	flag.Parse()
	var p interface{} = plugin{}
	if *validate {
		p = validator{}
	}
	s, err := stub.New(p, stub.WithPluginName(*name), stub.WithPluginIdx(*idx),
		stub.WithSocketPath(*socket), stub.WithOnClose(func() { os.Exit(0) }))
	if err == nil {
		err = s.Run(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
