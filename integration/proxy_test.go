package integration

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// proxy stands between clients and a server, on a port of this machine, and can lose what passes.
type proxy struct {
	addr     string
	listener net.Listener
	server   string
	requests atomic.Bool // lose what the clients send
	replies  atomic.Bool // lose what the server answers

	mu    sync.Mutex
	conns []net.Conn
	wg    sync.WaitGroup
}

// newProxy starts a proxy, stopped when the test ends.
func newProxy(t testing.TB, server string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{addr: listener.Addr().String(), listener: listener, server: server}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil { // the server is down, so the client must not think that it is up
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, client, server)
		p.mu.Unlock()
		p.wg.Go(func() { pass(server, client, &p.requests) })
		p.wg.Go(func() { pass(client, server, &p.replies) })
	}
}

// cut breaks every connection.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

// pass copies until an end closes, but for what is lost.
func pass(to, from net.Conn, lost *atomic.Bool) {
	defer func() {
		_ = to.Close()
		_ = from.Close()
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && !lost.Load() {
			if _, werr := to.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
