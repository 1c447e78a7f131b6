// The locks of redsync, redislock, etcd's concurrency package and go-zookeeper/zk, and the elections of etcd's
// concurrency package, told what to do on stdin.
// The orders are in ../README.md.
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// Between two attempts.
const pause = 20 * time.Millisecond

var errBusy = errors.New("busy")

// A hold that can be given back.
type hold struct {
	value  string
	unlock func(context.Context) (bool, error)
}

// One of the clients: waits so long, with a lease of ttl.
type locker func(ctx context.Context, name string, wait, ttl time.Duration) (hold, error)

// Whether anybody has that lock.
type probe func(ctx context.Context, name string) (bool, error)

func withRedsync(client *redis.Client) locker {
	rs := redsync.New(goredis.NewPool(client))
	return func(ctx context.Context, name string, wait, ttl time.Duration) (hold, error) {
		mutex := rs.NewMutex(name,
			redsync.WithExpiry(ttl),
			redsync.WithTries(1+int(wait/pause)),
			redsync.WithRetryDelay(pause))
		var taken *redsync.ErrTaken
		err := mutex.LockContext(ctx)
		if errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) {
			return hold{}, errBusy
		} else if err != nil {
			return hold{}, err
		}
		return hold{mutex.Value(), func(ctx context.Context) (bool, error) {
			released, err := mutex.UnlockContext(ctx)
			if errors.As(err, &taken) {
				return false, nil
			}
			return released, err
		}}, nil
	}
}

func withRedislock(client *redis.Client) locker {
	locks := redislock.New(client)
	return func(ctx context.Context, name string, wait, ttl time.Duration) (hold, error) {
		options := &redislock.Options{RetryStrategy: redislock.NoRetry()}
		if wait > 0 {
			options.RetryStrategy = redislock.LinearBackoff(pause)
			limited, cancel := context.WithTimeout(ctx, wait)
			defer cancel()
			ctx = limited
		}
		lock, err := locks.Obtain(ctx, name, ttl, options)
		if errors.Is(err, redislock.ErrNotObtained) || errors.Is(err, context.DeadlineExceeded) {
			return hold{}, errBusy
		} else if err != nil {
			return hold{}, err
		}
		return hold{lock.Token() + lock.Metadata(), func(ctx context.Context) (bool, error) {
			err := lock.Release(ctx)
			if errors.Is(err, redislock.ErrLockNotHeld) {
				return false, nil
			}
			return err == nil, err
		}}, nil
	}
}

type driver struct {
	lock   locker
	locked probe
	held   map[string][]hold
	// Of a client that has elections and no locks.
	elections *elections
}

func (d *driver) obey(ctx context.Context, order []string) (string, error) {
	if d.elections != nil {
		return d.elections.obey(ctx, order)
	}
	switch {
	case order[0] == "try" && len(order) == 3:
		return d.acquire(ctx, order[1], "0", order[2])
	case order[0] == "lock" && len(order) == 4:
		return d.acquire(ctx, order[1], order[2], order[3])
	case order[0] == "unlock" && len(order) == 2:
		holds := d.held[order[1]]
		if len(holds) == 0 {
			return "not-held", nil
		}
		d.held[order[1]] = holds[:len(holds)-1]
		released, err := holds[len(holds)-1].unlock(ctx)
		if err != nil || released {
			return "released", err
		}
		return "not-held", nil
	case order[0] == "locked" && len(order) == 2:
		locked, err := d.locked(ctx, order[1])
		if locked {
			return "yes", err
		}
		return "no", err
	case order[0] == "count" && len(order) == 6:
		return d.count(ctx, order[1], order[2], order[3], order[4], order[5])
	}
	return "", fmt.Errorf("unknown order %q", order)
}

