package storetest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/kubejoin/kubejoin/tokens"
)

// A Call is a call of a method of a store that a [Faulty] wraps.
type Call struct {
	Context context.Context
	// Method is the name of the method, as in "Store.Get", "Claims.Get" or "Claims.Commit". Reads that are not live have
	// a suffix, as in "Store.Get.cached". The function that is passed to Update is a call, too: "Store.Update.change". A
	// Commit of one claim without a token is "Claims.Create", "Claims.Update" or "Claims.Delete".
	Method string
	// Key is the token ID or the node name. It is empty for List, and for a Commit that changes no token.
	Key string
	// Records and Claims are the results of the call. Before do, they are the argument of Create and Delete, and the claim
	// that Claims.Update changes. In the call of a change function, they contain its argument and then its result. A Faulty
	// can alter the results of a call and the argument of a change function.
	Records []tokens.Record
	Claims  []tokens.Claim
}

// A Faulty is a function that runs instead of each call of a store. It calls do at most once, to run the call. The caller
// can get:
//   - an error without a call of do: the call failed without effect,
//   - an error after a call of do: the call took effect, but its response was lost,
//   - a late result, or a result after another caller has changed the store,
//   - altered values, through Records and Claims.
//
// A Faulty may run concurrently. It does not run for methods without an error: Watch and Ended.
type Faulty func(c *Call, do func() error) error

// Fail returns a Faulty that fails calls of these methods with err. Without methods, it fails all calls.
func Fail(err error, methods ...string) Faulty {
	return func(c *Call, do func() error) error {
		if len(methods) == 0 || slices.Contains(methods, c.Method) {
			return err
		}
		return do()
	}
}

// Before returns a Faulty that runs f before each call of these methods. If f fails, the call fails.
func Before(f func() error, methods ...string) Faulty {
	return func(c *Call, do func() error) error {
		if slices.Contains(methods, c.Method) {
			if err := f(); err != nil {
				return err
			}
		}
		return do()
	}
}

// After returns a Faulty that runs f after each call of these methods, even if the call fails. If only f fails, the
// response is lost. For a change function, f runs after it and before the write.
func After(f func() error, methods ...string) Faulty {
	return func(c *Call, do func() error) error {
		if !slices.Contains(methods, c.Method) {
			return do()
		}
		err := do()
		return cmp.Or(err, f())
	}
}

// Alter returns a Faulty that changes each record that is read.
func Alter(f func(*tokens.Record)) Faulty {
	return func(c *Call, do func() error) error {
		err := do()
		if c.Method == "Store.Get" || c.Method == "Store.Get.cached" || c.Method == "Store.List" {
			for i := range c.Records {
				f(&c.Records[i])
			}
		}
		return err
	}
}

