// Package containers gives tests real servers in containers, on ports of 127.0.0.1, removed when the test ends.
package containers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/redis/rueidis"
	"github.com/testcontainers/testcontainers-go"
	tclog "github.com/testcontainers/testcontainers-go/log"

	"github.com/sluicego/sluice/conformance/servers"
	"github.com/sluicego/sluice/integration/images"
)

// startTimeout bounds how long a server may take until it answers, or for a command. It is generous: only a broken one needs it.
const startTimeout = 60 * time.Second

// label marks our containers with the process that started them.
const label = "sluice.test"

// present are the images that are there, as Main found.
var present []images.Image

// Images lists the servers to test: those of images.All whose image is there.
func Images() []images.Image { return present }

// Usual is the server for tests that need only one: Redis 7.0 if it is among Images, otherwise the first whose clock can be
// held, otherwise the first.
func Usual() images.Image {
	usual := present[0]
	for _, i := range present {
		if i == (images.Image{Name: "redis", Version: "7.0"}) {
			return i
		}
		if !usual.HoldsClock() {
			usual = i
		}
	}
	return usual
}

// Main runs the tests of a package that needs containers, and returns the exit code. Without a Docker daemon on Linux, or
// without any of the images, it runs none, and without some of them it leaves those out. It says so, and where $CI is set or
// $SLUICE_REQUIRE_ALL is 1 that is a failure.
func Main(m *testing.M) int {
	// Testcontainers' own reaper is one more image. A test removes what it started, and a run what one before
	// it could not.
	if err := os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	tclog.SetDefault(quiet{})
	left := prepare()
	if left == nil {
		return m.Run()
	}
	fmt.Fprintln(os.Stderr, "NOT RUN on real servers in containers:", left)
	if os.Getenv("CI") != "" || os.Getenv("SLUICE_REQUIRE_ALL") == "1" {
		return 1
	}
	if len(present) == 0 {
		return 0
	}
	return m.Run()
}

// prepare looks for the daemon and the images, and removes what runs that were cut short have left. The error is what has
// to be left out.
func prepare() error {
	if runtime.GOOS != "linux" {
		return errors.New("the clock that is preloaded into the servers, and their sockets, are Linux's")
	}
	if _, err := servers.Shim(); err != nil {
		return fmt.Errorf("the servers' clocks can't be held: %w", err)
	}
	ctx := context.Background()
	docker, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return fmt.Errorf("no Docker daemon: %w", err)
	}
	defer func() { _ = docker.Close() }()
	if _, err := docker.Ping(ctx, client.PingOptions{}); err != nil {
		return fmt.Errorf("no Docker daemon: %w", err)
	}
	left, err := docker.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", label)})
	if err != nil {
		return err
	}
	for _, c := range left.Items {
		pid, err := strconv.Atoi(c.Labels[label])
		if alive := syscall.Kill(pid, 0); err == nil && (alive == nil || errors.Is(alive, syscall.EPERM)) {
			continue // of a run that is under way, perhaps another user's
		}
		if err := remove(ctx, docker, c.ID); err != nil {
			return err
		}
	}
	all, missing := images.All()
	for _, i := range all {
		if _, err := docker.ImageInspect(ctx, i.Ref()); err != nil {
			missing = errors.Join(missing, fmt.Errorf("no image %s; integration/images/build.sh makes it", i.Ref()))
			continue
		}
		present = append(present, i)
	}
	return missing
}

// quiet drops what testcontainers has to say about every step.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

func remove(ctx context.Context, docker *testcontainers.DockerClient, id string) error {
	_, err := docker.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	return err
}

// Spec says what to start.
type Spec struct {
	Image images.Image
	// Command, if set, is the whole command, which must make the server listen on Port. Otherwise it is the image's server
	// with Args.
	Command []string
	// Args come after those that make the server listen and persist nothing.
	Args []string
	// TLS makes the port one for TLS alone. Args must say with which certificates.
	TLS bool
	// Env is the environment, name to value.
	Env map[string]string
	// Binds are "host path:container path[:ro]".
	Binds []string
	// Pod, if set, is the pod in whose network the server runs, on Port, one of the pod's.
	Pod  *Pod
	Port int
	// Client changes how Server.Client connects, and how the start is found to be complete.
	Client func(*rueidis.ClientOption)
}

