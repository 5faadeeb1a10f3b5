package etcd

import (
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// Reads has figures about the reads, transactions and watches that passed [Faults].
type Reads struct {
	// Calls is the number of reads and transactions, and Rows the number of rows and events in the responses.
	Calls, Rows int
	// Visited is the number of keys in the ranges of all reads. etcd visits each of these keys, even if the read has a
	// limit and does not return the row.
	Visited int64
	// Ranges are the first and the last key of each read and watch. The range excludes the last key. The last key is empty
	// if the range is a single key.
	Ranges [][2]string
}

// Touches reports whether a read or watch includes keys with this prefix.
func (r Reads) Touches(prefix string) bool {
	for _, keys := range r.Ranges {
		first, last := keys[0], keys[1]
		// If the last key is one zero byte, the range has no end.
		if strings.HasPrefix(first, prefix) || first < prefix && (last > prefix || last == "\x00") {
			return true
		}
	}
	return false
}

// TakeReads returns the Reads since the last call.
func (f *Faults) TakeReads() Reads {
	f.mu.Lock()
	defer f.mu.Unlock()
	taken := f.reads
	f.reads = Reads{}
	return taken
}

// decode reads a message of etcd 3.6 or 3.7. The messages of 3.7 have no method Unmarshal.
func decode(message []byte, into any) error {
	return encoding.GetCodecV2("proto").Unmarshal(mem.BufferSlice{mem.SliceBuffer(message)}, into)
}

// requested counts a request. It ignores messages that it cannot decode, because etcd and its client report them.
func (f *Faults) requested(method string, message []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	add := func(r *etcdserverpb.RangeRequest) {
		if r != nil {
			f.reads.Ranges = append(f.reads.Ranges, [2]string{string(r.Key), string(r.RangeEnd)})
		}
	}
	switch method {
	case "/etcdserverpb.KV/Range":
		var r etcdserverpb.RangeRequest
		if decode(message, &r) == nil {
			add(&r)
		}
		f.reads.Calls++
	case "/etcdserverpb.KV/Txn":
		var r etcdserverpb.TxnRequest
		if decode(message, &r) == nil {
			for _, op := range append(r.Success, r.Failure...) {
				add(op.GetRequestRange())
			}
		}
		f.reads.Calls++
	case "/etcdserverpb.Watch/Watch":
		var r etcdserverpb.WatchRequest
		if decode(message, &r) == nil && r.GetCreateRequest() != nil {
			add(&etcdserverpb.RangeRequest{Key: r.GetCreateRequest().Key, RangeEnd: r.GetCreateRequest().RangeEnd})
		}
	}
}

func (f *Faults) responded(method string, message []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch method {
	case "/etcdserverpb.KV/Range":
		var r etcdserverpb.RangeResponse
		if decode(message, &r) == nil {
			f.reads.Rows += len(r.Kvs)
			f.reads.Visited += r.Count
		}
	case "/etcdserverpb.KV/Txn":
		var r etcdserverpb.TxnResponse
		if decode(message, &r) == nil {
			for _, op := range r.Responses {
				if got := op.GetResponseRange(); got != nil {
					f.reads.Rows += len(got.Kvs)
					f.reads.Visited += got.Count
				}
			}
		}
	case "/etcdserverpb.Watch/Watch":
		var r etcdserverpb.WatchResponse
		if decode(message, &r) == nil {
			f.reads.Rows += len(r.Events)
		}
	}
}
