// Command authorizer is an external authorizer for tests. It serves Envoy's protocol with Envoy's own Go module, and evaluates a
// policy in Rego, like OPA's plugin for Envoy, which consists of the same modules.
//
//	authorizer ADDRESS POLICY.rego    permits requests for which data.envoy.authz.allow is true
//
// The input is the request in protobuf's JSON. The result is a boolean, or an object with allowed, headers, body, http_status and
// response_headers_to_add, as the plugin's documentation describes.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"os"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	auth "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/open-policy-agent/opa/v1/rego"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
)

type server struct {
	auth.UnimplementedAuthorizationServer
	query rego.PreparedEvalQuery
}

type result struct {
	Allowed              bool              `json:"allowed"`
	Headers              map[string]string `json:"headers"`
	Body                 string            `json:"body"`
	HTTPStatus           int32             `json:"http_status"`
	ResponseHeadersToAdd map[string]string `json:"response_headers_to_add"`
}

func (s *server) Check(ctx context.Context, request *auth.CheckRequest) (*auth.CheckResponse, error) {
	text, err := protojson.Marshal(request)
	if err != nil {
		return nil, err
	}
	var input any
	if err := json.Unmarshal(text, &input); err != nil {
		return nil, err
	}
	results, err := s.query.Eval(ctx, rego.EvalInput(input))
	if err != nil {
		return nil, err
	}
	var decided result
	if len(results) > 0 {
		switch value := results[0].Expressions[0].Value.(type) {
		case bool:
			decided.Allowed = value
		default:
			text, err := json.Marshal(value)
			if err != nil {
				return nil, err
			}
			if err := json.Unmarshal(text, &decided); err != nil {
				return nil, err
			}
		}
	}
	if decided.Allowed {
		return &auth.CheckResponse{
			Status: &status.Status{Code: int32(codes.OK)},
			HttpResponse: &auth.CheckResponse_OkResponse{OkResponse: &auth.OkHttpResponse{
				Headers:              options(decided.Headers),
				ResponseHeadersToAdd: options(decided.ResponseHeadersToAdd),
			}},
		}, nil
	}
	if decided.HTTPStatus == 0 {
		decided.HTTPStatus = 403
	}
	return &auth.CheckResponse{
		Status: &status.Status{Code: int32(codes.PermissionDenied)},
		HttpResponse: &auth.CheckResponse_DeniedResponse{DeniedResponse: &auth.DeniedHttpResponse{
			Status:  &typev3.HttpStatus{Code: typev3.StatusCode(decided.HTTPStatus)},
			Headers: options(decided.Headers),
			Body:    decided.Body,
		}},
	}, nil
}

func options(headers map[string]string) []*core.HeaderValueOption {
	var all []*core.HeaderValueOption
	for name, value := range headers {
		all = append(all, &core.HeaderValueOption{Header: &core.HeaderValue{Key: name, Value: value}})
	}
	return all
}

func run(address, policy string) error {
	text, err := os.ReadFile(policy)
	if err != nil {
		return err
	}
	query, err := rego.New(rego.Query("data.envoy.authz.allow"), rego.Module(policy, string(text))).
		PrepareForEval(context.Background())
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	serving := grpc.NewServer()
	auth.RegisterAuthorizationServer(serving, &server{query: query})
	return serving.Serve(listener)
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: authorizer ADDRESS POLICY.rego")
		os.Exit(64)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}