func (d *driver) acquire(ctx context.Context, name, wait, ttl string) (string, error) {
	waitTime, err := milliseconds(wait)
	if err != nil {
		return "", err
	}
	lease, err := milliseconds(ttl)
	if err != nil {
		return "", err
	}
	taken, err := d.lock(ctx, name, waitTime, lease)
	if errors.Is(err, errBusy) {
		return "busy", nil
	} else if err != nil {
		return "", err
	}
	d.held[name] = append(d.held[name], taken)
	return "held\t" + hex.EncodeToString([]byte(taken.value)), nil
}

func (d *driver) count(ctx context.Context, name, tasks, n, file, ttl string) (string, error) {
	lease, err := milliseconds(ttl)
	if err != nil {
		return "", err
	}
	workers, err := strconv.Atoi(tasks)
	if err != nil {
		return "", err
	}
	times, err := strconv.Atoi(n)
	if err != nil {
		return "", err
	}
	var group sync.WaitGroup
	failures := make(chan error, workers)
	for i := 0; i < workers; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for j := 0; j < times; j++ {
				taken, err := d.lock(ctx, name, 10*time.Minute, lease)
				if err == nil {
					err = addOne(file)
				}
				if err == nil {
					_, err = taken.unlock(ctx)
				}
				if err != nil {
					failures <- err
					return
				}
				time.Sleep(5 * time.Millisecond)
			}
		}()
	}
	group.Wait()
	close(failures)
	return "counted", <-failures
}

// Reads, lets others run, writes: loses counts unless it is alone.
func addOne(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	number, _, _ := strings.Cut(string(text), " ")
	value, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return err
	}
	time.Sleep(200 * time.Microsecond)
	return os.WriteFile(file, []byte(fmt.Sprintf("%020d go\n", value+1)), 0o600)
}

func milliseconds(text string) (time.Duration, error) {
	number, err := strconv.ParseInt(text, 10, 64)
	return time.Duration(number) * time.Millisecond, err
}

func version(module string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dependency := range info.Deps {
			if dependency.Path == module {
				return dependency.Version
			}
		}
	}
	return "of unknown version"
}

// The client of that name, connected, and what it calls itself.
func connect(ctx context.Context, address, client string, options []string) (*driver, string, error) {
	d := driver{held: map[string][]hold{}}
	var err error
	module := ""
	switch client {
	case "redsync", "redislock":
		connection := redis.NewClient(&redis.Options{Addr: address})
		d.locked = func(ctx context.Context, name string) (bool, error) {
			count, err := connection.Exists(ctx, name).Result()
			return count > 0, err
		}
		module, d.lock = "github.com/bsm/redislock", withRedislock(connection)
		if client == "redsync" {
			module, d.lock = "github.com/go-redsync/redsync/v4", withRedsync(connection)
		}
		err = connection.Ping(ctx).Err()
	case "etcd":
		module = "go.etcd.io/etcd/client/v3"
		d.lock, d.locked, err = withEtcd(ctx, address)
	case "etcd-election":
		module = "go.etcd.io/etcd/client/v3"
		d.elections, err = withElections(ctx, address)
	case "go-zk":
		module = "github.com/go-zookeeper/zk"
		timeout := sessionTimeout
		if len(options) > 0 {
			timeout, err = milliseconds(options[0])
		}
		if err == nil {
			d.lock, d.locked, err = withGoZk(address, timeout)
		}
	default:
		err = fmt.Errorf("there is no client %q", client)
	}
	return &d, client + " " + version(module), err
}

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "driver HOST PORT redsync|redislock|etcd|etcd-election|go-zk [SESSION]")
		os.Exit(2)
	}
	ctx := context.Background()
	d, name, err := connect(ctx, os.Args[1]+":"+os.Args[2], os.Args[3], os.Args[4:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("ready\t" + name)
	for orders := bufio.NewScanner(os.Stdin); orders.Scan() && orders.Text() != "quit"; {
		answer, err := d.obey(ctx, strings.Split(orders.Text(), "\t"))
		if err != nil {
			answer = "error\t" + strings.ReplaceAll(err.Error(), "\n", " ")
		}
		fmt.Println(answer)
	}
}
