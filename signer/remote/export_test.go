package remote

// Timeout returns the limit of a request whose caller sets none.
func (c *Client) Timeout() (seconds float64) { return c.http.Timeout.Seconds() }
