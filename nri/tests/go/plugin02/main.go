//go:build nri02

// A Go plugin on the first generation of the stub (v0.2.0), whose handlers take no context: prints
// what it is told as "Event pod container" and annotates each container, as ../plugin does.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
)

type plugin struct{}

var out sync.Mutex

func say(event string, pod *api.PodSandbox, ctr *api.Container) error {
	out.Lock()
	defer out.Unlock()
	fmt.Println(strings.TrimSpace(fmt.Sprintf("%s %s %s", event, pod.GetId(), ctr.GetId())))
	return nil
}

func (plugin) Configure(config, runtime, version string) (api.EventMask, error) {
	fmt.Printf("Configure %q %s %s\n", config, runtime, version)
	return 0, nil
}

func (plugin) Synchronize(pods []*api.PodSandbox, ctrs []*api.Container) ([]*api.ContainerUpdate, error) {
	size := 0
	for _, pod := range pods {
		size += len(pod.GetAnnotations()["pad"])
	}
	for _, ctr := range ctrs {
		size += len(ctr.GetAnnotations()["pad"])
	}
	fmt.Printf("Synchronize %d pods %d containers %d bytes\n", len(pods), len(ctrs), size)
	return nil, nil
}

func (plugin) Shutdown(*api.ShutdownRequest) { say("Shutdown", nil, nil) }

func (plugin) RunPodSandbox(pod *api.PodSandbox) error  { return say("RunPodSandbox", pod, nil) }
func (plugin) StopPodSandbox(pod *api.PodSandbox) error { return say("StopPodSandbox", pod, nil) }
func (plugin) RemovePodSandbox(pod *api.PodSandbox) error {
	return say("RemovePodSandbox", pod, nil)
}

func (plugin) CreateContainer(pod *api.PodSandbox, ctr *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	say("CreateContainer", pod, ctr)
	if ctr.GetName() == "veto" {
		return nil, nil, fmt.Errorf("vetoed on demand")
	}
	a := &api.ContainerAdjustment{}
	a.AddAnnotation("go", "was here")
	a.AddAnnotation("bytes", fmt.Sprint(len(ctr.GetAnnotations()["pad"])))
	a.AddEnv("GO", "1")
	return a, nil, nil
}

func (plugin) PostCreateContainer(pod *api.PodSandbox, ctr *api.Container) error {
	return say("PostCreateContainer", pod, ctr)
}

func (plugin) StartContainer(pod *api.PodSandbox, ctr *api.Container) error {
	return say("StartContainer", pod, ctr)
}

func (plugin) PostStartContainer(pod *api.PodSandbox, ctr *api.Container) error {
	return say("PostStartContainer", pod, ctr)
}

func (plugin) UpdateContainer(pod *api.PodSandbox, ctr *api.Container) ([]*api.ContainerUpdate, error) {
	say("UpdateContainer", pod, ctr)
	u := &api.ContainerUpdate{}
	u.SetContainerId(ctr.GetId())
	u.SetLinuxCPUShares(1234)
	return []*api.ContainerUpdate{u}, nil
}

func (plugin) PostUpdateContainer(pod *api.PodSandbox, ctr *api.Container) error {
	return say("PostUpdateContainer", pod, ctr)
}

func (plugin) StopContainer(pod *api.PodSandbox, ctr *api.Container) ([]*api.ContainerUpdate, error) {
	return nil, say("StopContainer", pod, ctr)
}

func (plugin) RemoveContainer(pod *api.PodSandbox, ctr *api.Container) error {
	return say("RemoveContainer", pod, ctr)
}

func main() {
	name := flag.String("name", "", "plugin name")
	idx := flag.String("idx", "", "plugin index")
	socket := flag.String("socket", "", "where to connect")
	flag.Parse()
	s, err := stub.New(plugin{}, stub.WithPluginName(*name), stub.WithPluginIdx(*idx),
		stub.WithSocketPath(*socket), stub.WithOnClose(func() { os.Exit(0) }))
	if err == nil {
		err = s.Run(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
