package server

import (
	"net/http"
	"strings"

	"github.com/kubejoin/kubejoin/server/api"
)

// Forms of the CA bundle.
const (
	formatPEM  = "pem"
	formatJSON = "json"
)

// ca answers the CAs in cluster-info, to anybody: in PEM, or as JSON with pins if the query or else
// the header Accept asks for that.
func (h *handler) ca(r *http.Request) (answer, error) {
	var asked api.GetCA
	if err := readQuery(r, &asked); err != nil {
		return answer{}, err
	}
	format := asked.Format
	switch format {
	case formatPEM, formatJSON:
	case "":
		if format = formatPEM; asksFor(r.Header.Values("Accept"), "application/json") {
			format = formatJSON
		}
	default:
		return answer{}, badField("format", "%.40q given, want %s or %s", format, formatPEM, formatJSON)
	}
	p, err := h.publish(r)
	if err != nil {
		return answer{}, err
	}
	if format == formatJSON {
		return h.caSet.answer(r, p.json, "application/json", "Accept"), nil
	}
	return h.caPEM.answer(r, p.pem, "application/x-pem-file", "Accept"), nil
}

// asksFor reports whether a type is asked for by its name: what takes anything, as curl does, has not
// asked.
func asksFor(accept []string, want string) bool {
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
