package server

import (
	"cmp"
	"encoding/base64"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/server/api"
)

// page is the part of a list that is asked for, and the Continue of the one behind it. The list is
// in the order of its keys, and what continues it is the last key that was shown: what comes and
// goes meanwhile neither repeats nor hides anything else. Without a limit it is all that is left.
func page[T any](list []T, kind string, key func(T) string, asked api.ListPage) (part []T, next string, err error) {
	if asked.Limit < 0 || asked.Limit > api.MaxPage {
		return nil, "", badField("limit", "%d given, want 1 to %d", asked.Limit, api.MaxPage)
	}
	if asked.Continue != "" {
		last, known := readCursor(kind, asked.Continue)
		if !known {
			return nil, "", badField("continue", "want what a page of this list ended with")
		}
		at, found := slices.BinarySearchFunc(list, last, func(item T, last string) int { return cmp.Compare(key(item), last) })
		if found {
			at++
		}
		list = list[at:]
	}
	if asked.Limit == 0 || len(list) <= asked.Limit {
		return list, "", nil
	}
	list = list[:asked.Limit]
	return list, cursor(kind, key(list[len(list)-1])), nil
}

// cursor says nothing to whoever has it, and fits no list of another kind.
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
