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

// A Writer is a [Log] of lines of JSON, an entry each. Each line is one write, so that several
// programs that append to one file do not mix their lines, and a line that was cut off is ended
// before the next. Whatever requests hold is escaped: a line is printable, and valid UTF-8.
//
// An entry is kept when the operating system has it: it survives the end of the program, not that
// of the machine.
type Writer struct {
	mu      sync.Mutex
	w       io.Writer
	cut     bool // the last line is not ended
	path    string
	file    *os.File // nil for what is not ours to close
	pipe    bool     // or a device: who reads it may stop
	looked  time.Time
	missing bool // the file is to be opened again
}

// NewWriter writes to w, one Write for each line.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// OpenFile appends to the file at path, which is made with mode 0600 if it is not there. It may be
// rotated in either way: emptied, or renamed, which is noticed within a second. A pipe has to have a
// reader, and an Append fails that this one keeps waiting beyond its context.
func OpenFile(path string) (*Writer, error) {
	w := &Writer{path: path}
	if err := w.open(); err != nil {
		return nil, err
	}
	return w, nil
}

// Close closes the file that OpenFile has opened.
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

// closed is where nothing can be written any more.
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
		end, _ := ctx.Deadline()         // zero is none
		_ = w.file.SetWriteDeadline(end) // not all devices have one
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

// unnamed is an error without the name of the file, which is said by others.
func unnamed(err error) error {
	if named := (*fs.PathError)(nil); errors.As(err, &named) {
		return named.Err
	}
	return err
}

// reopen is how often it is looked whether the file at path is another one.
const reopen = time.Second

// follow opens the file at path when it is not the one that is written to.
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
	_ = before.Close() // every line of it was written, or said to have failed
	w.missing = false
	return nil
}

// open opens the file at path, and sees whether it ends in the middle of a line.
func (w *Writer) open() error {
	// Blocking, the open of a pipe waits until somebody opens it to read (fifo(7)).
	file, err := os.OpenFile(w.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY|syscall.O_NONBLOCK, 0o600)
	if errors.Is(err, syscall.ENXIO) {
		return &fs.PathError{Op: "open", Path: w.path, Err: fmt.Errorf("nobody reads this pipe, or it is none: want a file, or a pipe with a reader (%w)", unnamed(err))}
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

// endsInPartialLine reports whether a file ends in the middle of a line, as a program that was killed and a
// full disk leave it.
func endsInPartialLine(path string, info fs.FileInfo) (bool, error) {
	if info.Size() == 0 {
		return false, nil
	}
	read, err := os.Open(path)
	if err != nil {
		return true, nil // it may be written and not read: an empty line does no harm
	}
	defer func() { _ = read.Close() }() // was only read
	last := make([]byte, 1)
	if _, err := read.ReadAt(last, info.Size()-1); err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	return last[0] != '\n', nil
}

// encode makes the line of an entry.
func encode(e Entry) ([]byte, error) {
	content, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	line := make([]byte, 0, len(content)+1)
	// What is not ASCII is within a string. encoding/json leaves characters there that a
	// terminal takes for commands, or that turn the direction of text.
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

// escape appends a character as JSON escapes it, in two halves beyond the first 65,536 (RFC 8259,
// section 7).
func escape(line []byte, r rune) []byte {
	for _, unit := range utf16.AppendRune(nil, r) {
		line = fmt.Appendf(line, `\u%04x`, unit)
	}
	return line
}
