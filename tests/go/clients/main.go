// Asks a CRI server for its version, and prints the answer:
//
//	clients TARGET [SOCKET]
//
// With a socket, the connection is made by a dialer, as in kubelets and crictl before 1.31 and in containerd's tests:
// gRPC then takes the authority from the target.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// raw hands on messages as they are: this client needs no generated types.
type raw struct{}

func (raw) Marshal(message any) ([]byte, error) { return message.([]byte), nil }

func (raw) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = append([]byte(nil), data...)
	return nil
}

func (raw) Name() string { return "proto" }

func version() ([]byte, error) {
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})),
	}
	if len(os.Args) > 2 {
		dial := func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", os.Args[2])
		}
		options = append(options, grpc.WithContextDialer(dial))
	}
	connection, err := grpc.Dial(os.Args[1], options...)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var answer []byte
	err = connection.Invoke(ctx, "/runtime.v1.RuntimeService/Version", []byte{}, &answer)
	return answer, err
}

func main() {
	answer, err := version()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("%q\n", answer)
}
