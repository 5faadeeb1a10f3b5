package server

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// packInterval is the least time between two compressions of the same thing: where thousands of
	// tokens come and go, megabytes change many times a second.
	packInterval = time.Second
	// packMinSize is the fewest bytes that are worth it.
	packMinSize = 512
)

// A document is what anybody may read, made once for all who do.
type document struct {
	body []byte
	tag  func() string // strong entity tag, without quotes
	gzip atomic.Pointer[[]byte]
}

// A publication is a document as it changes. The zero publication is ready.
type publicDocument struct {
	mu      sync.Mutex
	last    *document
	packing bool
	packed  time.Time // when a compression was begun last
}

// document is the one of a body, which is not changed from here on. What was made of the same bytes
// is not made again.
func (p *publicDocument) document(body []byte) *document {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := &document{body: body}
	if last := p.last; last != nil && bytes.Equal(body, last.body) { // costs nothing if they are at the same place
		next.tag = last.tag
		next.gzip.Store(last.gzip.Load())
	} else {
		next.tag = sync.OnceValue(func() string {
			sum := sha256.Sum256(body)
			return base64.RawURLEncoding.EncodeToString(sum[:16])
		})
	}
	p.last = next
	return next
}

// pack has the document compressed beside, unless it is, or one was just now: until it is done it
// goes out as it is.
func (p *publicDocument) pack(d *document) {
	if len(d.body) < packMinSize {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.packing || d.gzip.Load() != nil || !p.packed.IsZero() && time.Since(p.packed) < packInterval {
		return
	}
	p.packing, p.packed = true, time.Now()
	go func() {
		small := compressed(d.body)
		p.mu.Lock()
		defer p.mu.Unlock()
		d.gzip.Store(&small)
		if p.last != d && bytes.Equal(p.last.body, d.body) {
			p.last.gzip.Store(&small)
		}
		p.packing = false
	}()
}

// compressed is nil for what does not get smaller.
func compressed(body []byte) []byte {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err == nil {
		_, err = w.Write(body)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil || b.Len() >= len(body) { // memory does not fail to be written to
		return nil
	}
	return bytes.Clone(b.Bytes())
}

// response is the document for one client: compressed if it takes that, and nothing but a word if
// it has it already. Whoever keeps it asks again each time (RFC 9111, section 5.2.2.4). vary are
// the headers beside Accept-Encoding that have chosen it.
func (p *publicDocument) answer(r *call, body []byte, contentType string, vary ...string) response {
	d := p.document(body)
	identity := `"` + d.tag() + `"`
	a := response{contentType: contentType, body: d.body, header: map[string]string{
		"ETag":          identity,
		"Cache-Control": "no-cache",
		"Vary":          strings.Join(append(vary, "Accept-Encoding"), ", "),
	}}
	// Another encoding is another representation, with a tag of its own (RFC 9110, section 8.8.3.3).
	packed := `"` + d.tag() + `-gzip"`
	gzips := acceptsGzip(r.Header.Values("Accept-Encoding"))
	has := r.Header.Values("If-None-Match")
	switch {
	case gzips && matches(has, packed):
		a.header["ETag"] = packed
	case matches(has, identity):
	default:
		if !gzips {
			return a
		}
		if small := d.gzip.Load(); small == nil {
			p.pack(d)
		} else if *small != nil {
			a.body = *small
			a.header["ETag"], a.header["Content-Encoding"] = packed, "gzip"
		}
		return a
	}
	a.status, a.body = http.StatusNotModified, nil
	return a
}

// acceptsGzip reads Accept-Encoding: RFC 9110, section 12.5.3.
func acceptsGzip(headers []string) bool {
	others := false
	for _, header := range headers {
		for item := range strings.SplitSeq(header, ",") {
			coding, parameters, _ := strings.Cut(item, ";")
			switch coding = strings.TrimSpace(coding); {
			case strings.EqualFold(coding, "gzip"), strings.EqualFold(coding, "x-gzip"):
				return quality(parameters) > 0
			case coding == "*":
				others = quality(parameters) > 0
			}
		}
	}
	return others
}

// quality is the weight in the parameters of an item of a list: RFC 9110, section 12.4.2.
func quality(parameters string) float64 {
	for p := range strings.SplitSeq(parameters, ";") {
		name, value, _ := strings.Cut(p, "=")
		if strings.EqualFold(strings.TrimSpace(name), "q") {
			if q, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil {
				return q
			}
			return 0
		}
	}
	return 1
}

// matches reads If-None-Match, which compares weakly: RFC 9110, section 13.1.2. Tags have no
// commas here.
func matches(headers []string, tag string) bool {
	for _, header := range headers {
		for item := range strings.SplitSeq(header, ",") {
			item = strings.TrimSpace(item)
			if item == "*" || strings.TrimPrefix(item, "W/") == tag {
				return true
			}
		}
	}
	return false
}
