package conformance_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// lost is the answer to a call that the server makes and whose reply never comes: the connection breaks.
const lost = "lost"

// proxy stands between a client and a server. It notes the calls of scripts ("EVALSHA take") and may answer them.
type proxy struct {
	addr string

	held sync.RWMutex // no reply passes while it is locked

	mu     sync.Mutex
	calls  []string
	answer func(call string) string
}

func newProxy(t *testing.T, server string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	p := &proxy{addr: l.Addr().String()}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // closed
			}
			go p.serve(client, server)
		}
	}()
	return p
}

// set forgets the calls and says what is answered to those to come: a reply, lost, or "" for the server's.
func (p *proxy) set(answer func(call string) string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls, p.answer = nil, answer
}

// seen are the calls since.
func (p *proxy) seen() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

func (p *proxy) note(call string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, call)
	if p.answer == nil {
		return ""
	}
	return p.answer(call)
}

// serve passes on commands until an end or an error of either side, which ends the other.
func (p *proxy) serve(client net.Conn, addr string) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	var breaks atomic.Bool // at the next byte from the server
	go func() {
		defer func() { _ = client.Close() }()
		buf := make([]byte, 1<<16)
		for {
			n, err := server.Read(buf)
			if err != nil || breaks.Load() {
				return
			}
			p.held.RLock()
			_, err = client.Write(buf[:n])
			p.held.RUnlock()
			if err != nil {
				return
			}
		}
	}()
	for in := bufio.NewReader(client); ; {
		words, err := readCommand(in)
		if err != nil {
			return
		}
		reply := ""
		if call := scriptCall(words); call != "" {
			reply = p.note(call)
		}
		switch reply {
		case lost:
			breaks.Store(true)
			fallthrough
		case "":
			err = writeCommand(server, words)
		default:
			_, err = io.WriteString(client, reply)
		}
		if err != nil {
			return
		}
	}
}

// scriptCall is the command and the operation of a call, "" of anything else.
func scriptCall(words []string) string {
	name := strings.ToUpper(words[0])
	if name != "EVAL" && name != "EVALSHA" {
		return ""
	}
	keys, err := strconv.Atoi(words[2])
	if err != nil {
		return name
	}
	return name + " " + words[3+keys]
}

// readCommand reads an array of bulk strings.
func readCommand(in *bufio.Reader) ([]string, error) {
	count, err := readLength(in, '*')
	if err != nil {
		return nil, err
	}
	words := make([]string, count)
	for i := range words {
		size, err := readLength(in, '$')
		if err != nil {
			return nil, err
		}
		word := make([]byte, size+len("\r\n"))
		if _, err := io.ReadFull(in, word); err != nil {
			return nil, err
		}
		words[i] = string(word[:size])
	}
	return words, nil
}

func readLength(in *bufio.Reader, kind byte) (int, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return 0, err
	}
	if line[0] != kind {
		return 0, fmt.Errorf("got %q, want a length after %c", line, kind)
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}

func writeCommand(out io.Writer, words []string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(words))
	for _, word := range words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(word), word)
	}
	_, err := io.WriteString(out, b.String())
	return err
}
