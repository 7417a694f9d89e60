// A Go plugin for the interop tests: prints what it is told as "Event pod container", annotates
// each container, and, if asked, pads its answers and sends updates of its own accord.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
)

type plugin struct {
	stub    stub.Stub
	pad     int
	updates int
}

var out sync.Mutex

func say(event string, pod *api.PodSandbox, ctr *api.Container) {
	out.Lock()
	defer out.Unlock()
	fmt.Println(strings.TrimSpace(fmt.Sprintf("%s %s %s", event, pod.GetId(), ctr.GetId())))
}

func (p *plugin) Configure(_ context.Context, config, name, version string) (api.EventMask, error) {
	out.Lock()
	defer out.Unlock()
	fmt.Printf("Configure %q %s %s\n", config, name, version)
	return 0, nil
}

func (p *plugin) Synchronize(_ context.Context, pods []*api.PodSandbox, ctrs []*api.Container) ([]*api.ContainerUpdate, error) {
	size := 0
	for _, pod := range pods {
		size += len(pod.GetAnnotations()["pad"])
	}
	for _, ctr := range ctrs {
		size += len(ctr.GetAnnotations()["pad"])
	}
	out.Lock()
	fmt.Printf("Synchronize %d pods %d containers %d bytes\n", len(pods), len(ctrs), size)
	out.Unlock()
	if p.updates > 0 {
		go p.update()
	}
	return nil, nil
}

// update sends many updates at once: none may be refused for its stream id, and their answers must
// not overrun the queue of Go's mux, which closes everything when a 257th frame meets 256 (NRI-108).
func (p *plugin) update() {
	// Not active yet: the runtime says so until it has taken Synchronize in.
	for {
		_, err := p.stub.UpdateContainers(nil)
		if err == nil || !strings.Contains(err.Error(), "not synchronised") {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	var failed atomic.Int32
	var first atomic.Value
	var wg sync.WaitGroup
	for i := 0; i < p.updates; i++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			u := &api.ContainerUpdate{}
			u.SetContainerId(fmt.Sprintf("c%d", i))
			u.SetLinuxCPUShares(uint64(i + 2))
			if _, err := p.stub.UpdateContainers([]*api.ContainerUpdate{u}); err != nil {
				failed.Add(1)
				first.CompareAndSwap(nil, err.Error())
			}
		}()
	}
	wg.Wait()
	out.Lock()
	fmt.Printf("Updates %d failed %d %v\n", p.updates, failed.Load(), first.Load())
	out.Unlock()
}

func (p *plugin) Shutdown(context.Context) { say("Shutdown", nil, nil) }

func (p *plugin) RunPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	say("RunPodSandbox", pod, nil)
	return nil
}

func (p *plugin) UpdatePodSandbox(_ context.Context, pod *api.PodSandbox, _, _ *api.LinuxResources) error {
	say("UpdatePodSandbox", pod, nil)
	return nil
}

func (p *plugin) PostUpdatePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	say("PostUpdatePodSandbox", pod, nil)
	return nil
}

func (p *plugin) StopPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	say("StopPodSandbox", pod, nil)
	return nil
}

func (p *plugin) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	say("RemovePodSandbox", pod, nil)
	return nil
}

func (p *plugin) CreateContainer(_ context.Context, pod *api.PodSandbox, ctr *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	say("CreateContainer", pod, ctr)
	if ctr.GetName() == "veto" {
		return nil, nil, fmt.Errorf("vetoed on demand")
	}
	a := &api.ContainerAdjustment{}
	a.AddAnnotation("go", "was here")
	a.AddAnnotation("bytes", fmt.Sprint(len(ctr.GetAnnotations()["pad"])))
	if p.pad > 0 {
		a.AddAnnotation("pad", strings.Repeat("x", p.pad))
	}
	a.AddEnv("GO", "1")
	return a, nil, nil
}

func (p *plugin) PostCreateContainer(_ context.Context, pod *api.PodSandbox, ctr *api.Container) error {
	say("PostCreateContainer", pod, ctr)
	return nil
}

func (p *plugin) StartContainer(_ context.Context, pod *api.PodSandbox, ctr *api.Container) error {
	say("StartContainer", pod, ctr)
	return nil
}

func (p *plugin) PostStartContainer(_ context.Context, pod *api.PodSandbox, ctr *api.Container) error {
	say("PostStartContainer", pod, ctr)
	return nil
}

func (p *plugin) UpdateContainer(_ context.Context, pod *api.PodSandbox, ctr *api.Container, _ *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	say("UpdateContainer", pod, ctr)
	u := &api.ContainerUpdate{}
	u.SetContainerId(ctr.GetId())
	u.SetLinuxCPUShares(1234)
	return []*api.ContainerUpdate{u}, nil
}

func (p *plugin) PostUpdateContainer(_ context.Context, pod *api.PodSandbox, ctr *api.Container) error {
	say("PostUpdateContainer", pod, ctr)
	return nil
}

func (p *plugin) StopContainer(_ context.Context, pod *api.PodSandbox, ctr *api.Container) ([]*api.ContainerUpdate, error) {
	say("StopContainer", pod, ctr)
	return nil, nil
}

func (p *plugin) RemoveContainer(_ context.Context, pod *api.PodSandbox, ctr *api.Container) error {
	say("RemoveContainer", pod, ctr)
	return nil
}

func main() {
	name := flag.String("name", "", "plugin name")
	idx := flag.String("idx", "", "plugin index")
	socket := flag.String("socket", "", "where to connect")
	p := &plugin{}
	flag.IntVar(&p.pad, "pad", 0, "bytes to put into each adjustment")
	flag.IntVar(&p.updates, "updates", 0, "unsolicited updates to send at once")
	procs := flag.Int("procs", 0, "processors to use, 0 for all")
	flag.Parse()
	runtime.GOMAXPROCS(*procs)
	opts := []stub.Option{stub.WithOnClose(func() { os.Exit(0) })}
	if *name != "" {
		opts = append(opts, stub.WithPluginName(*name))
	}
	if *idx != "" {
		opts = append(opts, stub.WithPluginIdx(*idx))
	}
	if *socket != "" {
		opts = append(opts, stub.WithSocketPath(*socket))
	}
	var err error
	if p.stub, err = stub.New(p, opts...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := p.stub.Run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
