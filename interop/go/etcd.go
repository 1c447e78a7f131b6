package main

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// The Mutex of etcd's own package, each in a session of its own: within one session it would let itself in again.
func withEtcd(ctx context.Context, address string) (locker, probe, error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints:   []string{"http://" + address},
		DialTimeout: 10 * time.Second,
	})
	if err != nil {
		return nil, nil, err
	}
	lock := func(ctx context.Context, name string, wait, ttl time.Duration) (hold, error) {
		// A session's lease has whole seconds.
		seconds := int((ttl + time.Second - 1) / time.Second)
		session, err := concurrency.NewSession(client, concurrency.WithTTL(seconds))
		if err != nil {
			return hold{}, err
		}
		mutex := concurrency.NewMutex(session, name)
		if wait > 0 {
			limited, cancel := context.WithTimeout(ctx, wait)
			defer cancel()
			err = mutex.Lock(limited)
		} else {
			err = mutex.TryLock(ctx)
		}
		if err != nil {
			session.Close()
			if errors.Is(err, concurrency.ErrLocked) || errors.Is(err, context.DeadlineExceeded) {
				return hold{}, errBusy
			}
			return hold{}, err
		}
		return hold{mutex.Key(), func(ctx context.Context) (bool, error) {
			defer session.Close()
			// The package does not tell whether it deleted anything.
			found, err := client.Get(ctx, mutex.Key(), clientv3.WithCountOnly())
			if err != nil || found.Count == 0 {
				return false, err
			}
			return true, mutex.Unlock(ctx)
		}}, nil
	}
	locked := func(ctx context.Context, name string) (bool, error) {
		found, err := client.Get(ctx, name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return false, err
		}
		return found.Count > 0, nil
	}
	_, err = locked(ctx, "ready")
	return lock, locked, err
}
