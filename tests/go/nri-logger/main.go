// Command nri-logger is an NRI plugin on the Go stub: an independent peer for our own logger.
//
// It prints one line per event, "EVENT pod-name" or "EVENT pod-name container-name", and nothing
// else on standard output, so that two lists can be compared with diff.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
)

type logger struct{}

// The event that it answers with an error, if any.
var refuse = flag.String("refuse", "", "an event to answer with an error")

func say(event string, pod *api.PodSandbox, container *api.Container) error {
	line := event + " " + pod.GetName()
	if container != nil {
		line += " " + container.GetName()
	}
	if _, err := fmt.Println(line); err != nil {
		return err
	}
	if event == *refuse {
		return fmt.Errorf("refused on purpose")
	}
	return nil
}

func (logger) Synchronize(_ context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	fmt.Fprintf(os.Stderr, "synchronised: %d pods, %d containers\n", len(pods), len(containers))
	return nil, nil
}

func (logger) RunPodSandbox(_ context.Context, p *api.PodSandbox) error {
	return say("RunPodSandbox", p, nil)
}

func (logger) UpdatePodSandbox(_ context.Context, p *api.PodSandbox, _, _ *api.LinuxResources) error {
	return say("UpdatePodSandbox", p, nil)
}

func (logger) PostUpdatePodSandbox(_ context.Context, p *api.PodSandbox) error {
	return say("PostUpdatePodSandbox", p, nil)
}

func (logger) StopPodSandbox(_ context.Context, p *api.PodSandbox) error {
	return say("StopPodSandbox", p, nil)
}

func (logger) RemovePodSandbox(_ context.Context, p *api.PodSandbox) error {
	return say("RemovePodSandbox", p, nil)
}

func (logger) CreateContainer(_ context.Context, p *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	return nil, nil, say("CreateContainer", p, c)
}

func (logger) PostCreateContainer(_ context.Context, p *api.PodSandbox, c *api.Container) error {
	return say("PostCreateContainer", p, c)
}

func (logger) StartContainer(_ context.Context, p *api.PodSandbox, c *api.Container) error {
	return say("StartContainer", p, c)
}

func (logger) PostStartContainer(_ context.Context, p *api.PodSandbox, c *api.Container) error {
	return say("PostStartContainer", p, c)
}

func (logger) UpdateContainer(_ context.Context, p *api.PodSandbox, c *api.Container, _ *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	return nil, say("UpdateContainer", p, c)
}

func (logger) PostUpdateContainer(_ context.Context, p *api.PodSandbox, c *api.Container) error {
	return say("PostUpdateContainer", p, c)
}

func (logger) StopContainer(_ context.Context, p *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	return nil, say("StopContainer", p, c)
}

func (logger) RemoveContainer(_ context.Context, p *api.PodSandbox, c *api.Container) error {
	return say("RemoveContainer", p, c)
}

func main() {
	name := flag.String("name", "", "plugin name (a launched plugin takes it from its file name)")
	idx := flag.String("idx", "", "plugin index, two digits")
	socket := flag.String("socket", "", "NRI socket to connect to (a launched plugin inherits its own)")
	flag.Parse()

	var opts []stub.Option
	if *name != "" {
		opts = append(opts, stub.WithPluginName(*name))
	}
	if *idx != "" {
		opts = append(opts, stub.WithPluginIdx(*idx))
	}
	if *socket != "" {
		opts = append(opts, stub.WithSocketPath(*socket))
	}
	s, err := stub.New(logger{}, opts...)
	if err == nil {
		err = s.Run(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "nri-logger:", err)
		os.Exit(1)
	}
}
