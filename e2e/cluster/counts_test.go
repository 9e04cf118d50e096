package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
)

// answeredAfter is how many requests of each kind must be answered after an event before the event
// counts as over.
const answeredAfter = 3 * perSecond

// answerLimit is longer than ./load waits for a response (load/ask.go).
const answerLimit = 25 * time.Second

// count holds the outcomes of the requests of one kind, as ./load counts them.
type count struct {
	Answered int
	Failed   map[string]int
	// The newest failures.
	Examples []example
}

// example is a request that failed: when, why, and how far it had come.
type example struct {
	At   time.Time
	Text string
}

// counts are the outcomes of one client, by kind of request.
type counts map[string]count

// underLoad calls what while all clients send requests, and expects every request to be answered.
func (m mesh) underLoad(what func()) {
	m.t.Helper()
	m.allAnswered(m.counts())
	before, begin := m.counts(), time.Now()
	what()
	m.allAnswered(m.counts())
	total, failed := 0, 0
	for who, now := range m.counts() {
		for _, kind := range slices.Sorted(maps.Keys(now)) {
			after, was := now[kind], before[who][kind]
			total += after.Answered - was.Answered
			for _, reason := range slices.Sorted(maps.Keys(after.Failed)) {
				if more := after.Failed[reason] - was.Failed[reason]; more > 0 {
					failed += more
					m.t.Errorf("%s, %s: %d failed: %s", who, kind, more, reason)
				}
			}
			for _, one := range after.Examples {
				if one.At.After(begin) {
					m.t.Logf("%s, %s: %s %s", who, kind, one.At.UTC().Format("15:04:05.000"), one.Text)
				}
			}
		}
	}
	m.t.Logf("%d requests were answered, %d were not", total, failed)
	if failed > 0 {
		m.t.Log(m.evidence())
	}
}

// allAnswered waits until more requests of each kind have been answered.
func (m mesh) allAnswered(since map[string]counts) {
	m.t.Helper()
	m.until("all clients are answered", func() error {
		for who, now := range m.counts() {
			for kind, one := range now {
				if more := one.Answered - since[who][kind].Answered; more < answeredAfter {
					return fmt.Errorf("%s, %s: %d answers", who, kind, more)
				}
			}
		}
		return nil
	})
}

// counts returns the outcomes of all clients.
func (m mesh) counts() map[string]counts {
	m.t.Helper()
	all := map[string]counts{}
	for _, namespace := range clients {
		text := m.output(m.t, "exec", "-n", namespace, "client", "-c", "application", "--", "/load", "counts")
		var one counts
		if err := json.Unmarshal([]byte(text), &one); err != nil {
			m.t.Fatalf("%s: %v", text, err)
		}
		all[namespace] = one
	}
	return all
}
