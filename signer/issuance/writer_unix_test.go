//go:build unix

package issuance_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/signer/issuance"
)

func newPipe(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pipe")
	must.OK(t, syscall.Mkfifo(path, 0o600))
	return path
}

// within fails the test if f does not return.
func within(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	wait.Receive(t, "return", done)
}

// A pipe without a reader must be an error. OpenFile must not block.
func TestPipeWithoutReaderIsAnError(t *testing.T) {
	path := newPipe(t)
	within(t, func() {
		_, err := issuance.OpenFile(path)
		if !errors.Is(err, syscall.ENXIO) || !strings.Contains(err.Error(), "a pipe without a reader") || strings.Count(err.Error(), path) != 1 {
			t.Errorf("OpenFile = %v", err)
		}
	})
}

// While the reader of a pipe does not read, Append fails at its deadline. The next entry starts on a new line.
func TestFullPipeTimesOutAndNextLineIsWhole(t *testing.T) {
	path := newPipe(t)
	reader := must.Value(os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0))(t)
	defer func() { _ = reader.Close() }() // read only, so nothing can be lost
	w := openFile(t, path)
	mustAppend(t, w, "1")
	lines := bufio.NewReader(reader)
	if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, `"serial":"1"`) {
		t.Fatalf("got %q, %v", line, err)
	}
	within(t, func() {
		large := issuance.Entry{Serial: "2", Message: strings.Repeat("x", 1<<20)} // more than the buffer of a pipe
		// A busy machine takes long to begin the write.
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if err := w.Append(ctx, large); !errors.Is(err, os.ErrDeadlineExceeded) || !strings.HasPrefix(err.Error(), path+": ") {
			t.Errorf("Append = %v", err)
		}
		go func() {
			if err := w.Append(context.Background(), issuance.Entry{Serial: "3"}); err != nil {
				t.Errorf("Append = %v", err)
			}
		}()
		if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, `"serial":"2"`) {
			t.Errorf("got %.40q, %v, want the start of entry 2", line, err)
		}
		if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, `"serial":"3"`) {
			t.Errorf("got %.40q, %v, want entry 3 on its own line", line, err)
		}
	})
}
