package adaptation

// Compiled into github.com/containerd/nri/pkg/adaptation by hack/foreign, whose result.go keeps its functions under names
// that end with Plain: prints each merge of the package's own tests, so that nri can do the same.

import (
	"encoding/hex"
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"
)

var (
	recorded sync.Map
	merges   int
)

func record(r *result, step, what string, message proto.Message) {
	bytes := ""
	if message != nil && message.ProtoReflect().IsValid() {
		encoded, err := proto.Marshal(message)
		if err != nil {
			panic(err)
		}
		bytes = hex.EncodeToString(encoded)
	}
	n, _ := recorded.Load(r)
	fmt.Printf("\n@merge %v\t%s\t%s\t%s\n", n, step, what, bytes)
}

func start(r *result, kind string, request proto.Message) *result {
	merges++
	recorded.Store(r, merges)
	record(r, "new", kind, request)
	return r
}

func collectCreateContainerResult(request *CreateContainerRequest) *result {
	asked := proto.Clone(request)
	return start(collectCreateContainerResultPlain(request), "create", asked)
}

func collectUpdateContainerResult(request *UpdateContainerRequest) *result {
	asked := proto.Clone(request)
	return start(collectUpdateContainerResultPlain(request), "update", asked)
}

func collectStopContainerResult() *result {
	return start(collectUpdateContainerResultPlain(nil), "stop", nil)
}

func (r *result) apply(response interface{}, plugin string) error {
	answer := proto.Clone(response.(proto.Message))
	err := r.applyPlain(response, plugin)
	record(r, "apply", plugin, answer)
	record(r, "taken", fmt.Sprint(err == nil), nil)
	if r.request.create != nil && err == nil {
		record(r, "next", "", r.request.create)
	}
	return err
}

func (r *result) createContainerResponse() *CreateContainerResponse {
	response := r.createContainerResponsePlain()
	record(r, "finish", "", response)
	return response
}

func (r *result) updateContainerResponse() *UpdateContainerResponse {
	response := r.updateContainerResponsePlain()
	record(r, "finish", "", response)
	return response
}

func (r *result) stopContainerResponse() *StopContainerResponse {
	response := r.stopContainerResponsePlain()
	record(r, "finish", "", response)
	return response
}
