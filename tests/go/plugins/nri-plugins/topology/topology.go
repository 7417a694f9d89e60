// Package topology stands in for the nested module of this name in containers/nri-plugins, which the module proxy does not
// serve. The plugins ask it which CPUs are close to a device; this one knows of none, as on a machine of one NUMA node.
package topology

// ProviderKubelet is the provider of hints that the kubelet gave.
const ProviderKubelet = "kubelet"

// Hint lists what is close to a device, each in the kernel's list format.
type Hint struct {
	Provider string
	CPUs     string
	NUMAs    string
	Sockets  string
}

// Hints are hints by their provider.
type Hints map[string]Hint

// Logger is what SetLogger takes.
type Logger interface {
	Debugf(format string, v ...interface{})
}

// SetSysRoot has no effect: sysfs is not read.
func SetSysRoot(string) {}

// SetLogger has no effect: nothing is logged.
func SetLogger(Logger) Logger { return nil }

// NewTopologyHints finds no hints.
func NewTopologyHints(string) (Hints, error) { return Hints{}, nil }

// MergeTopologyHints adds hints of new providers to those in `into`.
func MergeTopologyHints(into, hints Hints) Hints {
	if into == nil {
		into = Hints{}
	}
	for provider, hint := range hints {
		if _, known := into[provider]; !known {
			into[provider] = hint
		}
	}
	return into
}

// ResolvePartialHints has no effect: no hint lacks its CPUs.
func (Hints) ResolvePartialHints(func(string) string) {}

func (h *Hint) String() string { return "hint of " + h.Provider }

// FindSysFsDevice finds no device.
func FindSysFsDevice(string) (string, error) { return "", nil }

// FindGivenSysFsDevice finds no device.
func FindGivenSysFsDevice(string, int64, int64) (string, error) { return "", nil }