// Stale freezes List and cached reads at the current state. The claims may be nil.
func Stale(t *testing.T, s tokens.Store, claims tokens.Claims) Faulty {
	t.Helper()
	records, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var held []tokens.Claim
	if claims != nil {
		if held, err = claims.List(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return func(c *Call, do func() error) error {
		found := false
		switch c.Method {
		case "Store.Get.cached", "Store.List":
			for _, r := range records {
				if c.Key == "" || c.Key == r.Token.ID() {
					c.Records, found = append(c.Records, r.Clone()), true
				}
			}
		case "Claims.Get.cached", "Claims.List", "Claims.HeldBy.cached":
			for _, claim := range held {
				if c.Key == "" || c.Method == "Claims.Get.cached" && c.Key == claim.Node || c.Method == "Claims.HeldBy.cached" && c.Key == claim.TokenID {
					c.Claims, found = append(c.Claims, claim.Clone()), true
				}
			}
		default:
			return do()
		}
		if (c.Method == "Store.Get.cached" || c.Method == "Claims.Get.cached") && !found {
			return fmt.Errorf("%s: %w", c.Key, tokens.ErrNotFound)
		}
		return nil
	}
}

// method returns the name of a read for [Call.Method].
func method(name string, read tokens.Read) string {
	if read == tokens.Live {
		return name
	}
	return name + "." + string(read)
}

// Store returns s with the faults.
func (f Faulty) Store(s tokens.Store) tokens.Store { return faultyStore{s, f} }

// Claims returns claims with the faults.
func (f Faulty) Claims(claims tokens.Claims) tokens.Claims { return faultyClaims{claims, f} }

type faultyStore struct {
	tokens.Store
	fault Faulty
}

// one runs a call that returns one record. arguments are the records that the caller has passed.
func (s faultyStore) one(ctx context.Context, method, id string, do func() (tokens.Record, error), arguments ...tokens.Record) (r tokens.Record, err error) {
	c := &Call{Context: ctx, Method: "Store." + method, Key: id, Records: arguments}
	err = s.fault(c, func() error {
		r, err := do()
		c.Records = []tokens.Record{r}
		return err
	})
	if len(c.Records) == 1 {
		r = c.Records[0]
	}
	return r, err
}

func (s faultyStore) Get(ctx context.Context, id string, read tokens.Read) (tokens.Record, error) {
	return s.one(ctx, method("Get", read), id, func() (tokens.Record, error) { return s.Store.Get(ctx, id, read) })
}

func (s faultyStore) List(ctx context.Context) ([]tokens.Record, error) {
	c := &Call{Context: ctx, Method: "Store.List"}
	err := s.fault(c, func() (err error) { c.Records, err = s.Store.List(ctx); return err })
	return c.Records, err
}

func (s faultyStore) Create(ctx context.Context, r tokens.Record) (tokens.Record, error) {
	return s.one(ctx, "Create", r.Token.ID(), func() (tokens.Record, error) { return s.Store.Create(ctx, r) }, r)
}

func (s faultyStore) Update(ctx context.Context, id string, change func(*tokens.Record) error) (tokens.Record, error) {
	return s.one(ctx, "Update", id, func() (tokens.Record, error) {
		return s.Store.Update(ctx, id, func(r *tokens.Record) error {
			c := &Call{Context: ctx, Method: "Store.Update.change", Key: id, Records: []tokens.Record{*r}}
			err := s.fault(c, func() error { return change(&c.Records[0]) })
			*r = c.Records[0]
			return err
		})
	})
}

func (s faultyStore) Delete(ctx context.Context, r tokens.Record) error {
	c := &Call{Context: ctx, Method: "Store.Delete", Key: r.Token.ID(), Records: []tokens.Record{r}}
	return s.fault(c, func() error { return s.Store.Delete(ctx, r) })
}

type faultyClaims struct {
	tokens.Claims
	fault Faulty
}

// many runs a call that returns claims.
func (s faultyClaims) many(ctx context.Context, method, key string, do func() ([]tokens.Claim, error)) ([]tokens.Claim, error) {
	c := &Call{Context: ctx, Method: method, Key: key}
	err := s.fault(c, func() (err error) { c.Claims, err = do(); return err })
	return c.Claims, err
}

func (s faultyClaims) Get(ctx context.Context, node string, read tokens.Read) (tokens.Claim, error) {
	c := &Call{Context: ctx, Method: "Claims." + method("Get", read), Key: node}
	err := s.fault(c, func() error {
		claim, err := s.Claims.Get(ctx, node, read)
		c.Claims = []tokens.Claim{claim}
		return err
	})
	if len(c.Claims) == 0 {
		return tokens.Claim{}, err
	}
	return c.Claims[0], err
}

func (s faultyClaims) List(ctx context.Context) ([]tokens.Claim, error) {
	return s.many(ctx, "Claims.List", "", func() ([]tokens.Claim, error) { return s.Claims.List(ctx) })
}

func (s faultyClaims) HeldBy(ctx context.Context, id string, read tokens.Read) ([]tokens.Claim, error) {
	return s.many(ctx, "Claims."+method("HeldBy", read), id, func() ([]tokens.Claim, error) { return s.Claims.HeldBy(ctx, id, read) })
}

func (s faultyClaims) Commit(ctx context.Context, before, after tokens.Record, changes []tokens.ClaimChange) (outcomes []tokens.Outcome, err error) {
	c := &Call{Context: ctx, Method: "Claims.Commit", Key: before.Token.ID()}
	one := c.Key == "" && len(changes) == 1
	if one {
		c.Key = changes[0].After.Node
		switch change := changes[0]; {
		case change.Before.Version == "":
			c.Method, c.Claims = "Claims.Create", []tokens.Claim{change.After}
		case change.After.Empty():
			c.Method, c.Claims = "Claims.Delete", []tokens.Claim{change.Before}
		default:
			c.Method, c.Claims = "Claims.Update", []tokens.Claim{change.Before}
		}
	}
	err = s.fault(c, func() error {
		outcomes, err = s.Claims.Commit(ctx, before, after, changes)
		if one && len(outcomes) > 0 {
			c.Claims = []tokens.Claim{outcomes[0].Claim}
			return cmp.Or(outcomes[0].Err, err)
		}
		return err
	})
	if one && len(outcomes) > 0 {
		return []tokens.Outcome{{Claim: c.Claims[0], Err: err}}, nil
	}
	return outcomes, err
}