// Server is a server in a container that belongs to one test.
type Server struct {
	// Image is what it runs.
	Image images.Image
	// Addr is the server's TCP address, 127.0.0.1 and a port, the same after a restart.
	Addr string
	// Client is connected to Addr. It is closed when the test ends.
	Client rueidis.Client

	t      testing.TB
	id     string
	docker *testcontainers.DockerClient
	option rueidis.ClientOption
}

// Start starts a server and waits until it answers. It is killed and removed when the test ends.
func Start(t testing.TB, spec Spec) *Server {
	t.Helper()
	port := spec.Port
	if spec.Pod == nil {
		port = FreePorts(t, 1)[0]
	}
	listen := []string{"--port", strconv.Itoa(port)}
	if spec.TLS {
		listen = []string{"--port", "0", "--tls-port", strconv.Itoa(port)}
	}
	command := spec.Command
	if command == nil {
		command = slices.Concat([]string{spec.Image.Binary()}, listen, []string{"--bind", "0.0.0.0", "--protected-mode", "no",
			"--dir", "/tmp", "--save", "", "--appendonly", "no"}, spec.Args)
	}
	s := &Server{Image: spec.Image, Addr: addr(port), t: t}
	// One connection, so that after a call that succeeded none is left that a restart has broken.
	s.option = rueidis.ClientOption{InitAddress: []string{s.Addr}, ForceSingleClient: true, DisableCache: true, DisableRetry: true, PipelineMultiplex: -1}
	if spec.Client != nil {
		spec.Client(&s.option)
	}
	s.run(command, []int{port}, spec.Pod, spec.Env, spec.Binds)
	s.Client = s.connect()
	t.Cleanup(s.Client.Close)
	return s
}

// addr is a port on this machine.
func addr(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// run starts the container.
func (s *Server) run(command []string, ports []int, pod *Pod, env map[string]string, binds []string) {
	s.t.Helper()
	ctx := context.Background()
	docker, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	s.docker = docker
	options := []testcontainers.ContainerCustomizer{
		testcontainers.WithEntrypoint(command...),
		testcontainers.WithEnv(env),
		testcontainers.WithLabels(map[string]string{label: strconv.Itoa(os.Getpid())}),
		testcontainers.WithHostConfigModifier(func(h *container.HostConfig) {
			h.Binds = binds
			if pod != nil {
				h.NetworkMode = container.NetworkMode("container:" + pod.id)
				return
			}
			h.PortBindings = network.PortMap{}
			for _, p := range ports {
				h.PortBindings[network.MustParsePort(strconv.Itoa(p)+"/tcp")] = []network.PortBinding{
					{HostIP: netip.MustParseAddr("127.0.0.1"), HostPort: strconv.Itoa(p)},
				}
			}
		}),
	}
	if pod == nil {
		var exposed []string
		for _, p := range ports {
			exposed = append(exposed, strconv.Itoa(p)+"/tcp")
		}
		options = append(options, testcontainers.WithExposedPorts(exposed...))
	}
	c, err := testcontainers.Run(ctx, s.Image.Ref(), options...)
	if c != nil {
		s.id = c.GetContainerID()
		s.t.Cleanup(func() {
			if s.t.Failed() {
				s.t.Logf("the end of the log of %s at %s:\n%s", s.Image, s.Addr, s.Log(8))
			}
			if err := remove(ctx, docker, s.id); err != nil {
				s.t.Error(err)
			}
			if err := docker.Close(); err != nil {
				s.t.Error(err)
			}
		})
	}
	if err != nil {
		s.t.Fatalf("start %s: %v", s.Image.Ref(), err)
	}
}

// connect waits until the server answers, and returns a client.
func (s *Server) connect() rueidis.Client {
	s.t.Helper()
	var err error
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		var c rueidis.Client
		if c, err = rueidis.NewClient(s.option); err == nil {
			if err = c.Do(ctx, c.B().Ping().Build()).Error(); err == nil {
				return c
			}
			c.Close()
		}
	}
	s.t.Fatalf("%s at %s does not answer: %v\n%s", s.Image, s.Addr, err, s.Log(8))
	return nil
}

