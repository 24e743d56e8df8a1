package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// server is a Redis or Valkey process of this run's own, empty at the start and killed at the end.
type server struct {
	name    string // "redis 7.0.15"
	addr    string
	client  rueidis.Client
	process *exec.Cmd
	dir     string
}

// start runs a server by its command line, "redis-server" or "chroot DIR valkey-server", on a free port of the loopback.
func start(command string, options ...string) (*server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	addr := net.JoinHostPort("127.0.0.1", port)
	dir, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return nil, err
	}
	words := append(strings.Fields(command), "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no")
	words = append(words, options...)
	s := &server{addr: addr, dir: dir, process: exec.Command(words[0], words[1:]...)}
	s.process.Dir = dir
	var log bytes.Buffer
	s.process.Stdout, s.process.Stderr = &log, &log
	if err := s.process.Start(); err != nil {
		return nil, err
	}
	for range 400 {
		time.Sleep(50 * time.Millisecond)
		s.client, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true, DialCtxFn: dialRueidis, ForceSingleClient: true})
		if err == nil {
			break
		}
	}
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("%s does not answer: %w; its log: %s", command, err, log.String())
	}
	info, err := s.info("server")
	if err != nil {
		s.stop()
		return nil, err
	}
	s.name = "Redis " + info["redis_version"]
	if version, ok := info["valkey_version"]; ok {
		s.name = "Valkey " + version
	}
	return s, nil
}

func (s *server) stop() {
	if s.client != nil {
		s.client.Close()
	}
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
	_ = os.RemoveAll(s.dir)
}

func (s *server) info(section string) (map[string]string, error) {
	text, err := s.client.Do(context.Background(), s.client.B().Info().Section(section).Build()).ToString()
	if err != nil {
		return nil, err
	}
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields, nil
}

// cpu is the CPU time that the server's main thread has used, user and system.
func (s *server) cpu() (time.Duration, error) {
	info, err := s.info("cpu")
	if err != nil {
		return 0, err
	}
	var seconds float64
	for _, kind := range []string{"user", "sys"} {
		text, ok := info["used_cpu_"+kind+"_main_thread"]
		if !ok { // before Redis 6.2
			text = info["used_cpu_"+kind]
		}
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return 0, err
		}
		seconds += value
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

func (s *server) flush() error {
	return s.client.Do(context.Background(), s.client.B().Flushall().Build()).Error()
}

// trips counts what the clients write to their connections. A client that waits for each answer before it sends the next command
// writes once for each round trip.
var trips atomic.Int64

type countingConn struct{ net.Conn }

func (c countingConn) Write(b []byte) (int, error) {
	trips.Add(1)
	return c.Conn.Write(b)
}

// dial is how every client connects.
func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return countingConn{conn}, nil
}

func dialRueidis(ctx context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
	return dial(ctx, "tcp", addr)
}

// pipe is a bare connection that sends ready-made commands and counts the replies without decoding them: what it measures at the
// server is the commands alone.
type pipe struct {
	conn   net.Conn
	reader *bufio.Reader
}

func (s *server) pipe() (*pipe, error) {
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		return nil, err
	}
	return &pipe{conn, bufio.NewReaderSize(conn, 1<<16)}, nil
}

// command is a command as it goes over the wire.
func command(words ...string) []byte {
	b := fmt.Appendf(nil, "*%d\r\n", len(words))
	for _, word := range words {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(word), word)
	}
	return b
}

// send sends commands in pipelines of up to 200 and reads their replies. An error reply is an error.
func (p *pipe) send(commands [][]byte) error {
	for len(commands) > 0 {
		n := min(200, len(commands))
		var batch []byte
		for _, c := range commands[:n] {
			batch = append(batch, c...)
		}
		if _, err := p.conn.Write(batch); err != nil {
			return err
		}
		for range n {
			if err := p.reply(); err != nil {
				return err
			}
		}
		commands = commands[n:]
	}
	return nil
}

func (p *pipe) reply() error {
	line, err := p.reader.ReadSlice('\n')
	if err != nil {
		return err
	}
	switch text := strings.TrimSpace(string(line[1:])); line[0] {
	case '-':
		return fmt.Errorf("the server answered %s", text)
	case '$':
		if n, err := strconv.Atoi(text); err != nil || n >= 0 {
			if err != nil {
				return err
			}
			_, err = p.reader.Discard(n + 2)
			return err
		}
	case '*':
		n, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		for range n {
			if err := p.reply(); err != nil {
				return err
			}
		}
	}
	return nil
}
