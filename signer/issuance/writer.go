package issuance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// A Writer is a [Log] that writes each entry as one line of JSON. Each line is a single write, so several programs can
// append to one file without mixing their lines. If its last write was cut off, or the file ended in a partial line
// when it was opened, the Writer first ends that line. It does not notice a partial line that another program leaves
// later. It escapes text from requests: a line is printable and valid UTF-8.
//
// Append returns when the operating system has the entry. The entry survives a crash of the program, but
// not of the machine.
type Writer struct {
	mu      sync.Mutex
	w       io.Writer
	cut     bool // the last line does not end in a newline
	path    string
	file    *os.File // nil if the Writer must not close it
	pipe    bool     // a pipe or a device, whose reader may stop
	looked  time.Time
	missing bool // the file must be opened again
}

// NewWriter returns a Writer that makes one call of w.Write for each line.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// OpenFile returns a Writer that appends to the file at path, and creates it with mode 0600 if it does not
// exist. Log rotation may truncate the file, or rename it; the Writer notices that within a second. A pipe
// must have a reader. Append fails if the reader is slower than the deadline of the context.
func OpenFile(path string) (*Writer, error) {
	w := &Writer{path: path}
	if err := w.open(); err != nil {
		return nil, err
	}
	return w, nil
}

// Close closes the file that OpenFile opened.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil {
		return nil
	}
	err := w.file.Close()
	w.file, w.w = nil, closed{}
	return err
}

// closed is the io.Writer of a closed Writer.
type closed struct{}

func (closed) Write([]byte) (int, error) { return 0, os.ErrClosed }

// Append implements [Log].
func (w *Writer) Append(ctx context.Context, e Entry) error {
	line, err := encode(e)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.follow(time.Now()); err != nil {
		return err
	}
	if w.cut {
		line = append([]byte{'\n'}, line...)
	}
	if w.pipe {
		end, _ := ctx.Deadline()         // a zero time means no deadline
		_ = w.file.SetWriteDeadline(end) // not all devices support a deadline
	}
	n, err := w.w.Write(line)
	if err == nil && n < len(line) {
		err = io.ErrShortWrite
	}
	if n = min(n, len(line)); n > 0 {
		w.cut = line[n-1] != '\n'
	}
	if err != nil && w.path != "" {
		return fmt.Errorf("%s: %w", w.path, unnamed(err))
	}
	return err
}

// unnamed removes the file name from an error whose caller adds it.
func unnamed(err error) error {
	if named := (*fs.PathError)(nil); errors.As(err, &named) {
		return named.Err
	}
	return err
}

// reopen is how often the Writer checks whether path is another file.
const reopen = time.Second

// follow opens the file at path again if path is no longer the open file.
func (w *Writer) follow(now time.Time) error {
	if w.file == nil {
		return nil
	}
	if age := now.Sub(w.looked); !w.missing && age >= 0 && age < reopen {
		return nil
	}
	if at, err := os.Stat(w.path); err == nil {
		if mine, err := w.file.Stat(); err == nil && os.SameFile(at, mine) {
			w.looked, w.missing = now, false
			return nil
		}
	}
	before := w.file
	if err := w.open(); err != nil {
		w.missing = true
		return err
	}
	_ = before.Close() // each of its lines was written or reported as failed
	w.missing = false
	return nil
}

// open opens the file at path, and checks whether it ends in the middle of a line.
func (w *Writer) open() error {
	// Without O_NONBLOCK, opening a pipe would block until another program opens it for reading (fifo(7)).
	file, err := os.OpenFile(w.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY|syscall.O_NONBLOCK, 0o600)
	if errors.Is(err, syscall.ENXIO) {
		return &fs.PathError{Op: "open", Path: w.path, Err: fmt.Errorf("not a file, or a pipe without a reader: want a file or a pipe with a reader (%w)", unnamed(err))}
	}
	if err != nil {
		return err
	}
	info, err := file.Stat()
	cut := false
	if err == nil && info.Mode().IsRegular() {
		cut, err = endsInPartialLine(w.path, info)
	}
	if err != nil {
		return errors.Join(err, file.Close())
	}
	w.file, w.w, w.pipe, w.cut, w.looked = file, file, !info.Mode().IsRegular(), cut, time.Now()
	return nil
}

// endsInPartialLine reports whether a file ends in the middle of a line, for example after a crash or on a full disk.
func endsInPartialLine(path string, info fs.FileInfo) (bool, error) {
	if info.Size() == 0 {
		return false, nil
	}
	read, err := os.Open(path)
	if err != nil {
		return true, nil // the file may be writable but not readable; an extra empty line does no harm
	}
	defer func() { _ = read.Close() }() // the file was only read
	last := make([]byte, 1)
	if _, err := read.ReadAt(last, info.Size()-1); err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	return last[0] != '\n', nil
}

// encode returns the line of an entry.
func encode(e Entry) ([]byte, error) {
	content, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	line := make([]byte, 0, len(content)+1)
	// All non-ASCII characters are inside strings. encoding/json does not escape characters that a terminal
	// interprets as commands, or that change the direction of text.
	for rest := content; len(rest) > 0; {
		ascii := bytes.IndexFunc(rest, func(r rune) bool { return r >= 0x7f })
		if ascii < 0 {
			line = append(line, rest...)
			break
		}
		line, rest = append(line, rest[:ascii]...), rest[ascii:]
		r, size := utf8.DecodeRune(rest)
		if unicode.IsPrint(r) {
			line = append(line, rest[:size]...)
		} else {
			line = escape(line, r)
		}
		rest = rest[size:]
	}
	return append(line, '\n'), nil
}

// escape appends a character with JSON escapes: two surrogate halves for characters above U+FFFF (RFC 8259,
// section 7).
func escape(line []byte, r rune) []byte {
	for _, unit := range utf16.AppendRune(nil, r) {
		line = fmt.Appendf(line, `\u%04x`, unit)
	}
	return line
}