// NewClient connects another client, closed when the test ends: with the options of Server.Client, changed by change if it is
// not nil.
func (s *Server) NewClient(t testing.TB, change func(*rueidis.ClientOption)) rueidis.Client {
	t.Helper()
	option := s.option
	if change != nil {
		change(&option)
	}
	c, err := rueidis.NewClient(option)
	if err != nil {
		t.Fatalf("connect to %s at %v: %v", s.Image, option.InitAddress, err)
	}
	t.Cleanup(c.Close)
	return c
}

// Do runs a command that must not fail, and returns its reply.
func (s *Server) Do(args ...string) rueidis.RedisResult {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	r := s.Client.Do(ctx, s.Client.B().Arbitrary(args...).Build())
	if err := r.Error(); err != nil && !rueidis.IsRedisNil(err) {
		s.t.Fatalf("%s: %v: %v", s.Image, args, err)
	}
	return r
}

// Log returns the last lines of what the server has printed.
func (s *Server) Log(lines int) string {
	r, err := s.docker.ContainerLogs(context.Background(), s.id,
		client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Tail: strconv.Itoa(lines)})
	if err != nil {
		return err.Error()
	}
	defer func() { _ = r.Close() }()
	var text strings.Builder
	_, _ = stdcopy.StdCopy(&text, &text, r) // what there is of it is all we can show
	return text.String()
}

// Kill ends the server as kill -9 does: nothing is saved or said.
func (s *Server) Kill() {
	s.t.Helper()
	ctx := context.Background()
	gone := s.docker.ContainerWait(ctx, s.id, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	if _, err := s.docker.ContainerKill(ctx, s.id, client.ContainerKillOptions{Signal: "KILL"}); err != nil {
		s.t.Fatal(err)
	}
	select {
	case <-gone.Result:
	case err := <-gone.Error:
		s.t.Fatal(err)
	}
}

// Restart starts a killed server again, on the files it left, and waits until it answers.
func (s *Server) Restart() {
	s.t.Helper()
	s.StartAgain()
	s.connect().Close()
}

// StartAgain starts a killed server again and does not wait.
func (s *Server) StartAgain() {
	s.t.Helper()
	if _, err := s.docker.ContainerStart(context.Background(), s.id, client.ContainerStartOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// Pod is a network that several servers share, so that 127.0.0.1 and a port mean the same server to the servers and to
// the test.
type Pod struct {
	id string
	// Ports are the pod's, one for each server. A cluster's bus ports need not be among them.
	Ports []int
}

// NewPod makes a network with so many ports of this machine.
func NewPod(t testing.TB, image images.Image, ports int) *Pod {
	t.Helper()
	p := &Pod{Ports: FreePorts(t, ports)}
	holder := &Server{Image: image, Addr: addr(p.Ports[0]), t: t}
	holder.run([]string{"sleep", "infinity"}, p.Ports, nil, nil, nil)
	p.id = holder.id
	return p
}

// FreePorts returns ports of this machine that are free now, below those that a system hands out on its own, and
// low enough for a cluster's bus at 10000 above.
func FreePorts(t testing.TB, n int) []int {
	t.Helper()
	takenMu.Lock()
	defer takenMu.Unlock()
	var ports []int
	start := 10_000 + os.Getpid()*7%10_000
	for p := start; len(ports) < n; p++ {
		if p > 30_000 {
			t.Fatal("no free port")
		}
		if slices.Contains(taken, p) {
			continue
		}
		l, err := net.Listen("tcp", addr(p))
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		taken = append(taken, p)
		ports = append(ports, p)
	}
	return ports
}

// taken are the ports that this process has handed out.
var (
	takenMu sync.Mutex
	taken   []int
)
