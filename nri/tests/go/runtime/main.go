// A runtime made of the Go adaptation, for our Rust plugins: lists pods of a given size, waits for
// plugins, and does what it is told on its standard input, one line of answer for each line.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	nri "github.com/containerd/nri/pkg/adaptation"
)

func main() {
	socket := flag.String("socket", "", "where to listen")
	pods := flag.Int("pods", 2, "pods to list")
	pad := flag.Int("pad", 0, "bytes of annotation in each")
	timeout := flag.Duration("timeout", nri.DefaultPluginRequestTimeout, "for one event at one plugin")
	flag.Parse()
	nri.SetPluginRequestTimeout(*timeout)
	ctx := context.Background()
	var updates atomic.Int32
	sync := func(ctx context.Context, cb nri.SyncCB) error {
		var ps []*nri.PodSandbox
		var cs []*nri.Container
		for i := 0; i < *pods; i++ {
			id := fmt.Sprintf("p%d", i)
			ps = append(ps, &nri.PodSandbox{Id: id, Annotations: map[string]string{"pad": strings.Repeat("x", *pad)}})
			cs = append(cs, &nri.Container{Id: "c-" + id, PodSandboxId: id})
		}
		_, err := cb(ctx, ps, cs)
		fmt.Printf("synchronized %v\n", err)
		return err
	}
	update := func(_ context.Context, us []*nri.ContainerUpdate) ([]*nri.ContainerUpdate, error) {
		updates.Add(int32(len(us)))
		return nil, nil
	}
	r, err := nri.New("go-runtime", "1.0", sync, update,
		nri.WithSocketPath(*socket), nri.WithPluginPath("/nonexistent"), nri.WithPluginConfigPath("/nonexistent"))
	if err != nil {
		fmt.Println("failed", err)
		os.Exit(1)
	}
	if err := r.Start(); err != nil {
		fmt.Println("failed", err)
		os.Exit(1)
	}
	fmt.Println("ready")
	pod := &nri.PodSandbox{Id: "pod", Name: "pod", Namespace: "default"}
	ctr := &nri.Container{Id: "ctr", PodSandboxId: "pod", Name: "ctr"}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var n int
		// Holds joining plugins back, and waits for the one that is half in.
		block := r.BlockPluginSync()
		switch line := in.Text(); {
		case line == "life":
			fmt.Println("life", life(ctx, r, pod, ctr))
		case strings.HasPrefix(line, "event "):
			var event, pod string
			fmt.Sscanf(line, "event %s %s", &event, &pod)
			fmt.Println(line, one(ctx, r, event, pod))
		case line == "updates":
			fmt.Println("updates", updates.Load())
		case strings.HasPrefix(line, "create "):
			fmt.Sscanf(line, "create %d", &n)
			c := &nri.Container{Id: "ctr", PodSandboxId: "pod", Name: "ctr", Annotations: map[string]string{"pad": strings.Repeat("x", n)}}
			rpl, err := r.CreateContainer(ctx, &nri.CreateContainerRequest{Pod: pod, Container: c})
			a := rpl.GetAdjust().GetAnnotations()
			fmt.Println("created", a["bytes"], len(a["pad"]), err)
		case line == "quit":
			r.Stop()
			return
		}
		block.Unblock()
	}
}

// one sends one event of a pod.
func one(ctx context.Context, r *nri.Adaptation, event, id string) (err error) {
	pod := &nri.PodSandbox{Id: id, Name: id, Namespace: "default"}
	ctr := &nri.Container{Id: "c-" + id, PodSandboxId: id, Name: "ctr"}
	switch event {
	case "RunPodSandbox":
		err = r.RunPodSandbox(ctx, &nri.RunPodSandboxRequest{Pod: pod})
	case "StopPodSandbox":
		err = r.StopPodSandbox(ctx, &nri.StopPodSandboxRequest{Pod: pod})
	case "PostCreateContainer":
		err = r.PostCreateContainer(ctx, &nri.PostCreateContainerRequest{Pod: pod, Container: ctr})
	case "CreateContainer", "ValidateContainerAdjustment":
		_, err = r.CreateContainer(ctx, &nri.CreateContainerRequest{Pod: pod, Container: ctr})
	}
	return err
}

func life(ctx context.Context, r *nri.Adaptation, pod *nri.PodSandbox, ctr *nri.Container) error {
	steps := []func() error{
		func() error { return r.RunPodSandbox(ctx, &nri.RunPodSandboxRequest{Pod: pod}) },
		func() error { _, err := r.UpdatePodSandbox(ctx, &nri.UpdatePodSandboxRequest{Pod: pod}); return err },
		func() error { return r.PostUpdatePodSandbox(ctx, &nri.PostUpdatePodSandboxRequest{Pod: pod}) },
		func() error {
			_, err := r.CreateContainer(ctx, &nri.CreateContainerRequest{Pod: pod, Container: ctr})
			return err
		},
		func() error {
			return r.PostCreateContainer(ctx, &nri.PostCreateContainerRequest{Pod: pod, Container: ctr})
		},
		func() error { return r.StartContainer(ctx, &nri.StartContainerRequest{Pod: pod, Container: ctr}) },
		func() error {
			return r.PostStartContainer(ctx, &nri.PostStartContainerRequest{Pod: pod, Container: ctr})
		},
		func() error {
			_, err := r.UpdateContainer(ctx, &nri.UpdateContainerRequest{Pod: pod, Container: ctr, LinuxResources: &nri.LinuxResources{}})
			return err
		},
		func() error {
			return r.PostUpdateContainer(ctx, &nri.PostUpdateContainerRequest{Pod: pod, Container: ctr})
		},
		func() error {
			_, err := r.StopContainer(ctx, &nri.StopContainerRequest{Pod: pod, Container: ctr})
			return err
		},
		func() error { return r.RemoveContainer(ctx, &nri.RemoveContainerRequest{Pod: pod, Container: ctr}) },
		func() error { return r.StopPodSandbox(ctx, &nri.StopPodSandboxRequest{Pod: pod}) },
		func() error { return r.RemovePodSandbox(ctx, &nri.RemovePodSandboxRequest{Pod: pod}) },
	}
	for i, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	return nil
}
