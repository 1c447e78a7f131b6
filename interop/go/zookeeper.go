package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
)

// As long as the driver's other orders may take.
const sessionTimeout = 10 * time.Second

// It would tell of every connection, where the answers are read.
type silence struct{}

func (silence) Printf(string, ...interface{}) {}

// The Lock of go-zookeeper/zk, each in a session of its own: it knows neither a try nor a limit of time, and
// nothing but the end of the session ends its waiting.
func withGoZk(address string, timeout time.Duration) (locker, probe, error) {
	open := func() (*zk.Conn, error) {
		conn, _, err := zk.Connect([]string{address}, timeout, zk.WithLogger(silence{}))
		return conn, err
	}
	watcher, err := open()
	if err != nil {
		return nil, nil, err
	}
	lock := func(ctx context.Context, name string, wait, _ time.Duration) (hold, error) {
		conn, err := open()
		if err != nil {
			return hold{}, err
		}
		path := "/" + name
		lock := zk.NewLock(conn, path, zk.WorldACL(zk.PermAll))
		done := make(chan error, 1)
		go func() { done <- lock.Lock() }()
		for until := time.Now().Add(wait); ; {
			select {
			case err = <-done:
				if err != nil {
					conn.Close()
					return hold{}, err
				}
				node, _, err := place(conn, path)
				return hold{node, func(context.Context) (bool, error) {
					defer conn.Close()
					err := lock.Unlock()
					if errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrSessionExpired) {
						return false, nil
					}
					return err == nil, err
				}}, err
			case <-time.After(time.Millisecond):
			}
			if wait > 0 {
				if time.Now().After(until) {
					conn.Close()
					return hold{}, errBusy
				}
			} else if node, first, err := place(conn, path); err != nil {
				conn.Close()
				return hold{}, err
			} else if node != "" && !first {
				conn.Close()
				return hold{}, errBusy
			}
		}
	}
	locked := func(_ context.Context, name string) (bool, error) {
		children, _, err := watcher.Children("/" + name)
		if errors.Is(err, zk.ErrNoNode) {
			return false, nil
		}
		return len(children) > 0, err
	}
	_, err = locked(context.Background(), "ready")
	return lock, locked, err
}

// The node of this session in the directory, if there is one, and whether no other child has a smaller number.
func place(conn *zk.Conn, path string) (string, bool, error) {
	children, _, err := conn.Children(path)
	if errors.Is(err, zk.ErrNoNode) {
		return "", false, nil
	} else if err != nil {
		return "", false, err
	}
	number := func(child string) string { return child[strings.LastIndexAny(child, "-_")+1:] }
	for _, child := range children {
		found, stat, err := conn.Exists(path + "/" + child)
		if err != nil {
			return "", false, err
		}
		if !found || stat.EphemeralOwner != conn.SessionID() {
			continue
		}
		for _, other := range children {
			if number(other) < number(child) {
				return child, false, nil
			}
		}
		return child, true, nil
	}
	return "", false, nil
}
