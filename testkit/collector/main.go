// Command collector receives spans and log records by OTLP over gRPC and HTTP, with the OpenTelemetry collector's own receiver. It
// appends each batch to a file as one line of OTLP's JSON, which tests read.
//
//	collector GRPC-ADDRESS HTTP-ADDRESS FILE
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/configgrpc"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/confignet"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: collector GRPC-ADDRESS HTTP-ADDRESS FILE")
		os.Exit(64)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		log.Fatal(err)
	}
}

func run(grpcAddress, httpAddress, path string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer file.Close()
	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig().(*otlpreceiver.Config)
	config.Protocols.GRPC = configoptional.Some(configgrpc.ServerConfig{
		NetAddr: confignet.AddrConfig{Endpoint: grpcAddress, Transport: confignet.TransportTypeTCP},
	})
	config.Protocols.HTTP = configoptional.Some(otlpreceiver.HTTPConfig{
		ServerConfig: confighttp.ServerConfig{
			NetAddr: confignet.AddrConfig{Endpoint: httpAddress, Transport: confignet.TransportTypeTCP},
		},
		TracesURLPath: "/v1/traces",
		LogsURLPath:   "/v1/logs",
	})
	var writing sync.Mutex
	write := func(line []byte, err error) error {
		if err != nil {
			return err
		}
		writing.Lock()
		defer writing.Unlock()
		_, err = file.Write(append(line, '\n'))
		return err
	}
	spans, err := consumer.NewTraces(func(_ context.Context, traces ptrace.Traces) error {
		return write((&ptrace.JSONMarshaler{}).MarshalTraces(traces))
	})
	if err != nil {
		return err
	}
	records, err := consumer.NewLogs(func(_ context.Context, logs plog.Logs) error {
		return write((&plog.JSONMarshaler{}).MarshalLogs(logs))
	})
	if err != nil {
		return err
	}
	settings := receiver.Settings{
		ID:                component.NewID(factory.Type()),
		TelemetrySettings: componenttest.NewNopTelemetrySettings(),
		BuildInfo:         component.NewDefaultBuildInfo(),
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	spanReceiver, err := factory.CreateTraces(ctx, settings, config, spans)
	if err != nil {
		return err
	}
	recordReceiver, err := factory.CreateLogs(ctx, settings, config, records)
	if err != nil {
		return err
	}
	// Both receivers are one server, as long as their configurations are equal.
	for _, taker := range []component.Component{spanReceiver, recordReceiver} {
		if err := taker.Start(ctx, componenttest.NewNopHost()); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return errors.Join(spanReceiver.Shutdown(context.Background()), recordReceiver.Shutdown(context.Background()))
}
