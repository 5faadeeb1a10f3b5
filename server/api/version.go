package api

// Version describes the build of a server, which GET /version returns.
type Version struct {
	Version   string `json:"version"`
	Commit    string `json:"commit,omitempty"`
	GoVersion string `json:"goVersion"`
	Platform  string `json:"platform"`
}

// A Notice is an error of a readiness check that is not a failure. The check passes, and /readyz?verbose shows
// the text to the operator.
type Notice string

func (n Notice) Error() string { return string(n) }
