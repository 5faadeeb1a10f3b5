package server

import (
	"log/slog"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/kubejoin/kubejoin/tokens"
)

// explanation answers why a machine has or has not joined: as JSON, or as the text that people
// read.
func (h *handler) explanation(r *http.Request) (answer, error) {
	var asked struct {
		Format string `json:"format"`
	}
	if err := readRequest(r, &asked); err != nil {
		return answer{}, err
	}
	if asked.Format != "" && asked.Format != "json" && asked.Format != "text" {
		return answer{}, badField("format", "%.40q given, want json or text", asked.Format)
	}
	node := chi.URLParam(r, "node")
	if err := tokens.CheckNodeName(node); err != nil {
		return answer{}, badField("node", "%.300v", err)
	}
	if h.Explain == nil {
		return answer{}, newProblem(http.StatusNotFound, "no-cluster", "there are no nodes to explain here: kubejoin is not on a cluster")
	}
	logAttrs(r.Context(), slog.String("node", node))
	e, err := h.Explain(r.Context(), node)
	if err != nil {
		p := newProblem(http.StatusServiceUnavailable, "cluster-unavailable", "the cluster does not say now what there is to know of node %s; try again", node)
		p.cause, p.retryAfter = err, retryAfter
		return answer{}, p
	}
	if asked.Format == "text" {
		return answer{contentType: "text/plain; charset=utf-8", body: []byte(e.Text())}, nil
	}
	return object(http.StatusOK, e)
}
