// A Go plugin that fails one event of the pod "bad" in one way, and says what is to become of it:
// prints what it is told as "Event pod".
package main

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"net"
	"os"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
)

type plugin struct {
	event   string
	misdeed string
	trunk   net.Conn
}

func (p *plugin) Configure(context.Context, string, string, string) (api.EventMask, error) {
	return api.ParseEventMask(p.event)
}

func (p *plugin) told(event string, pod *api.PodSandbox) error {
	fmt.Println(event, pod.GetId())
	if event != p.event || pod.GetId() != "bad" {
		return nil
	}
	switch p.misdeed {
	case "error":
		return fmt.Errorf("no room")
	case "exit":
		os.Exit(1)
	case "garbage":
		// Data where a response is due, for whichever call it is.
		for id := uint32(1); id < 16; id += 2 {
			frame := binary.BigEndian.AppendUint32(nil, 1) // the connection of the plugin's service
			frame = binary.BigEndian.AppendUint32(frame, 14)
			frame = binary.BigEndian.AppendUint32(frame, 4)
			frame = binary.BigEndian.AppendUint32(frame, id)
			frame = append(frame, 3, 0, 0xff, 0xff, 0xff, 0xff)
			p.trunk.Write(frame)
		}
	}
	select {} // hang
}

func (p *plugin) RunPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.told("RunPodSandbox", pod)
}

func (p *plugin) StopPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.told("StopPodSandbox", pod)
}

func (p *plugin) PostCreateContainer(_ context.Context, pod *api.PodSandbox, _ *api.Container) error {
	return p.told("PostCreateContainer", pod)
}

func (p *plugin) CreateContainer(_ context.Context, pod *api.PodSandbox, _ *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	return nil, nil, p.told("CreateContainer", pod)
}

func (p *plugin) ValidateContainerAdjustment(_ context.Context, request *api.ValidateContainerAdjustmentRequest) error {
	return p.told("ValidateContainerAdjustment", request.GetPod())
}

func main() {
	p := &plugin{}
	name := flag.String("name", "", "plugin name")
	idx := flag.String("idx", "", "plugin index")
	socket := flag.String("socket", "", "where to connect")
	policy := flag.String("policy", "none", "none, or any of f (fail request) and k (keep connected)")
	flag.StringVar(&p.event, "event", "", "the event that it takes, and fails")
	flag.StringVar(&p.misdeed, "misdeed", "", "error, exit, garbage or hang")
	flag.Parse()
	opts := []stub.Option{
		stub.WithPluginName(*name),
		stub.WithPluginIdx(*idx),
		stub.WithDialer(func(string) (conn net.Conn, err error) {
			p.trunk, err = net.Dial("unix", *socket)
			return p.trunk, err
		}),
		stub.WithOnClose(func() { os.Exit(0) }),
	}
	if *policy != "none" {
		said := &api.FailurePolicy{}
		for _, wish := range *policy {
			said.FailRequest = said.FailRequest || wish == 'f'
			said.KeepConnected = said.KeepConnected || wish == 'k'
		}
		opts = append(opts, stub.WithFailurePolicy(said))
	}
	s, err := stub.New(p, opts...)
	if err == nil {
		err = s.Run(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
