package doctor

import (
	"slices"
	"testing"
)

// TestRemovedGatesHaveOneMinor catches a gate in two rows of the table, or with a malformed name.
func TestRemovedGatesHaveOneMinor(t *testing.T) {
	seen := map[string]uint{}
	for minor := uint(OldestMinor); minor <= NewestMinor; minor++ {
		if len(removedGates[minor]) == 0 || !slices.IsSorted(removedGates[minor]) {
			t.Errorf("1.%d: want sorted gates, got %q", minor, removedGates[minor])
		}
		for _, gate := range removedGates[minor] {
			if seen[gate] != 0 {
				t.Errorf("%s is in 1.%d and 1.%d", gate, seen[gate], minor)
			}
			if seen[gate] = minor; !plain.MatchString(gate) {
				t.Errorf("malformed gate %q", gate)
			}
		}
	}
	if len(removedGates) != NewestMinor-OldestMinor+1 {
		t.Errorf("removedGates has %d minor versions, want those that kubejoin supports", len(removedGates))
	}
}
