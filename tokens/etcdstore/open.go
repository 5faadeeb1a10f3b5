package etcdstore

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"path"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// schemaVersion is the value of the key "schema". It must change if keys, rows or their meaning change.
const schemaVersion = "3"

// DefaultPrefix is the default of [Config.Prefix].
const DefaultPrefix = "/kubejoin"

// MaxPrefix is the maximum length of a prefix, in bytes.
const MaxPrefix = 512

// A Config says how to connect to etcd. All files are PEM.
type Config struct {
	// Endpoints are URLs of members, https://HOST:PORT or http://HOST:PORT.
	Endpoints []string
	// CAFile has the CAs of the members. If it is empty, the system's CAs are trusted.
	CAFile string
	// CertFile and KeyFile are the client certificate and its key; empty means no client certificate. The Store reads them
	// for each connection, so a renewed certificate needs no restart.
	CertFile, KeyFile string
	// Prefix begins each key. Empty means [DefaultPrefix].
	Prefix string
	// NoCache makes every read ask etcd. Watch then sends no hints.
	NoCache bool
	// Logger logs outages; nil logs nothing.
	Logger *slog.Logger
}

// Check returns an error for each field that is invalid or missing. Each error names the flag for the field.
func (c Config) Check() (errs []*tokens.FieldError) {
	invalid := func(flag, format string, args ...any) {
		errs = append(errs, &tokens.FieldError{Field: flag, Err: fmt.Errorf(format, args...)})
	}
	if len(c.Endpoints) == 0 {
		invalid("etcd-servers", "none given, want URLs such as https://10.0.0.1:2379")
	}
	for _, e := range c.Endpoints {
		scheme, host, _ := strings.Cut(e, "://")
		switch {
		case scheme != "https" && scheme != "http" || host == "" || strings.ContainsAny(host, "/@?# "):
			invalid("etcd-servers", "%.200q given, want URLs such as https://10.0.0.1:2379", tokens.Redact(e))
		case scheme == "http" && (c.CAFile != "" || c.CertFile != ""):
			invalid("etcd-servers", "%.200q given, want https:// with --etcd-cafile or --etcd-certfile", e)
		case scheme != strings.SplitN(c.Endpoints[0], "://", 2)[0]:
			invalid("etcd-servers", "%.200q given, want either https:// or http:// for all members", e)
		}
	}
	if c.CertFile != "" && c.KeyFile == "" {
		invalid("etcd-certfile", "needs --etcd-keyfile, which is missing")
	}
	if c.CertFile == "" && c.KeyFile != "" {
		invalid("etcd-keyfile", "needs --etcd-certfile, which is missing")
	}
	if c.Prefix != "" && (!strings.HasPrefix(c.Prefix, "/") || path.Clean(c.Prefix) != c.Prefix || c.Prefix == "/" || len(c.Prefix) > MaxPrefix) {
		invalid("etcd-prefix", "%.200q given, want a path such as %s, of at most %d bytes", c.Prefix, DefaultPrefix, MaxPrefix)
	}
	return errs
}

func (c Config) tls() (*tls.Config, error) {
	if strings.HasPrefix(c.Endpoints[0], "http://") {
		return nil, nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		bundle, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("etcd-cafile: %w", err)
		}
		if t.RootCAs, err = pemfile.Pool(bundle); err != nil {
			return nil, fmt.Errorf("etcd-cafile: %s: %w", c.CAFile, err)
		}
	}
	if c.CertFile != "" {
		if _, err := pemfile.LoadKeyPair(c.CertFile, c.KeyFile); err != nil {
			return nil, fmt.Errorf("etcd-certfile: %w", err)
		}
		t.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := pemfile.LoadKeyPair(c.CertFile, c.KeyFile)
			return &pair, err
		}
	}
	return t, nil
}

// gRPC pings a silent connection after pingAfter, the minimum that gRPC allows. It closes the connection if there is no
// response within pingTimeout.
const (
	pingAfter   = 10 * time.Second
	pingTimeout = 3 * time.Second
)

// Open connects to etcd. It does not wait for etcd: until etcd is available, every method fails. Two programs with
// different schemas cannot use the same keys: every write of the older program fails.
//
// The caches of the store follow etcd until Close, unless NoCache is set.
func Open(ctx context.Context, c Config) (*Store, error) {
	if errs := c.Check(); len(errs) > 0 {
		return nil, errs[0]
	}
	tlsConfig, err := c.tls()
	if err != nil {
		return nil, err
	}
	log := c.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: c.Endpoints, TLS: tlsConfig, Logger: zap.NewNop(), Context: context.WithoutCancel(ctx),
		DialKeepAliveTime: pingAfter, DialKeepAliveTimeout: pingTimeout, PermitWithoutStream: true,
		MaxCallRecvMsgSize: maxMessage, MaxCallSendMsgSize: maxMessage,
	})
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	prefix := c.Prefix
	if prefix == "" {
		prefix = DefaultPrefix
	}
	s := &Store{kv: kv{client: client, servers: strings.Join(c.Endpoints, ","), prefix: prefix + "/"}, log: log}
	s.schema.Store(&schema{want: schemaVersion})
	s.Store, s.mirrors = rowstore.New(rowDB{s}), newMirrors(s)
	follow, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	if c.NoCache {
		return s, nil
	}
	for _, m := range s.mirrors {
		s.following.Go(func() { m.follow(follow) })
	}
	return s, nil
}

// Close stops the caches and closes the connections. Every later call fails.
func (s *Store) Close() error {
	s.stop()
	s.following.Wait()
	return s.kv.client.Close()
}

// Ready returns an error if no majority of the members responds, or if the store is an incomplete copy.
func (s *Store) Ready(ctx context.Context) error {
	row, err := s.kv.get(ctx, schemaKey)
	if err == nil && string(row.Value) == incomplete {
		err = fmt.Errorf("%w: %s", ErrIncomplete, s.kv.prefix)
	}
	return err
}

// prepare writes the schema version if the store is new and has none. It fails if the store has another version. Every
// write requires that the store still has this version: see [Store.write].
func (s *Store) prepare(ctx context.Context) error {
	last := s.schema.Load()
	if last.prepared {
		return nil
	}
	row, err := s.kv.get(ctx, schemaKey)
	if err == nil && row.Version == "" {
		if _, _, err = s.kv.txn(ctx, []clientv3.Cmp{s.kv.holds(rowstore.Condition{Key: schemaKey})}, []clientv3.Op{s.kv.put(schemaKey, []byte(schemaVersion))}); err == nil {
			row, err = s.kv.get(ctx, schemaKey)
		}
	}
	switch value := string(row.Value); {
	case err != nil:
		return err
	case value == last.want:
		s.schema.Store(&schema{want: last.want, prepared: true})
		return nil
	case value == incomplete:
		return fmt.Errorf("%w: %s", ErrIncomplete, s.kv.prefix)
	default:
		return fmt.Errorf("etcd: key %s has schema version %.20q, want %q: another version of kubejoin wrote it; run that version, or use another --etcd-prefix", s.kv.prefix+schemaKey, value, schemaVersion)
	}
}

// A schema is the value of the key "schema" that the writes of a Store require.
type schema struct {
	want     string
	prepared bool // the key had this value when it was last read
}
