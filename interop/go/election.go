package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// The seconds of a session that only looks.
const lookTTL = 60

// The Election of etcd's own package; each candidate has a session of its own.
type elections struct {
	client *clientv3.Client
	stands map[string]candidacy
}

type candidacy struct {
	session  *concurrency.Session
	election *concurrency.Election
}

func withElections(ctx context.Context, address string) (*elections, error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints:   []string{"http://" + address},
		DialTimeout: 10 * time.Second,
	})
	if err != nil {
		return nil, err
	}
	_, err = client.Get(ctx, "ready", clientv3.WithCountOnly())
	return &elections{client, map[string]candidacy{}}, err
}

func (e *elections) candidacy(name string, seconds int) (candidacy, error) {
	session, err := concurrency.NewSession(e.client, concurrency.WithTTL(seconds))
	if err != nil {
		return candidacy{}, err
	}
	return candidacy{session, concurrency.NewElection(session, name)}, nil
}

func (e *elections) obey(ctx context.Context, order []string) (string, error) {
	switch {
	case order[0] == "campaign" && len(order) == 4:
		return e.campaign(ctx, order[1], order[2], order[3])
	case order[0] == "proclaim" && len(order) == 3:
		return "proclaimed", e.stands[order[1]].election.Proclaim(ctx, order[2])
	case order[0] == "resign" && len(order) == 2:
		stands := e.stands[order[1]]
		delete(e.stands, order[1])
		defer stands.session.Close()
		return "resigned", stands.election.Resign(ctx)
	case order[0] == "leader" && len(order) == 2:
		return e.leader(ctx, order[1])
	case order[0] == "observe" && len(order) == 2:
		return e.observe(ctx, order[1])
	}
	return "", fmt.Errorf("unknown order %q", order)
}

func (e *elections) campaign(ctx context.Context, name, value, ttl string) (string, error) {
	lease, err := milliseconds(ttl)
	if err != nil {
		return "", err
	}
	stands, err := e.candidacy(name, int((lease+time.Second-1)/time.Second))
	if err != nil {
		return "", err
	}
	if err = stands.election.Campaign(ctx, value); err != nil {
		stands.session.Close()
		return "", err
	}
	e.stands[name] = stands
	return "elected\t" + hex.EncodeToString([]byte(stands.election.Key())), nil
}

func (e *elections) leader(ctx context.Context, name string) (string, error) {
	looks, err := e.candidacy(name, lookTTL)
	if err != nil {
		return "", err
	}
	defer looks.session.Close()
	found, err := looks.election.Leader(ctx)
	if errors.Is(err, concurrency.ErrElectionNoLeader) {
		return "nobody", nil
	} else if err != nil {
		return "", err
	}
	return "leader\t" + string(found.Kvs[0].Value), nil
}

// Prints a line for each leader and each value, for as long as the driver lives.
func (e *elections) observe(ctx context.Context, name string) (string, error) {
	looks, err := e.candidacy(name, lookTTL)
	if err != nil {
		return "", err
	}
	defer looks.session.Close()
	fmt.Println("observing")
	for found := range looks.election.Observe(ctx) {
		fmt.Println("observed\t" + string(found.Kvs[0].Value))
	}
	return "ended", nil
}
