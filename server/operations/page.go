package operations

import (
	"cmp"
	"encoding/base64"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/server/api"
)

// Page returns the requested part of a list, and the Continue of the next part. The list must be sorted by
// key. Continue encodes the last key of a part, so that items added or deleted meanwhile do not repeat or
// hide others. Without a limit, Page returns the rest of the list.
func Page[T any](list []T, kind string, key func(T) string, req api.ListPage) (part []T, next string, err error) {
	if req.Limit < 0 || req.Limit > api.MaxPage {
		return nil, "", api.InvalidField("limit", "%d given, want 1 to %d", req.Limit, api.MaxPage)
	}
	if req.Continue != "" {
		last, known := readCursor(kind, req.Continue)
		if !known {
			return nil, "", api.InvalidField("continue", "malformed; want the continue value of another page of this list")
		}
		at, found := slices.BinarySearchFunc(list, last, func(item T, last string) int { return cmp.Compare(key(item), last) })
		if found {
			at++
		}
		list = list[at:]
	}
	if req.Limit == 0 || len(list) <= req.Limit {
		return list, "", nil
	}
	list = list[:req.Limit]
	return list, cursor(kind, key(list[len(list)-1])), nil
}

// cursor returns the Continue for a key. It is opaque to clients, and valid only for lists of this kind.
func cursor(kind, key string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(kind + "/" + key))
}

func readCursor(kind, cursor string) (key string, ok bool) {
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		return "", false
	}
	key, ok = strings.CutPrefix(string(b), kind+"/")
	return key, ok && key != ""
}
