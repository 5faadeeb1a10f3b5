package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Faults is a gRPC proxy for each member of a [Network]. It fails some of the calls, before or after they take effect. A
// watch fails when it begins.
type Faults struct {
	servers   []*grpc.Server
	upstream  []*grpc.ClientConn
	endpoints []string
	running   sync.WaitGroup

	mu      sync.Mutex
	random  *rand.Rand
	rate    float64
	failing int // transactions still to fail, see FailTransactions
	counts  FaultCounts
	reads   Reads
}

// FaultCounts counts the calls that passed, and the calls that failed before and after they took effect.
type FaultCounts struct{ Passed, Before, After int }

// Faults returns proxies in front of a network. They fail the fraction rate of all calls. seed determines the random
// sequence for these decisions. Stop the proxies with [Faults.Close]. They connect to the members as an etcd user, because
// a proxy cannot present the certificate of its client.
func (c *Cluster) Faults(n *Network, user string, seed uint64, rate float64) (*Faults, error) {
	config, err := c.TLS(user)
	if err != nil {
		return nil, err
	}
	serving, err := tls.LoadX509KeyPair(c.file("server.crt"), c.file("server.key"))
	if err != nil {
		return nil, err
	}
	f := &Faults{random: rand.New(rand.NewPCG(seed, seed)), rate: rate}
	for _, endpoint := range n.Endpoints() {
		conn, err := grpc.NewClient("passthrough:///"+strings.TrimPrefix(endpoint, "https://"),
			grpc.WithTransportCredentials(credentials.NewTLS(config)),
			// Like etcd's client, close connections to a member that does not respond.
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second, PermitWithoutStream: true}),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{}), grpc.MaxCallRecvMsgSize(64<<20)))
		if err != nil {
			f.Close()
			return nil, err
		}
		f.upstream = append(f.upstream, conn)
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			f.Close()
			return nil, err
		}
		server := grpc.NewServer(grpc.ForceServerCodecV2(raw{}), grpc.MaxRecvMsgSize(64<<20),
			grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{serving}, MinVersion: tls.VersionTLS12})),
			grpc.UnknownServiceHandler(func(_ any, client grpc.ServerStream) error { return f.forward(client, conn) }))
		f.servers = append(f.servers, server)
		f.endpoints = append(f.endpoints, "https://"+listener.Addr().String())
		f.running.Go(func() { _ = server.Serve(listener) }) // returns after Stop
	}
	return f, nil
}

// Endpoints returns the URLs of the proxies.
func (f *Faults) Endpoints() []string { return f.endpoints }

// FailTransactions fails the next n transactions before they take effect, as if their member stopped.
func (f *Faults) FailTransactions(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failing = n
}

// Counts returns the counts so far.
func (f *Faults) Counts() FaultCounts {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts
}

// Close stops the proxies.
func (f *Faults) Close() {
	for _, s := range f.servers {
		s.Stop()
	}
	for _, c := range f.upstream {
		_ = c.Close()
	}
	f.running.Wait()
}

// failures are errors that an etcd client gets when a member or its network fails. After each, the client does not know
// whether the call took effect.
var failures = []error{
	rpctypes.ErrGRPCTimeout, rpctypes.ErrGRPCLeaderChanged, rpctypes.ErrGRPCTimeoutDueToConnectionLost,
	status.Error(codes.Unavailable, "injected: transport is closing"),
	status.Error(codes.Unavailable, "injected: connection reset by peer"),
	status.Error(codes.Unknown, "injected: stream terminated"),
}

type fault struct {
	before, after bool
	err           error
}

func (f *Faults) draw(method string) fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failing > 0 && strings.HasSuffix(method, "/Txn") {
		f.failing--
		f.counts.Before++
		return fault{before: true, err: status.Error(codes.Unavailable, "injected: transport is closing")}
	}
	if f.random.Float64() >= f.rate {
		f.counts.Passed++
		return fault{}
	}
	err := failures[f.random.IntN(len(failures))]
	if f.random.IntN(2) == 0 {
		f.counts.Before++
		return fault{before: true, err: err}
	}
	f.counts.After++
	return fault{after: true, err: err}
}

// forward passes one call on to a member.
func (f *Faults) forward(client grpc.ServerStream, member *grpc.ClientConn) error {
	method, found := grpc.MethodFromServerStream(client)
	if !found {
		return status.Error(codes.Internal, "no method")
	}
	fault := f.draw(method)
	if fault.before {
		return fault.err
	}
	ctx, cancel := context.WithCancel(client.Context())
	defer cancel()
	if fault.after {
		// The call takes effect even if the client gives up.
		ctx = context.WithoutCancel(client.Context())
	}
	if given, found := metadata.FromIncomingContext(ctx); found {
		ctx = metadata.NewOutgoingContext(ctx, given.Copy())
	}
	upstream, err := member.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return err
	}
	if streams := strings.HasSuffix(method, "/Watch") || strings.HasSuffix(method, "/LeaseKeepAlive"); streams && fault.after {
		return fault.err
	}
	go func() {
		for {
			var message frame
			if err := client.RecvMsg(&message); err != nil {
				if errors.Is(err, io.EOF) {
					_ = upstream.CloseSend()
				}
				return
			}
			f.requested(method, message.data.Materialize())
			if err := upstream.SendMsg(&message); err != nil {
				return // the other direction reports why
			}
		}
	}()
	for {
		var message frame
		err := upstream.RecvMsg(&message)
		switch {
		case errors.Is(err, io.EOF):
			client.SetTrailer(upstream.Trailer())
			if fault.after {
				return fault.err
			}
			return nil
		case err != nil:
			return err
		case fault.after: // drop the response
		default:
			f.responded(method, message.data.Materialize())
			if err := client.SendMsg(&message); err != nil {
				return err
			}
		}
	}
}

// A frame is a message that the proxy does not decode.
type frame struct{ data mem.BufferSlice }

// raw is the codec of frames.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	message, ok := v.(*frame)
	if !ok {
		return nil, fmt.Errorf("message is %T, want a frame", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(message.data.Materialize())}, nil
}

func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	message, ok := v.(*frame)
	if !ok {
		return fmt.Errorf("message is %T, want a frame", v)
	}
	message.data = mem.BufferSlice{mem.SliceBuffer(data.Materialize())}
	return nil
}
