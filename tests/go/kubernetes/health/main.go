// grpc-health PORT [FILE]: a server of grpc.health.v1 for probes. It says SERVING, and NOT_SERVING while FILE exists.
package main

import (
	"context"
	"log"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
)

type server struct {
	grpc_health_v1.UnimplementedHealthServer
	file string
}

func (s *server) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	status := grpc_health_v1.HealthCheckResponse_SERVING
	if _, err := os.Stat(s.file); s.file != "" && err == nil {
		status = grpc_health_v1.HealthCheckResponse_NOT_SERVING
	}
	return &grpc_health_v1.HealthCheckResponse{Status: status}, nil
}

func main() {
	if len(os.Args) < 2 {
		log.Fatal("usage: grpc-health PORT [FILE]")
	}
	s := &server{}
	if len(os.Args) > 2 {
		s.file = os.Args[2]
	}
	listener, err := net.Listen("tcp", ":"+os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	g := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(g, s)
	log.Fatal(g.Serve(listener))
}
