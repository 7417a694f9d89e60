//go:build wasip1

// A plugin that is a WebAssembly module, by Go's SDK for them. It logs each event, adjusts containers by an annotation
// that says how it was told of their pod, and vetoes pods and containers that are called "bad"; one that is called "hang"
// it never answers.
package main

import (
	"context"
	"errors"
	"time"

	api "github.com/containerd/nri/pkg/api"
)

type plugin struct{ pods string }

func init() { api.RegisterPlugin(&plugin{}) }

func main() {}

func log(ctx context.Context, text string) {
	api.NewHostFunctions().Log(ctx, &api.LogRequest{Msg: text, Level: api.LogRequest_LEVEL_INFO})
}

func (p *plugin) Configure(ctx context.Context, req *api.ConfigureRequest) (*api.ConfigureResponse, error) {
	log(ctx, "configured "+req.GetConfig()+" by "+req.GetRuntimeName())
	return nil, nil
}

func (p *plugin) Synchronize(ctx context.Context, req *api.SynchronizeRequest) (*api.SynchronizeResponse, error) {
	for _, pod := range req.GetPods() {
		p.pods += " " + pod.GetName()
	}
	return nil, nil
}

func (p *plugin) Shutdown(ctx context.Context, req *api.Empty) (*api.Empty, error) {
	log(ctx, "shut down")
	return nil, nil
}

func (p *plugin) run(ctx context.Context, pod *api.PodSandbox, how string) error {
	log(ctx, "run "+pod.GetName())
	if pod.GetName() == "bad" {
		return errors.New("a bad pod")
	}
	p.pods += " " + pod.GetName() + " (" + how + ")"
	return nil
}

func (p *plugin) StateChange(ctx context.Context, req *api.StateChangeEvent) (*api.Empty, error) {
	if req.GetEvent() == api.Event_RUN_POD_SANDBOX {
		return nil, p.run(ctx, req.GetPod(), "state change")
	}
	log(ctx, req.GetEvent().String()+" "+req.GetPod().GetName()+" "+req.GetContainer().GetName())
	return nil, nil
}

func (p *plugin) RunPodSandbox(ctx context.Context, req *api.RunPodSandboxRequest) (*api.RunPodSandboxResponse, error) {
	return nil, p.run(ctx, req.GetPod(), "its own function")
}

func (p *plugin) UpdatePodSandbox(context.Context, *api.UpdatePodSandboxRequest) (*api.UpdatePodSandboxResponse, error) {
	return nil, nil
}

func (p *plugin) PostUpdatePodSandbox(context.Context, *api.PostUpdatePodSandboxRequest) (*api.PostUpdatePodSandboxResponse, error) {
	return nil, nil
}

func (p *plugin) StopPodSandbox(context.Context, *api.StopPodSandboxRequest) (*api.StopPodSandboxResponse, error) {
	return nil, nil
}

func (p *plugin) RemovePodSandbox(context.Context, *api.RemovePodSandboxRequest) (*api.RemovePodSandboxResponse, error) {
	return nil, nil
}

func (p *plugin) CreateContainer(ctx context.Context, req *api.CreateContainerRequest) (*api.CreateContainerResponse, error) {
	switch req.GetContainer().GetName() {
	case "bad":
		return nil, errors.New("a bad container")
	case "hang":
		time.Sleep(time.Hour)
	case "spin":
		for {
		}
	}
	adjust := &api.ContainerAdjustment{}
	adjust.AddAnnotation("pods", p.pods)
	return &api.CreateContainerResponse{Adjust: adjust}, nil
}

func (p *plugin) PostCreateContainer(context.Context, *api.PostCreateContainerRequest) (*api.PostCreateContainerResponse, error) {
	return nil, nil
}

func (p *plugin) StartContainer(context.Context, *api.StartContainerRequest) (*api.StartContainerResponse, error) {
	return nil, nil
}

func (p *plugin) PostStartContainer(context.Context, *api.PostStartContainerRequest) (*api.PostStartContainerResponse, error) {
	return nil, nil
}

func (p *plugin) UpdateContainer(context.Context, *api.UpdateContainerRequest) (*api.UpdateContainerResponse, error) {
	return nil, nil
}

func (p *plugin) PostUpdateContainer(context.Context, *api.PostUpdateContainerRequest) (*api.PostUpdateContainerResponse, error) {
	return nil, nil
}

func (p *plugin) StopContainer(context.Context, *api.StopContainerRequest) (*api.StopContainerResponse, error) {
	return nil, nil
}

func (p *plugin) RemoveContainer(context.Context, *api.RemoveContainerRequest) (*api.RemoveContainerResponse, error) {
	return nil, nil
}

func (p *plugin) ValidateContainerAdjustment(context.Context, *api.ValidateContainerAdjustmentRequest) (*api.ValidateContainerAdjustmentResponse, error) {
	return nil, nil
}
