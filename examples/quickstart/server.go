package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
)

// An embedded is a miniredis in this process, whose clock stands still until it is moved.
type embedded struct {
	client rueidis.Client
	server *miniredis.Miniredis
	now    time.Time
}

func startEmbedded() (*embedded, error) {
	server, err := miniredis.Run()
	if err != nil {
		return nil, fmt.Errorf("starting miniredis: %w", err)
	}
	client, err := connect(rueidis.ClientOption{InitAddress: []string{server.Addr()}})
	if err != nil {
		server.Close()
		return nil, err
	}
	return &embedded{client: client, server: server}, nil
}

func (e *embedded) close() {
	e.client.Close()
	e.server.Close()
}

// moveTo sets the time, and lets the keys age by as much: miniredis keeps their time to live apart from its clock.
func (e *embedded) moveTo(_ context.Context, at time.Time) error {
	e.server.SetTime(at)
	if !e.now.IsZero() {
		e.server.FastForward(at.Sub(e.now))
	}
	e.now = at
	return nil
}

// redisOption reads the address of a server: host:port, or a URL such as redis://user:password@host:port/0.
func redisOption(addr string) (rueidis.ClientOption, error) {
	if strings.Contains(addr, "://") {
		option, err := rueidis.ParseURL(addr)
		var bad *url.Error
		if errors.As(err, &bad) {
			err = bad.Err // without the URL, which may hold a password
		}
		return option, err
	}
	return rueidis.ClientOption{InitAddress: strings.Split(addr, ",")}, nil
}

func connect(option rueidis.ClientOption) (rueidis.Client, error) {
	option.DisableCache = true // no reply is ever read twice, and miniredis can't track keys
	return rueidis.NewClient(option)
}
