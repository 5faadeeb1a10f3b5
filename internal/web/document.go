package web

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
	// packInterval is the minimum time between two compressions of a publication. With thousands of
	// tokens, cluster-info has megabytes and may change many times a second.
	packInterval = time.Second
	// packMinSize is the minimum size that is compressed, in bytes.
	packMinSize = 512
)

// A version is one version of a public response body, the same for all clients.
type version struct {
	body []byte
	tag  func() string // strong entity tag, without quotes
	gzip atomic.Pointer[[]byte]
}

// A Document is a public document that may change. All clients get the same version. It keeps the compressed form and
// the entity tag of the current version. The zero value is ready to use.
type Document struct {
	mu      sync.Mutex
	last    *version
	packing bool
	packed  time.Time // when the last compression began
}

// version returns a version with this body. The caller must not change body afterwards. If the last version has the
// same bytes, version reuses its tag and compressed form.
func (p *Document) version(body []byte) *version {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := &version{body: body}
	if last := p.last; last != nil && bytes.Equal(body, last.body) { // cheap if both slices share memory
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

// pack compresses a version in the background, unless it is compressed already or a compression began less than
// packInterval ago. Until compression has ended, responses are not compressed.
func (p *Document) pack(d *version) {
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

// compressed returns the body in gzip, or nil if gzip does not make it smaller.
func compressed(body []byte) []byte {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err == nil {
		_, err = w.Write(body)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil || b.Len() >= len(body) { // writes to memory do not fail
		return nil
	}
	return bytes.Clone(b.Bytes())
}

// Respond returns a response with the current body of the document. The body is compressed if the client accepts gzip.
// The status is 304 if the client has the current version. Caches must revalidate each time (RFC 9111, section
// 5.2.2.4). vary are the headers that selected the document, in addition to Accept-Encoding.
func (p *Document) Respond(r *http.Request, body []byte, contentType string, vary ...string) Response {
	d := p.version(body)
	identity := `"` + d.tag() + `"`
	a := Response{ContentType: contentType, Body: d.body, Header: map[string]string{
		"ETag":          identity,
		"Cache-Control": "no-cache",
		"Vary":          strings.Join(append(vary, "Accept-Encoding"), ", "),
	}}
	// Each encoding is a separate representation with its own tag (RFC 9110, section 8.8.3.3).
	packed := `"` + d.tag() + `-gzip"`
	gzips := acceptsGzip(r.Header.Values("Accept-Encoding"))
	has := r.Header.Values("If-None-Match")
	switch {
	case gzips && matches(has, packed):
		a.Header["ETag"] = packed
	case matches(has, identity):
	default:
		if !gzips {
			return a
		}
		if small := d.gzip.Load(); small == nil {
			p.pack(d)
		} else if *small != nil {
			a.Body = *small
			a.Header["ETag"], a.Header["Content-Encoding"] = packed, "gzip"
		}
		return a
	}
	a.Status, a.Body = http.StatusNotModified, nil
	return a
}

// acceptsGzip reports whether Accept-Encoding allows gzip (RFC 9110, section 12.5.3).
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

// quality returns the weight among the parameters of a list item (RFC 9110, section 12.4.2).
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

// matches reports whether If-None-Match has a tag, by weak comparison (RFC 9110, section 13.1.2). It
// relies on tags without commas.
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

// Accepts reports whether an Accept header names the media type want. It ignores wildcards, because curl sends */* by default.
func Accepts(accept []string, want string) bool {
	for _, header := range accept {
		for item := range strings.SplitSeq(header, ",") {
			media, parameters, _ := strings.Cut(item, ";")
			if strings.EqualFold(strings.TrimSpace(media), want) {
				return quality(parameters) > 0
			}
		}
	}
	return false
}
