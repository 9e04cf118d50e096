// Command kafka is a Kafka broker that counts requests by their API, and a client. Both use franz-go's modules.
//
//	kafka serve PORT COUNTS            serves the counts as JSON at http://COUNTS/
//	kafka call SERVER TOPIC RECORDS    produces RECORDS records, one after another, and consumes them
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// How long the client may take.
const limit = time.Minute

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	switch {
	case len(arguments) == 3 && arguments[0] == "serve":
		return serve(arguments[1], arguments[2])
	case len(arguments) == 4 && arguments[0] == "call":
		records, err := strconv.Atoi(arguments[3])
		if err != nil {
			return err
		}
		return call(arguments[1], arguments[2], records)
	default:
		return fmt.Errorf("usage: kafka serve PORT COUNTS, or kafka call SERVER TOPIC RECORDS")
	}
}

func serve(port, at string) error {
	listen := func(network, _ string) (net.Listener, error) {
		return net.Listen(network, ":"+port)
	}
	broker, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.ListenFn(listen), kfake.AllowAutoTopicCreation())
	if err != nil {
		return err
	}
	defer broker.Close()
	var lock sync.Mutex
	counts := map[string]int{}
	broker.Control(func(request kmsg.Request) (kmsg.Response, error, bool) {
		lock.Lock()
		defer lock.Unlock()
		counts[kmsg.NameForKey(request.Key())]++
		return nil, nil, false
	})
	return http.ListenAndServe(at, http.HandlerFunc(func(writer http.ResponseWriter, _ *http.Request) {
		lock.Lock()
		defer lock.Unlock()
		_ = json.NewEncoder(writer).Encode(counts)
	}))
}

func call(server, topic string, records int) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(server),
		// The broker announces the address on which it listens, to which a client cannot connect.
		kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, server)
		}),
		kgo.AllowAutoTopicCreation(),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(100*time.Millisecond),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	for range records {
		record := &kgo.Record{Topic: topic, Value: []byte("an order")}
		if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
			return err
		}
	}
	for consumed := 0; consumed < records; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		consumed += fetches.NumRecords()
	}
	return nil
}
