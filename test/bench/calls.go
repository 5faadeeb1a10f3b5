package main

import (
	"context"
	"strconv"
	"strings"
)

// calls counts requests to the API server by "VERB resource/subresource".
type calls map[string]float64

// apiCalls returns the requests that kube-apiserver has counted so far. The metric does not say who sent a request, so
// callers subtract the requests of the load itself.
func (b *bench) apiCalls(ctx context.Context) (calls, error) {
	text, err := b.load[0].RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	counted := calls{}
	for line := range strings.Lines(string(text)) {
		labels, found := strings.CutPrefix(line, "apiserver_request_total{")
		if !found {
			continue
		}
		labels, value, _ := strings.Cut(labels, "} ")
		n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			return nil, err
		}
		label := func(name string) string {
			_, after, _ := strings.Cut(","+labels, ","+name+`="`)
			value, _, _ := strings.Cut(after, `"`)
			return value
		}
		name := label("verb") + " " + label("resource")
		if sub := label("subresource"); sub != "" {
			name += "/" + sub
		}
		counted[name] += n
	}
	return counted, nil
}

// since returns the calls since before.
func (c calls) since(before calls) calls {
	diff := calls{}
	for name, n := range c {
		if d := n - before[name]; d > 0 {
			diff[name] = d
		}
	}
	return diff
}

// about returns the number of calls for resources, except watches and the calls in except.
func (c calls) about(resources []string, except ...string) float64 {
	sum := 0.0
	for name, n := range c {
		verb, resource, _ := strings.Cut(name, " ")
		resource, _, _ = strings.Cut(resource, "/")
		counts := verb != "WATCH"
		for _, e := range except {
			counts = counts && name != e
		}
		for _, r := range resources {
			if counts && r == resource {
				sum += n
			}
		}
	}
	return sum
}
