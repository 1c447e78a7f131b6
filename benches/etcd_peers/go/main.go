// The Mutex of etcd's concurrency package in the scenarios `free` and `contend`; ../README.md has the arguments.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"golang.org/x/sys/unix"
)

const (
	ttl    = 30
	warmUp = 200 * time.Millisecond
)

// On the clock that all processes share.
func now() time.Duration { return clock(unix.CLOCK_MONOTONIC) }

func clock(id int32) time.Duration {
	var value unix.Timespec
	check(unix.ClockGettime(id, &value))
	return time.Duration(value.Nano())
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "go:", err)
		os.Exit(1)
	}
}

func number(text string) float64 {
	value, err := strconv.ParseFloat(text, 64)
	check(err)
	return value
}

func seconds(text string) time.Duration { return time.Duration(number(text) * float64(time.Second)) }

// A worker's mutex, in a session of its own: within one session it would let itself in again.
func mutex(client *clientv3.Client, name string) *concurrency.Mutex {
	session, err := concurrency.NewSession(client, concurrency.WithTTL(ttl))
	check(err)
	return concurrency.NewMutex(session, "go/"+name)
}

func free(ctx context.Context, client *clientv3.Client, workers int, length time.Duration) interface{} {
	locks := make([]*concurrency.Mutex, workers)
	for i := range locks {
		locks[i] = mutex(client, fmt.Sprintf("free-%d", i))
	}
	begin := now() + warmUp
	end := begin + length
	var group sync.WaitGroup
	var guard sync.Mutex
	var times []float64
	for _, lock := range locks {
		lock := lock
		group.Add(1)
		go func() {
			defer group.Done()
			var own []float64
			for began := now(); began < end; began = now() {
				check(lock.Lock(ctx))
				check(lock.Unlock(ctx))
				if began >= begin {
					own = append(own, float64(now()-began)/1000)
				}
			}
			guard.Lock()
			times = append(times, own...)
			guard.Unlock()
		}()
	}
	time.Sleep(begin - now())
	before := clock(unix.CLOCK_PROCESS_CPUTIME_ID)
	group.Wait()
	cpu := clock(unix.CLOCK_PROCESS_CPUTIME_ID) - before
	sort.Float64s(times)
	at := func(share float64) float64 { return times[int(float64(len(times)-1)*share)] }
	return map[string]float64{
		"pairs":  float64(len(times)),
		"p50_us": at(0.5),
		"p99_us": at(0.99),
		"cpu_us": float64(cpu) / 1000 / float64(len(times)),
	}
}

func contend(ctx context.Context, client *clientv3.Client, workers int, begin, length, work time.Duration, file, name string) {
	locks := make([]*concurrency.Mutex, workers)
	for i := range locks {
		locks[i] = mutex(client, name)
	}
	end := begin + length
	var guard sync.Mutex
	var lines strings.Builder
	time.Sleep(begin - now())
	for i, lock := range locks {
		i, lock := i, lock
		go func() {
			for now() < end {
				check(lock.Lock(ctx))
				acquired := now()
				time.Sleep(work)
				released := now()
				if released <= end {
					guard.Lock()
					fmt.Fprintf(&lines, "%d %d %d\n", i, acquired, released)
					guard.Unlock()
				}
				check(lock.Unlock(ctx))
			}
		}()
	}
	time.Sleep(end - now())
	guard.Lock() // whoever still waits is left behind
	check(os.WriteFile(file, []byte(lines.String()), 0o600))
}

func main() {
	ctx := context.Background()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://127.0.0.1:" + os.Args[1]}})
	check(err)
	rest := os.Args[3:]
	workers := int(number(rest[0]))
	var answer interface{} = struct{}{}
	switch os.Args[2] {
	case "free":
		answer = free(ctx, client, workers, seconds(rest[1]))
	case "contend":
		begin, err := strconv.ParseInt(rest[1], 10, 64)
		check(err)
		work := time.Duration(number(rest[3])) * time.Microsecond
		contend(ctx, client, workers, time.Duration(begin), seconds(rest[2]), work, rest[4], rest[5])
	default:
		check(fmt.Errorf("there is no scenario %q", os.Args[2]))
	}
	check(json.NewEncoder(os.Stdout).Encode(answer))
}
